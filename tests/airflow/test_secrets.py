"""Locations of secrets, which a worker passes instead of values, and the values found there."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import UserList
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk import task as sdk_task
from airflow.sdk._shared.secrets_masker import reset_secrets_masker
from airflow.sdk.log import mask_secret, redact

from airflow_provider_launch._airflow import AirflowFailException
from airflow_provider_launch._task.errors import final_errors
from airflow_provider_launch._task.places import checked_places, hidden_values, places_in_copied, places_of
from airflow_provider_launch._task.secrets import (
    chosen,
    forms_of,
    hidden_in_arguments,
    hidden_spans,
    register,
    register_written,
    shown_request,
)
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.schedulers.aws_batch import request as aws_batch
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchOpts
from airflow_provider_launch.schedulers.docker import request as docker
from airflow_provider_launch.schedulers.docker.options import DockerOpts
from airflow_provider_launch.schedulers.kubernetes import request as kubernetes
from airflow_provider_launch.schedulers.kubernetes.manifests import format_request as format_kubernetes
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesOpts
from airflow_provider_launch.schedulers.local import request as local
from airflow_provider_launch.schedulers.local.options import LocalOpts
from airflow_provider_launch.schedulers.slurm import request as slurm
from airflow_provider_launch.schedulers.slurm.options import SlurmOpts
from airflow_provider_launch.specs import AppDef, Role, Workspace, app_to_dict
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from tests.airflow.support import RUN, FakeExecutionApi, a_dag, run_task


@pytest.fixture(autouse=True)
def fetched(no_masks):
    """This process has fetched a secret, as a worker does for a template."""
    mask_secret("hush-variable")


def app(env: dict[str, str] | None = None, args: list[str] | None = None) -> AppDef:
    return AppDef("app", [Role("main", "", entrypoint="x", env=env or {}, args=args or [])])


@pytest.mark.parametrize(
    ("given", "copied", "values"),
    [
        (app({"X": "hush-variable"}), {}, {"hush-variable"}),
        (app({"X": "a hush-variable, hush-variable."}), {}, {"hush-variable"}),
        (app({"X": "*** hush-variable"}), {}, {"hush-variable"}),
        (app(args=["--a", "b=hush-variable"]), {}, {"hush-variable"}),
        (app({"DB_PASS": "by-name"}), {}, {"by-name"}),
        (app({"URL": "redis://:in-url@h/0"}), {}, {"in-url"}),
        (app(args=["--token", "argument", "--password=other-one"]), {}, {"argument", "other-one"}),
        (app(), {"main": {"HF_TOKEN": "copied-one", "HF_HOME": "/models"}}, {"copied-one"}),
        (app(), {"main": {"HOME_URL": "x hush-variable"}}, {"x hush-variable"}),
        (app({"X": "plain", "USE_AUTH": "false", "PIN_PASS": "1234"}, ["--epochs=3"]), {}, set()),
    ],
)
def test_locations_lead_to_the_values(given, copied, values) -> None:
    places = checked_places(json.loads(json.dumps([*places_of(given), *places_in_copied(copied)])))
    assert places is not None

    assert not any(value in json.dumps(places) for value in values)
    assert hidden_values(given.roles, copied, places).keys() == values


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("S3_KEY", "data/{{ run_id }}/train.csv", "/data/models/train.csv"),
        ("COOKIE_DOMAIN", "{{ run_id }}.example.com", "www.example.com"),
        ("AUTHORIZATION", "Bearer {{ run_id }}", "Bearer of news"),
        ("AUTHORIZATION", "token {{ run_id }}", "token expired"),
    ],
)
def test_ordinary_words_next_to_a_template_are_shown(name: str, value: str, line: str) -> None:
    register_written([{"env": {name: value}}])

    assert redact(line) == line


@pytest.mark.parametrize("flag", ["--token=", "--token ", "--api-key '"], ids=["equals", "blank", "quoted"])
def test_the_value_of_a_flag_in_a_command_is_masked(flag: str) -> None:
    given = app(args=["-c", f"login {flag}hush-variable' && train"])

    assert "hush-variable" in hidden_values(given.roles, {}, [])


def test_an_app_without_secrets_has_no_locations() -> None:
    """Then a trigger asks nothing more."""
    assert places_of(app({"X": "1", "LAUNCH": "2"}, ["-v"])) + places_in_copied({"main": {"PATH": "/bin"}}) == []


def test_locations_of_another_app_are_ignored() -> None:
    """The app of an earlier try may be from before a change of the DAG."""
    places = places_of(app({"X": "hush-variable"}, ["a", "hush-variable"]))
    places += places_in_copied({"main": {"A_TOKEN": "long-enough"}})

    assert hidden_values(app({"Y": "something else"}).roles, {}, places) == {}


@pytest.mark.parametrize("between", ["/", "=", " ", "ab"])
def test_locations_are_right_if_a_secret_contains_the_text_behind_it(between: str) -> None:
    first, second = f"kx7{between}hush-of-first", f"hush{between}of-second"
    mask_secret(first)
    mask_secret(second)
    text = f"x {first}{between}{second} y"

    assert [text[start:end] for start, end in hidden_spans(text)] == [first, second]


def test_masks_side_by_side_and_text_like_a_mask_are_found() -> None:
    mask_secret("other-secret")
    given = app({"X": "a hush-variableother-secret *** b hush-variable", "Y": "hush-variable" * 3000})

    found = hidden_values(given.roles, {}, places_of(given))

    assert {"hush-variableother-secret", "hush-variable"} <= found.keys()


KEY = "-----BEGIN KEY-----\nMIIEvhush\nline-two\n-----END KEY-----\n"


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (KEY, ["MIIEvhush", "line-two"]),
        (KEY.replace("\n", "\r\n"), ["MIIEvhush", "line-two"]),
        (json.dumps({"private_key": KEY}), ["MIIEvhush", "line-two", repr(json.dumps({"private_key": KEY}))[1:-1]]),
        ("hunter$$2hunter", ["hunter$2hunter", "hunter$$2hunter"]),
        ('it\'s "quoted" \\ ä', [repr('it\'s "quoted" \\ ä')[1:-1], json.dumps('it\'s "quoted" \\ ä')[1:-1]]),
    ],
)
@pytest.mark.parametrize("how", ["name", "template", "argument", "copied"])
def test_values_are_masked_as_a_program_prints_them(value: str, printed: list[str], how: str) -> None:
    """Line by line, after macros were replaced, and as `repr` and JSON have them."""
    copied = {}
    if how == "template":
        mask_secret(value)
        given = app({"X": value})
    elif how == "argument":
        given = app(args=["--password", value])
    elif how == "copied":
        given, copied = app(), {"main": {"A_TOKEN": value}}
    else:
        given = app({"SSH_PRIVATE_KEY": value})

    found = hidden_values(given.roles, copied, [*places_of(given), *places_in_copied(copied)])

    assert {*printed} <= found.keys()


def test_the_masks_of_one_app_are_bounded() -> None:
    """Airflow compiles all masks of the process again for each new one."""
    many = [f"secret-{number:04}" for number in range(1000)]
    long = ["x" * 20_000, "y" * 20_000]

    kept, left_out = chosen([*long, *many])
    assert (len(kept), left_out) == (128, 874)
    assert {*kept} <= {*many}
    assert chosen(long) == ([long[0]], 1)

    warned: list[str] = []
    register(many, lambda text, *args: warned.append(text % args))
    assert "872 of 1000" in warned[0]


BESIDE_TEMPLATES = {
    "behind a block": "{%- if ds -%}\n password: hush-of-author\n{% endif %}",
    "behind a comment": "{# c #}password: hush-of-author",
    "before a block": "export DB_PASS=hush-of-author{% if ds %} DEBUG=1{% endif %}",
    "before a value": "password: hush-of-author{{ ds }}",
}


@pytest.mark.parametrize("name", BESIDE_TEMPLATES)
def test_a_secret_beside_a_template_is_registered_as_written(name: str) -> None:
    register_written([BESIDE_TEMPLATES[name]])

    assert redact("it is hush-of-author here, DEBUG=1") == "it is *** here, DEBUG=1"


@pytest.mark.parametrize("how", ["variable", "raw"])
def test_a_run_cannot_push_out_the_secrets_of_an_author(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Its texts may have any number of shorter ones."""
    monkeypatch.setitem(RUN, "conf", {"text": "see " + " ".join(f"pwd=a{number:03}x" for number in range(200))})
    args = ["-c", "echo connected with $DB_PASS", "sh", "{{ dag_run.conf['text'] }}"]
    env = {"DB_PASS": "hush-of-author"}
    if how == "raw":
        # `{#` and `}}` are text there.
        code = "{% raw %}n=${#HOME}; m='}}'{% endraw %}; export DB_PASS=hush-of-author; " + args[1]
        args, env = ["-c", f"{code}; true {args[-1]}"], {}
    with a_dag():
        app = AppDef("app", [Role("main", "", entrypoint="sh", args=args, env=env)])
        task = LaunchAppOperator(task_id="t", app=app)
    ran = run_task(task, FakeExecutionApi())

    assert ran.state == "success", ran.error
    assert ran.logged("secrets of the app are not masked")
    assert any("connected with ***" in str(redact(line)) for line in ran.lines)


