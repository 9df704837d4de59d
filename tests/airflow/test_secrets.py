"""Locations of secrets, which a worker passes instead of values, and the values found there."""

from __future__ import annotations

import dataclasses
import json
from collections import UserList
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk import task as sdk_task
from airflow.sdk.log import mask_secret, redact

from airflow_provider_launch._task.secrets import (
    chosen,
    forms_of,
    hidden_in_arguments,
    hidden_values,
    places_of,
    register,
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
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from tests.airflow.support import FakeExecutionApi, a_dag, run_task


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
    places = json.loads(json.dumps(places_of(given, copied)))

    assert not any(value in json.dumps(places) for value in values)
    assert hidden_values(given.roles, copied, places) == values


@pytest.mark.parametrize("flag", ["--token=", "--token ", "--api-key '"], ids=["equals", "blank", "quoted"])
def test_the_value_of_a_flag_in_a_command_is_masked(flag: str) -> None:
    given = app(args=["-c", f"login {flag}hush-variable' && train"])

    assert "hush-variable" in hidden_values(given.roles, {}, [])


def test_an_app_without_secrets_has_no_locations() -> None:
    """Then a trigger asks nothing more."""
    assert places_of(app({"X": "1", "LAUNCH": "2"}, ["-v"]), {"main": {"PATH": "/bin"}}) == []


def test_locations_of_another_app_are_ignored() -> None:
    """The app of an earlier try may be from before a change of the DAG."""
    places = places_of(app({"X": "hush-variable"}, ["a", "hush-variable"]), {"main": {"A_TOKEN": "long-enough"}})

    assert hidden_values(app({"Y": "something else"}).roles, {}, places) == set()


def test_masks_side_by_side_and_text_like_a_mask_are_found() -> None:
    mask_secret("other-secret")
    given = app({"X": "a hush-variableother-secret *** b hush-variable", "Y": "hush-variable" * 3000})

    found = hidden_values(given.roles, {}, places_of(given, {}))

    assert {"hush-variableother-secret", "hush-variable"} <= found


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

    found = hidden_values(given.roles, copied, places_of(given, copied))

    assert {*printed} <= found


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
    assert hidden_in_arguments({"tokenizer": "bert-base", "key": ["images"], "config": {"tokens": "words"}}) == set()


def test_a_value_of_many_lines_costs_little() -> None:
    """A program may have replaced the record of its app, from which the values are read."""
    lines = "\n".join(f"{number:06}-line" for number in range(300_000))
    found = forms_of([lines, "short-secret"])

    assert "short-secret" in found
    assert "000001-line" in found
    assert sum(map(len, found)) < 2_000_000
