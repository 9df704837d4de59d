"""Secrets of an app that another process has launched: a worker that resumes or adopts it masks them, too."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseHook
from airflow.sdk import task as sdk_task
from airflow.sdk._shared.secrets_masker import reset_secrets_masker
from airflow.sdk.log import redact

from airflow_provider_launch._task import places
from airflow_provider_launch._task.places import Place, checked_places
from airflow_provider_launch._task.progress import FollowProgress
from airflow_provider_launch._task.task_log import TaskLog
from airflow_provider_launch.operators import _run
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.pipelines import dag_from_file
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.errors import AppUnavailableError, SchedulerUnavailableError
from tests.airflow import support
from tests.airflow.support import FakeExecutionApi, a_dag, launch, run_task, run_to_end, sh
from tests.airflow.versions import serialize

pytestmark = [pytest.mark.engine("local"), pytest.mark.usefixtures("no_masks")]

PIPELINE = """
executor: local
dag:
  start_at: one
  steps:
    one: {type: task, command_type: shell, command: 'sleep 1; echo with $WHERE', secrets: {WHERE: place}, next: success}
"""


def connected() -> AppDef:
    """An app with the password of a connection as an argument without a name."""
    password = BaseHook.get_connection("db").password
    return AppDef("app", [Role("main", "", entrypoint="sh", args=["-c", "sleep 1; echo with $0", str(password)])])


@pytest.fixture(autouse=True)
def deferring(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DB", "postgres://me:hush-fetched@h/d")
    monkeypatch.setenv("AIRFLOW_VAR_PLACE", "hush-fetched")
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    monkeypatch.setenv("AIRFLOW__LAUNCH__DEFER_AFTER_S", "0")


@pytest.fixture
def own_masks(monkeypatch) -> None:
    """Let the triggerer have masks of its own, as another process has."""

    def run_trigger(trigger: Any, run: Any = support.run_trigger) -> Any:
        reset_secrets_masker()
        return run(trigger)

    monkeypatch.setattr(support, "run_trigger", run_trigger)


def component_task() -> LaunchAppOperator:
    with a_dag():
        return LaunchAppOperator(task_id="t", component=f"{__name__}:connected", component_args={})


def pipeline_task(folder: Path) -> Any:
    (folder / "p.yaml").write_text(PIPELINE)
    return dag_from_file(folder / "p.yaml", "test_dag").get_task("one")


def shown(ran: support.Ran) -> str:
    return "\n".join(str(redact(line)) for line in ran.lines)


def test_a_task_that_resumes_shows_no_fetched_value(monkeypatch) -> None:
    """It is another process than the one that has fetched the value."""
    api, fields = FakeExecutionApi(), []
    before = support.run_task

    def in_new_process(*args: Any, **kwargs: Any) -> support.Ran:
        reset_secrets_masker()
        ran = before(*args, **kwargs)
        fields.append(str(redact(api.rendered)))
        return ran

    monkeypatch.setattr(support, "run_task", in_new_process)
    ran, (event,) = run_to_end(component_task(), api)

    assert ran.error is None
    assert "with ***" in shown(ran)
    assert "hush-fetched" not in shown(ran)
    assert "echo with" in fields[-1]
    assert "hush-fetched" not in "".join(fields)
    assert "hush-fetched" not in json.dumps(event)


@pytest.mark.usefixtures("own_masks")
@pytest.mark.parametrize("is_deferrable", [False, True], ids=["worker", "triggerer"])
@pytest.mark.parametrize("secret", ["Xk9$Qz7pw", "Xk9$$Qz7", "Xk9${Qz7", 'Xk9"ad\\m$Qz7'])
@pytest.mark.parametrize("field", ["variable", "argument", "address", "pipeline"])
def test_a_fetched_value_with_a_dollar_is_masked(
    tmp_path, monkeypatch, field: str, secret: str, is_deferrable: bool
) -> None:
    """An app has it with each `$` twice, so that it stands for itself."""
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps({"conn_type": "postgres", "password": secret}))
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", str(is_deferrable))
    value = "{{ conn.db.password }}"
    digest = hashlib.sha256(secret.encode()).hexdigest()
    code = (
        "import hashlib, os, sys, time; time.sleep(1); at = os.environ.get('WHERE') or sys.argv[1]; "
        f"part = at[at.index('Xk9'):][:{len(secret)}]; assert hashlib.sha256(part.encode()).hexdigest() == '{digest}'; "
        "print('with', at); print(f'as {at!r}')"
    )
    if field == "pipeline":
        role = {"name": "r", "image": "", "entrypoint": sys.executable, "args": ["-c", code], "env": {"WHERE": value}}
        app = {"name": "a", "roles": [role]}
        step = json.dumps({"type": "task", "command_type": "app", "app": app, "next": "success"})
        (tmp_path / "p.yaml").write_text(f"executor: local\ndag:\n  start_at: one\n  steps:\n    one: {step}\n")
        task = dag_from_file(tmp_path / "p.yaml", "test_dag").get_task("one")
    else:
        text = f"postgres://me:{value}@h" if field == "address" else value
        env = {} if field == "argument" else {"WHERE": text}
        args = ["-c", code, *([text] if field == "argument" else [])]
        with a_dag():
            role = Role("main", "", entrypoint=sys.executable, args=args, env=env)
            task = LaunchAppOperator(task_id="t", app=AppDef("app", [role]))
    ran, _ = run_to_end(task, FakeExecutionApi())

    assert ran.error is None
    assert "with " in "".join(ran.lines)
    assert "Qz7" not in "".join(ran.lines)


@pytest.mark.parametrize("how", ["component", "pipeline"])
def test_a_task_whose_trigger_has_failed_masks_the_same_lines(tmp_path, how: str) -> None:
    api = FakeExecutionApi()
    task = component_task() if how == "component" else pipeline_task(tmp_path)
    run_task(task, api)
    reset_secrets_masker()
    error = {"error": "Trigger failure", "traceback": ["boom"]}
    api.resume = {"next_method": "__fail__", "next_kwargs": serialize(error)}
    ran = run_task(task, api)

    assert ran.error is None
    assert "with ***" in shown(ran)
    assert "hush-fetched" not in shown(ran)


def test_the_secrets_are_read_again_after_an_outage(monkeypatch) -> None:
    """Otherwise all lines that follow would be shown as they are."""
    failures = [SchedulerUnavailableError("away"), SchedulerUnavailableError("away")]
    before, seen = _run.kept_values, []

    def kept_values(*args: Any) -> dict[str, int]:
        seen.append(args)
        if failures:
            raise failures.pop()
        return before(*args)

    monkeypatch.setattr(_run, "kept_values", kept_values)
    api, task = FakeExecutionApi(), component_task()
    run_task(task, api)
    reset_secrets_masker()
    api.resume = {"next_method": "__fail__", "next_kwargs": serialize({"error": "Trigger failure"})}
    ran = run_task(task, api)

    assert len(seen) == 3
    assert "with ***" in shown(ran)


def test_a_damaged_request_delays_no_task(monkeypatch) -> None:
    def damaged(_native: object) -> None:
        raise AppUnavailableError("the stored request is damaged")

    monkeypatch.setattr(places, "copied_variables", damaged)
    task = component_task()
    task.unavailable_for_s = 600
    ran, _ = run_to_end(task, FakeExecutionApi())

    assert ran.error is None
    assert not ran.logged("does not answer")


@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded", "intended"])
@pytest.mark.parametrize("is_named", [True, False], ids=["by name", "fetched"])
def test_the_next_try_masks_the_values_of_the_app_that_it_adopts(
    tmp_path, monkeypatch, is_named: bool, is_recorded: bool
) -> None:
    """They may have changed since the launch."""
    api, go = FakeExecutionApi(retries=3), tmp_path / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.1; done; echo with $API_TOKEN$OTHER"
    tries: list[int] = []

    def dies(method: str, parts: Any, body: Any) -> None:
        is_handle = method == "POST" and parts[-1] == "handle"
        is_record = method == "PUT" and parts[-1] == "launch" and body["value"]["state"] == "scheduled"
        if len(tries) == 1 and (is_handle if is_recorded else is_record):
            raise SystemExit("the worker died")
        if len(tries) == 2 and is_record:
            go.touch()  # the app ends after the second try has found it

    api.on_call = dies
    lines = ""
    for number, value in ((1, "hush-fetched"), (2, "second-one")):
        reset_secrets_masker()
        tries.append(number)
        monkeypatch.setenv("AIRFLOW_CONN_DB", f"postgres://me:{value}@h/d")
        env = {"API_TOKEN": value} if is_named else {"OTHER": "{{ conn.db.password }}"}
        task = launch(sh(script, env=env), on_kill="leave", deferrable=False)
        with contextlib.suppress(SystemExit):
            lines = shown(run_task(task, api, try_number=number))

    assert ("continuing with app" if is_recorded else "from another version of the DAG; following it") in lines
    assert "with ***" in lines
    assert "hush-fetched" not in lines


@pytest.mark.parametrize("is_named", [True, False], ids=["variable", "text"])
@pytest.mark.parametrize("given", ["github_pat_", "with gith", "pat_11A", "github_pat_11ABCsecretrest and"])
def test_a_run_does_not_show_the_rest_of_a_secret(monkeypatch, is_named: bool, given: str) -> None:
    """Airflow replaces the first of its masks that fits, so that one which overlaps the secret would come first."""
    monkeypatch.setitem(support.RUN, "conf", {"text": given if is_named else f"see token='{given}'"})
    env = {"GITHUB_TOKEN": "github_pat_11ABCsecretrest"}
    template = "{{ dag_run.conf['text'] }}"
    env, args = ({**env, "OTHER_TOKEN": template}, []) if is_named else (env, [template])
    with a_dag():
        args = ["-c", "echo with $GITHUB_TOKEN and more; exit 3", "sh", *args]
        app = AppDef("app", [Role("main", "", entrypoint="sh", args=args, env=env)])
        task = LaunchAppOperator(task_id="t", app=app, deferrable=False)
    ran = run_task(task, FakeExecutionApi())

    # Not only for the order that Airflow has today.
    assert "[main/0] ***" in "\n".join(ran.lines).replace("with ***", "***")
    assert "secretrest" not in f"{ran.lines}{ran.error}"


_HOW = ["app", "function", "pipeline"]


def many_tokens() -> dict[str, str]:
    """Short values, one of which is in the secret, and more than can be masked."""
    return {f"p{number}_token": f"word{number}" for number in range(140)} | {"p_token": "admin"}


@pytest.mark.usefixtures("own_masks")
@pytest.mark.parametrize("is_deferrable", [False, True], ids=["worker", "triggerer"])
@pytest.mark.parametrize("how", [*_HOW, "fetched", "nested", "fetched text", "many lines", "quoted", "flag"])
def test_no_number_of_values_of_a_run_shows_a_secret_of_the_file(tmp_path, monkeypatch, how, is_deferrable) -> None:
    secret, base = "Xk9-admin-Qz7-of-the-author", {"deferrable": is_deferrable}
    secret = 'Xk9$admin-"ä-Qz7' if how == "quoted" else secret
    monkeypatch.setenv("AIRFLOW_CONN_DB", f"postgres://me:{secret}@h/d")
    monkeypatch.setenv("AIRFLOW_VAR_PROD_DB", secret)  # a name that Airflow does not mask
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", str(is_deferrable))
    monkeypatch.setitem(support.RUN, "conf", {"given": many_tokens(), **(many_tokens() if how == "pipeline" else {})})
    if how == "pipeline":
        step = "{type: task, command_type: shell, command: 'sleep 1; echo with $DB_PASSWORD', next: success}"
        text = f"executor: {{type: local, config: {{env: {{DB_PASSWORD: {secret}}}}}}}\n"
        (tmp_path / "p.yaml").write_text(f"{text}dag: {{start_at: one, steps: {{one: {step}}}}}\n")
        task = dag_from_file(tmp_path / "p.yaml", "test_dag").get_task("one")
    elif how == "app":
        env = {"DB_PASSWORD": secret} | {name: f"{{{{ dag_run.conf['given']['{name}'] }}}}" for name in many_tokens()}
        task = launch(sh("sleep 1; echo with $DB_PASSWORD", env=env), **base)
    elif how == "flag":
        tokens = "API_TOKENS={{ dag_run.conf['given'].values() | list | tojson }}"
        args = ["-c", "sleep 1; echo with $1", "--password", "{{ var.value.prod_db }}", tokens]
        with a_dag():
            app = AppDef("app", [Role("main", "", entrypoint="sh", args=args)])
            task = LaunchAppOperator(task_id="t", app=app, **base)
    elif how in {"fetched text", "many lines"}:
        # A list in one text of a run has any number of secrets.
        lines = "\n".join(f"line {number} of a key" for number in range(50))
        name = "WHERE" if how == "fetched text" else "DB_PASSWORD"
        keys = {} if how == "fetched text" else {"A_PRIVATE_KEY": lines, "B_PRIVATE_KEY": lines.upper()}
        env = keys | {
            name: "{{ conn.db.password }}",
            "API_TOKENS": "{{ dag_run.conf['given'].values() | list | tojson }}",
        }
        task = launch(sh(f"sleep 1; echo with ${name}", env=env), **base)
    else:
        given = {"fetched": "{{ conn.db.password }}", "nested": {"db_password": "{{ var.value.prod_db }}"}}
        with a_dag():
            function = sdk_task.launch_python(launch_conn_id="launch_local_default", **base)
            task = function(prints_nested if how == "nested" else prints)(
                given.get(how, secret), "{{ dag_run.conf['given'] }}"
            ).operator
    ran, _ = run_to_end(task, FakeExecutionApi())

    assert ran.error is None
    assert "with ***" in "\n".join(ran.lines)
    assert "Qz7" not in "\n".join(ran.lines)


def prints(db_password: str, given: Any) -> None:
    import sys
    import time

    time.sleep(1)
    sys.stdout.write(f"with {db_password}\n")


def prints_nested(config: dict[str, str], given: Any) -> None:
    import sys
    import time

    time.sleep(1)
    sys.stdout.write(f"with {config['db_password']}\n")


_SHELL = "command_type: shell, command: 'sleep 1; echo with $DB_PASSWORD'"
_ROLE = "name: r, image: '', entrypoint: sh, args: ['-c', 'sleep 1; echo with $DB_PASSWORD']"
_STEPS = {
    "app": f"""command_type: app, app: {{name: a, roles: [{{{_ROLE},
        env: {{DB_PASSWORD: '{{{{ var.value.prod_db }}}}', API_TOKENS: '{{{{ params.tokens | tojson }}}}'}}}}]}}""",
    "argument": "command: steps_of_secrets.show, args: {db_password: '{{ var.value.prod_db }}'}",
    "nested": "command: steps_of_secrets.show, args: {config: {db_password: '{{ var.value.prod_db }}'}}",
    "lines": f"{_SHELL}, secrets: {{TLS_PEM: lines, DB_PASSWORD: prod_db}}",
}


@pytest.mark.usefixtures("own_masks")
@pytest.mark.parametrize("is_deferrable", [False, True], ids=["worker", "triggerer"])
@pytest.mark.parametrize("step", _STEPS)
def test_whole_values_of_a_pipeline_come_before_lines_and_values_of_a_run(
    tmp_path, monkeypatch, step: str, is_deferrable: bool
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_PROD_DB", "Xk9-admin-Qz7-of-the-author")
    monkeypatch.setenv("AIRFLOW_VAR_LINES", "\n".join(f"line {number:03} of a key" for number in range(140)))
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", str(is_deferrable))
    monkeypatch.setitem(support.RUN, "conf", {"tokens": [*many_tokens().values()]})
    (tmp_path / "steps_of_secrets.py").write_text(
        "import time\ndef show(tokens, db_password='', config=None):\n"
        "    time.sleep(1)\n    print('with', db_password or config['db_password'])\n"
    )
    (tmp_path / "p.yaml").write_text(
        f"executor: local\nparameters: {{tokens: [x]}}\ndag:\n  start_at: one\n  steps:\n"
        f"    one: {{type: task, {_STEPS[step]}, next: success}}\n"
    )
    task = dag_from_file(tmp_path / "p.yaml", "test_dag").get_task("one")
    ran, _ = run_to_end(task, FakeExecutionApi())

    assert ran.error is None
    assert "with ***" in "\n".join(ran.lines)
    assert "Qz7" not in "\n".join(ran.lines)


def test_one_secret_within_many_others_costs_little_time() -> None:
    """One expression for two values took 9 s for a line of 1 MB."""
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress())
    log.hide(["a" * 10_000 + "b", "xyzzy"])
    text, began = "a" * 2_000_000, time.process_time()

    assert log._hidden(f"{text}xyzzy") == f"{text}***"
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "value",
    [None, {}, "ab", [1], [["a", "env", "X", 0]], [["a", "env", "X", "0", 1]], [["a", "env", "X", -1, 1]],
     [["a", 1, "X", 0, 1]], [["a", "env", [], 0, 1]], [["a", "env", "X", True, 1]], [["a", "env", "X", 0, 1, 2]]],
    ids=str,
)  # fmt: skip
def test_edited_locations_are_unknown(value: Any) -> None:
    assert checked_places(value) is None


def test_locations_survive_the_store() -> None:
    places = [
        Place("main", "env", "X", 0, 5, "author"),
        Place("main", "args", 1, 2, 3),
        Place("a", "copied", "B", 0, None),
    ]

    assert checked_places(json.loads(json.dumps(places))) == places