MANY = "see " + " ".join(f"pwd=a{number:03}x" for number in range(200))
MANY_NAMED = {f"a{number:03}_token": f"v{number:04}" for number in range(200)}
URL = "postgres://u:hush-of-author@h/d"


@pytest.mark.parametrize(
    "how",
    [
        "component",
        "named",
        "function",
        "mapped function",
        "position",
        "variable",
        "variable of an app",
        "argument of an app",
    ],
)
def test_a_run_cannot_push_out_the_arguments_of_an_author(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Whether the secret is the whole value of a name, or a part of a text."""
    monkeypatch.setitem(RUN, "conf", {"text": MANY})
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [MANY] if how == "mapped function" else MANY_NAMED
    monkeypatch.setenv("AIRFLOW_VAR_PROD_DB", "hush-of-author")
    with a_dag():

        @sdk_task.launch_python()
        def named(db_pass: str, more: Any) -> None:
            print("connected with", db_pass)  # noqa: T201 - what the task shows

        @sdk_task.launch_python()
        def show(url: str, more: Any) -> None:
            print("connected with", url)  # noqa: T201 - what the task shows

        given = BaseOperator(task_id="make").output
        if how == "component":
            args: Any = ["connected with $0", "{{ dag_run.conf['text'] }}", URL]
            made: Any = LaunchAppOperator(task_id="t", component="utils.echo", component_args={"msg": " ".join(args)})
        elif how == "named":
            env = {"DB_PASS": "hush-of-author", "WHAT": "{{ dag_run.conf['text'] }}"}
            role = Role("main", "", entrypoint="sh", args=["-c", "echo connected with $DB_PASS"], env=env)
            made = LaunchAppOperator(task_id="t", app=AppDef("app", [role]))
        elif how == "variable of an app":
            env = {"DB_PASS": "{{ var.value.prod_db }}", "WHAT": "{{ dag_run.conf['text'] }}"}
            role = Role("main", "", entrypoint="sh", args=["-c", "echo connected with $DB_PASS"], env=env)
            made = LaunchAppOperator(task_id="t", app=AppDef("app", [role]))
        elif how == "argument of an app":
            args = ["-c", "echo connected with $2", "x", "--password", "{{ var.value.prod_db }}"]
            roles = [Role("main", "", entrypoint="sh", args=args), Role("two", "", entrypoint="true", env=given)]
            made = LaunchAppOperator(task_id="t", app=AppDef("app", roles))
        elif how in {"position", "variable"}:
            word = "hush-of-author" if how == "position" else "{{ var.value.prod_db }}"
            made = named(word, given).operator  # type: ignore[attr-defined]
        elif how == "function":
            made = show(URL, given).operator  # type: ignore[attr-defined]
        else:
            made = show.partial(url=URL).expand(more=given).operator  # type: ignore[attr-defined]
    ran = run_task(made, api, map_index=0 if how.startswith("mapped") else -1)

    assert ran.state == "success", ran.error
    shown = [str(redact(line)) for line in ran.lines]
    assert any("connected with" in line for line in shown)
    assert not any("hush-of-author" in line for line in shown)
    assert "hush-of-author" not in str(redact(api.rendered))


@pytest.mark.parametrize("kind", ["app", "function"])
def test_the_code_of_a_template_hides_no_word(kind: str) -> None:
    api = FakeExecutionApi()
    api.xcoms["prep", "dataset"] = "s3://bucket/x"
    template = "{{ ti.xcom_pull(task_ids='prep', key='dataset', map_indexes=-1) }}"
    with a_dag():
        if kind == "app":
            role = Role("main", "", entrypoint="echo", args=["loading the dataset from", template])
            made: Any = LaunchAppOperator(task_id="t", app=AppDef("app", [role]))
        else:

            @sdk_task.launch_python()
            def show(place: str) -> None:
                print("loading the dataset from", place)  # noqa: T201 - what the task shows

            made = show(template).operator  # type: ignore[attr-defined]
    ran = run_task(made, api)

    assert any("loading the dataset from s3://bucket/x" in str(redact(line)) for line in ran.lines), ran.error


NAMES_OF_SECRETS: dict[str, Any] = {
    "env_secrets": {"HF_TOKEN": "name-1a2b/token"},
    "secrets": {"HF_TOKEN": "name-1a2b"},
    "image_pull_secrets": ["name-1a2b"],
    "overlay": {"secret": {"secretName": "name-1a2b"}},
}


@pytest.mark.parametrize("option", NAMES_OF_SECRETS)
def test_names_of_secrets_in_options_are_shown(option: str) -> None:
    """An error may have them."""
    with a_dag():
        app = AppDef("a", [Role("m", "i", entrypoint="x")])
        LaunchAppOperator(task_id="t", app=app, cfg={option: NAMES_OF_SECRETS[option]})._note_written()

    assert redact("secret name-1a2b/token not found: name-1a2b") == "secret name-1a2b/token not found: name-1a2b"


@pytest.mark.parametrize("value", ["$ecret9word", "${ecret9word}"])
def test_a_value_like_a_reference_is_a_secret(value: str) -> None:
    """A shell would replace it, but an argument of a function is used as it is."""
    assert value in hidden_in_arguments({"db_password": value})


@pytest.mark.parametrize("text", ["HF_TOKEN={{ ds }} train.py", "--token {{ ds }} train.py"])
def test_the_word_behind_a_template_is_shown(text: str) -> None:
    with a_dag():
        role = Role("main", "", entrypoint="sh", args=["-c", "echo starting train.py", text])
        made = LaunchAppOperator(task_id="t", app=AppDef("app", [role]))
    reset_secrets_masker()
    made._note_written()

    assert redact("starting train.py") == "starting train.py"


def test_whole_values_come_before_their_lines_and_those_before_parts_of_texts() -> None:
    lines = "\n".join(f"{number:05}" for number in range(200))
    found = hidden_values(app({"A_TOKEN": lines, "DB_PASS": "p" * 40, "X": "pwd=hush1 pwd=hush2"}).roles, {}, ())
    kept, _ = chosen(found)

    assert kept[:2] == ["p" * 40, lines]
    assert {"00000", "00100"} <= {*kept}
    assert not {"hush1", "hush2"} & {*kept}
    assert chosen(hidden_values(app({"DB_PASS": "x" * 40_000, "X": "pwd=hush1"}).roles, {}, ()))[0] == ["hush1"]


ADDRESS = "https://me:hush-1@127.0.0.1:9/o.yaml?token=hush-2&X-Amz-Signature=hush-3"
WITH_ADDRESS: dict[str, Any] = {
    "overlay": {"metadata": {"docker": ADDRESS}},
    "image": {"image": "me:hush-1@registry.example/i:1"},
    "image address": {"image": "https://me:hush-1@registry.example/i:1"},
    "workspace": {"workspace": Workspace({"/x/https://me:hush-1@host": ""})},
}


@pytest.mark.parametrize("name", [*WITH_ADDRESS])
@pytest.mark.parametrize("how", ["written", "of a run", "function"])
def test_no_error_shows_the_password_of_an_address(how: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = {"conn_type": "launch_docker", "extra": {"host": "tcp://127.0.0.1:9"}}
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", json.dumps(conn))
    given = AppDef("app", [Role("main", **{"image": "i", "entrypoint": "x", **WITH_ADDRESS[name]})])
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = app_to_dict(given)
    with a_dag():
        source: Any = given
        if how != "written":
            source = BaseOperator(task_id="make").output if how == "of a run" else lambda context, jinja_env: given
        task = LaunchAppOperator(task_id="t", app=source, launch_conn_id="nowhere", unavailable_for_s=0)
    ran = run_task(task, api)

    assert ran.state == "failed"
    assert "hush" not in str([str(redact(line)) for line in ran.lines])
    assert "hush" not in str(redact(str(ran.error)))


def test_an_error_of_a_dag_file_shows_no_password_of_an_address() -> None:
    """Airflow shows it to all who may see DAGs, and does not mask it."""
    app = AppDef("app", [Role("main", "", entrypoint="x")])
    with a_dag(), pytest.raises(AirflowFailException, match=r"//me:\*\*\*@host") as raised:
        LaunchAppOperator(task_id="t", app=app, workspace="s3://me:hush-1@host/x")

    assert "hush" not in str(raised.value)


def test_secrets_in_causes_of_an_error_are_masked() -> None:
    error = SchedulerUnavailableError("no answer from //x?password=hush-2")
    error.__cause__ = OSError("cannot open https://me:hush-1@host/x, tried /me:hush-1@host/x")
    with pytest.raises(SchedulerUnavailableError), final_errors():
        raise error

    assert "hush" not in str(redact(f"{error} {error.__cause__}"))


class TestRequest:
    """A shown request: masks apply to values, and not to their formatted text."""

    @pytest.mark.parametrize(
        "secret", ['hu"sh', "hu'sh'", "hu\\sh", "hu\nsh\nhush", '{"private": "hush1\\nhush2"}', "hush$"]
    )
    @pytest.mark.parametrize("backend", ["local", "docker", "kubernetes", "aws_batch", "slurm"])
    def test_a_secret_is_masked_whatever_letters_it_has(self, secret: str, backend: str) -> None:
        """JSON keys and PEM files have quotes, backslashes and ends of lines."""
        mask_secret(secret)
        given = app({"GCP_JSON": f"a {secret}"}, ["x", secret, f"b={secret}"])
        info = dryrun(given, backend)

        text = shown_request(info)

        assert "hu" not in text
        assert text.count("***") >= 3

    def test_a_secret_that_is_a_name_is_masked(self) -> None:
        text = shown_request(AppDryRunInfo({"hush-variable": "a value"}, str))

        assert "hush" not in text
        assert "a value" in text

    def test_a_request_of_others_that_cannot_be_copied_is_not_shown(self) -> None:
        @dataclasses.dataclass
        class Odd:
            x: str

            def __post_init__(self) -> None:
                if self.x == "***":
                    raise OSError(self.x)

        text = shown_request(AppDryRunInfo(Odd("hush-variable"), str))

        assert "hush" not in text
        assert "OSError" in text


def dryrun(given: AppDef, backend: str) -> AppDryRunInfo[Any]:
    """Return the request that a scheduler would be sent, without one."""
    if backend == "local":
        return AppDryRunInfo(local.build_request(given, LocalOpts(), "app-1", {}, []), local.format_request)
    if backend == "docker":
        given.roles[0].image = "busybox"
        return AppDryRunInfo(docker.build_request(given, DockerOpts(), "app-1", {}, []), docker.format_request)
    if backend == "kubernetes":
        given.roles[0].image = "busybox"
        return AppDryRunInfo(kubernetes.build_request(given, KubernetesOpts(), "app-1", {}), format_kubernetes)
    if backend == "aws_batch":
        return AppDryRunInfo(
            aws_batch.build_request(given, AwsBatchOpts(queue="q"), "app-1", {}), aws_batch.format_request
        )
    return AppDryRunInfo(slurm.build_request(given, SlurmOpts(), "app-1", {}), slurm.format_request)


@pytest.mark.parametrize("how", ["dict", "xcom", "AppDef"])
def test_the_rendered_app_shows_no_more_than_the_request(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Airflow stores it before the task starts, and masks only its own names."""
    monkeypatch.setenv("AIRFLOW_VAR_DB_PASSWORD", 'hush"quoted')
    env = {
        "DB_PASS": "hush-1",
        "DATABASE_URL": "postgres://me:hush-2@db/x",
        "KEY_1": "-----BEGIN-----\nhush-line\n-----END-----",
        "X": "{{ var.value.db_password }}" if how != "xcom" else "1",
        "SAS": "hush-3",
    }
    args = ["-c", 'echo $DB_PASS; echo "$KEY_1"', "--password", "hush-4", "-H", "Authorization: Bearer hush-5"]
    role = {"name": "main", "image": "", "entrypoint": "sh", "args": args, "env": env}
    given: Any = {"name": "app", "roles": [role]}
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = given
    first: list[str] = []
    api.on_call = lambda method, parts, body: first.append(json.dumps(body)) if parts[-1] == "rtif" else None
    with a_dag():
        if how == "AppDef":
            given = AppDef("app", [Role(**role)])
        elif how == "xcom":
            given = BaseOperator(task_id="make").output
        task = LaunchAppOperator(task_id="t", app=given)
    ran = run_task(task, api)

    assert ran.state == "success", ran.error
    assert len(first) >= 2
    assert "hush" not in str(first)
    assert "hush" not in str(api.rendered)
    # As Airflow writes the lines of the log.
    assert "hush" not in str([str(redact(line)) for line in ran.lines])
    assert "***" in api.rendered["request"]


ROLE: dict[str, Any] = {
    "name": "main", "image": "", "entrypoint": "true", "env": {"DB_PASS": "hush-1"}, "args": ["--password", "hush-2"],
}  # fmt: skip
APPS: dict[str, Any] = {
    "valid": {"name": "app", "roles": [ROLE]},
    "unknown field": {"name": "app", "roles": [{**ROLE, "db_pass": "hush-3"}]},
    "wrong type": {"name": "app", "roles": [{**ROLE, "num_replicas": "many"}]},
    "nested": {"app": {"name": "app", "roles": [ROLE]}},
    "list": [{"name": "app", "roles": [ROLE]}],
    "text": json.dumps({"name": "app", "roles": [ROLE]}),
}


@pytest.mark.parametrize("name", [*APPS])
@pytest.mark.parametrize("how", ["xcom", "function"])
def test_a_rendered_app_shows_no_secret_whatever_a_task_or_a_function_returns(how: str, name: str) -> None:
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = APPS[name]
    stored: list[str] = []
    api.on_call = lambda method, parts, body: stored.append(json.dumps(body)) if parts[-1] == "rtif" else None
    with a_dag():
        app = BaseOperator(task_id="make").output if how == "xcom" else lambda context, jinja_env: APPS[name]
        task = LaunchAppOperator(task_id="t", app=app)
    ran = run_task(task, api)

    assert ran.state == ("success" if name == "valid" else "failed"), ran.error
    assert stored
    assert "hush" not in str(stored)


URL = "postgres://me:hush-9012@db/x"


def made_by_component(text: str, env: dict[str, str]) -> AppDef:
    return AppDef("app", [Role("main", "", entrypoint="sh", args=["-c", text], env=env)])


@pytest.mark.parametrize("how", ["list", "mapping", "function", "options", "mapped"])
def test_rendered_arguments_show_no_secret_while_the_task_runs(how: str) -> None:
    """Airflow stores them before the task starts; a deferred one may take days."""
    text, env = "true --token hush-1234", {"SAS": "hush-5678", "URL": "postgres://me:hush-9012@db/x"}
    api = FakeExecutionApi()
    stored: list[str] = []
    api.on_call = lambda method, parts, body: stored.append(json.dumps(body)) if parts[-1] == "rtif" else None
    with a_dag() as dag:
        if how == "list":
            args = ["true", "--token=hush-1234", "--password", "hush-5678"]
            made: Any = LaunchAppOperator(task_id="t", component="utils.sh", component_args=args)
        elif how == "mapping":
            component = f"{__name__}:made_by_component"
            made = LaunchAppOperator(task_id="t", component=component, component_args={"text": text, "env": env})
        elif how == "options":
            given = AppDef("app", [Role("main", "", entrypoint="true")])
            made = LaunchAppOperator(task_id="t", app=given, cfg={"copy_env": ["TOKEN=hush-1234"]})
        else:
            decorated = sdk_task.launch(task_id="t")(made_by_component)
            if how == "mapped":
                decorated.partial(text=text).expand(env=[env])
            else:
                decorated(text, env=env)
            made = dag.get_task("t")
    ran = run_task(made, api, **({"map_index": 0} if how == "mapped" else {}))

    assert ran.state == "success", ran.error
    assert len(stored) >= 2
    assert "***" in stored[0]
    assert "hush" not in str(stored)


OF_PODS: dict[str, Any] = {
    "variables": {"env": [{"name": "DB_PASSWORD", "value": "hush-1"}]},
    "labels": {"labels": {"db_pass": "hush-1"}, "annotations": {"api-token": "hush-2"}},
    "an overlay": {"overlay": {"Labels": {"db_pass": "hush-1"}, "Env": ["PWD_X=hush-2"]}},
}


@pytest.mark.parametrize("name", [*OF_PODS])
@pytest.mark.parametrize("how", ["options", "argument"])
def test_options_and_arguments_show_no_more_than_the_request(how: str, name: str) -> None:
    api = FakeExecutionApi()
    stored: list[str] = []
    api.on_call = lambda method, parts, body: stored.append(json.dumps(body)) if parts[-1] == "rtif" else None
    with a_dag():
        if how == "options":
            given = AppDef("app", [Role("main", "", entrypoint="true")])
            task = LaunchAppOperator(task_id="t", app=given, cfg=OF_PODS[name])
        else:
            arguments = {"text": "true", "env": {}, "pod": OF_PODS[name]}
            task = LaunchAppOperator(task_id="t", component=f"{__name__}:made_with_pod", component_args=arguments)
    run_task(task, api)

    assert stored
    assert "***" in stored[0]
    assert "hush" not in str(stored)


def made_with_pod(text: str, env: dict[str, str], pod: object) -> AppDef:
    return made_by_component(text, env)


def made_to_print(db_pass: str, label: str) -> AppDef:
    return AppDef("app", [Role("main", "/", entrypoint="echo", args=["printed", db_pass, label])])


def printed(db_pass, label="shown-label", *, token="hush-default"):
    print("printed", db_pass, label, token)  # noqa: T201 - runs in a replica


@pytest.mark.parametrize("how", ["component", "by name", "by position", "of a run"])
def test_arguments_with_secret_names_are_masked_where_a_program_prints_them(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RUN, "conf", {"pass": "hush-given"})
    api = FakeExecutionApi()
    stored: list[str] = []
    api.on_call = lambda method, parts, body: stored.append(json.dumps(body)) if parts[-1] == "rtif" else None
    with a_dag() as dag:
        if how == "component":
            arguments = {"db_pass": "hush-given", "label": "shown-label"}
            LaunchAppOperator(task_id="t", component=f"{__name__}:made_to_print", component_args=arguments)
        elif how == "by position":
            sdk_task.launch_python(task_id="t")(printed)("hush-given")
        else:
            text = "hush-given" if how == "by name" else "{{ dag_run.conf['pass'] }}"
            sdk_task.launch_python(task_id="t")(printed)(db_pass=text)
    ran = run_task(dag.get_task("t"), api)

    assert ran.state == "success", ran.error
    lines = [str(redact(line)) for line in ran.lines]
    assert any("printed *** shown-label" in line for line in lines)
    assert "hush" not in str(lines)
    assert "hush" not in str(stored)


def test_arguments_of_functions_are_masked_by_a_triggerer_too() -> None:
    """It has only the app and the locations of the secrets in it."""
    with a_dag() as dag:
        sdk_task.launch_python(task_id="t")(printed)("hush-given $1")
    app = dag.get_task("t")._rendered_app()
    places = checked_places(json.loads(json.dumps(places_of(app))))
    assert places is not None
    reset_secrets_masker()

    assert {"hush-given $1", "hush-default"} <= hidden_values(app.roles, {}, places).keys()


@dataclasses.dataclass
class Database:
    url: str


@pytest.mark.parametrize(
    "value",
    [Database(URL), {URL}, {URL: 1}, [Database(URL)], {"urls": UserList([URL])}],
    ids=["dataclass", "set", "key", "list", "sequence"],
)
def test_objects_that_airflow_stores_as_text_show_no_secret(value: object) -> None:
    assert "hush-9012" in hidden_in_arguments(value)


def test_a_parameter_whose_name_has_the_word_token_is_not_a_secret() -> None:
    assert hidden_in_arguments({"tokenizer": "bert-base", "key": ["images"], "config": {"tokens": "words"}}) == {}


@pytest.mark.parametrize("mark", ["{{", "{%", "{#", "{{ x }} {{"])
def test_templates_without_an_end_cost_little(mark: str) -> None:
    began = time.process_time()
    register_written([mark * 100_000])

    assert time.process_time() - began < 5


def test_a_value_of_many_lines_costs_little() -> None:
    """A program may have replaced the record of its app, from which the values are read."""
    lines = "\n".join(f"{number:06}-line" for number in range(300_000))
    found = forms_of([lines, "short-secret"])

    assert "short-secret" in found
    assert "000001-line" in found
    assert sum(map(len, found)) < 2_000_000
