"""Secrets of variables that an app inherits, and in the texts with which a task ends."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk._shared.secrets_masker import reset_secrets_masker
from airflow.sdk.log import redact

from airflow_provider_launch._task.places import copied_variables
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs import AppDef, AppState, Role
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import SchedulerRejectedError, SchedulerUnavailableError
from tests.airflow import support
from tests.airflow.support import FakeExecutionApi, a_dag, launch, run_task, run_to_end, sh
from tests.support.apps import until
from tests.support.fake_scheduler import FakeScheduler

SECRET = "Xk9-admin-Qz7-author"
in_modes = pytest.mark.parametrize("is_deferrable", [False, True], ids=["worker", "triggerer"])
_on_local = pytest.mark.engine("local")


@_on_local
@pytest.mark.parametrize("how", ["outage", "refused"])
def test_copied_variables_are_masked_although_the_scheduler_does_not_answer(monkeypatch, how: str) -> None:
    """The request that the task has made has them."""
    before, left = LocalScheduler.describe_native, [1]

    def describe_native(self: LocalScheduler, app_id: str) -> Any:
        if how == "refused":
            raise SchedulerRejectedError("403")
        if left:
            left.pop()
            raise SchedulerUnavailableError("503")
        return before(self, app_id)

    monkeypatch.setattr(LocalScheduler, "describe_native", describe_native)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    task = launch(sh("sleep 0.6; echo with $HF_TOKEN"), cfg={"copy_env": ["HF_*"]}, deferrable=False)
    ran, _ = run_to_end(task, FakeExecutionApi())

    assert ran.error is None
    assert "with ***" in "".join(ran.lines)
    assert "Qz7" not in "".join(ran.lines)


@dataclasses.dataclass
class RequestOfRole:
    name: str
    copied_env: dict[str, str]


@in_modes
@pytest.mark.parametrize("cfg", [{"copy_env": ["HF_*"]}, {"by_role": {"worker": {"copy_env": ["HF_*"]}}}], ids=str)
def test_variables_that_only_one_role_inherits_are_masked(
    monkeypatch, engine, api, cfg: dict[str, Any], is_deferrable: bool
) -> None:
    options, dryrun = FakeScheduler._run_opts, FakeScheduler._submit_dryrun

    def run_opts(self: FakeScheduler) -> Any:
        found = options(self)
        for name, kind in (("copy_env", list[str]), ("by_role", dict)):
            found.add(name, type_=kind, help="x", default=None)
        return found

    def submit_dryrun(self: FakeScheduler, *args: Any, **kwargs: Any) -> Any:
        info = dryrun(self, *args, **kwargs)
        info.request.roles = [RequestOfRole("worker", {"HF_TOKEN": SECRET})]
        return info

    def end_it() -> None:
        until(lambda: engine.apps)
        (app_id,) = engine.apps
        engine.state(app_id, AppState.RUNNING)
        engine.write(app_id, "worker", 0, f"with {SECRET}\n")
        engine.state(app_id, AppState.SUCCEEDED, exit_codes={("worker", 0): 0})

    monkeypatch.setattr(FakeScheduler, "_run_opts", run_opts)
    monkeypatch.setattr(FakeScheduler, "_submit_dryrun", submit_dryrun)
    task = launch(sh("true"), launch_conn_id="cluster", cfg=cfg, deferrable=is_deferrable)
    driver = threading.Thread(target=end_it)
    driver.start()
    ran, _ = run_to_end(task, api)
    driver.join()

    assert ran.error is None
    assert "with ***" in "".join(ran.lines)
    assert "Qz7" not in "".join(ran.lines)


@_on_local
@in_modes
@pytest.mark.parametrize("before", [0, 1000 - len("with ") - 14], ids=["whole", "at the cut"])
def test_an_error_file_shows_no_rest_of_a_secret(monkeypatch, before: int, is_deferrable: bool) -> None:
    """Next to a value of a run that overlaps it, and where the text is cut."""
    monkeypatch.setitem(support.RUN, "conf", {"given": "with Xk9"})
    error = {"message": f"{'x' * before}with {SECRET}"}
    env = {"DB_PASSWORD": SECRET, "OTHER_TOKEN": "{{ dag_run.conf['given'] }}"}
    script = f"sleep 0.6; printf '%s' '{json.dumps(error)}' > $TORCHELASTIC_ERROR_FILE; exit 3"
    api = FakeExecutionApi()
    ran, _ = run_to_end(launch(sh(script, env=env), deferrable=is_deferrable), api)

    assert "***" in str(redact(str(ran.error)))
    assert "author" not in str(redact(str(ran.error)))
    assert "admin" not in str(redact(str(ran.error)))
    assert "***" in api.xcoms["t", "app"]["error"]
    assert "admin" not in api.xcoms["t", "app"]["error"]


@_on_local
@in_modes
@pytest.mark.parametrize(
    ("field", "program"),
    [
        ("labels", "raise ValueError('bad Xk9-admin-Qz7')"),
        ("repr", "error({'message': 'bad %r' % secret})"),
        ("JSON", "error({'message': 'bad ' + json.dumps(secret)})"),
        ("cut", "error({'message': 'bad ' + secret[:-1]})"),
    ],
)
def test_the_value_of_a_failed_task_shows_no_secret(monkeypatch, field: str, program: str, is_deferrable: bool) -> None:
    """Airflow does not mask XComs."""
    secret = "Xk9-admin-Qz7" if field == "labels" else 'Xk9\\"ad-Qz7'
    code = (
        "import json, os, sys, time; time.sleep(0.6); secret = os.environ.get('DB_PASSWORD')\n"
        "def error(text):\n    json.dump(text, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w')); sys.exit(3)\n"
    )
    role = Role("main", "", entrypoint=sys.executable, args=["-c", code + program], env={"DB_PASSWORD": secret})
    if field == "labels":
        role.env, role.metadata = {}, {"labels": {"api_token": secret}}
    with a_dag():
        task = LaunchAppOperator(task_id="t", app=AppDef("app", [role]), deferrable=is_deferrable)
    api = FakeExecutionApi()
    ran, _ = run_to_end(task, api)

    assert ran.error is not None
    error = api.xcoms["t", "app"]["error"]
    assert error.startswith("main/0: ")
    assert "Qz7" not in error
    assert "Xk9" not in error
    assert "Xk9" not in str(redact(str(ran.error)))


def test_a_plug_in_may_have_roles_of_any_form(monkeypatch, engine, api) -> None:
    dryrun = FakeScheduler._submit_dryrun

    def submit_dryrun(self: FakeScheduler, *args: Any, **kwargs: Any) -> Any:
        info = dryrun(self, *args, **kwargs)
        info.request.roles = roles
        return info

    monkeypatch.setattr(FakeScheduler, "_submit_dryrun", submit_dryrun)
    others = [RequestOfRole("worker", None), RequestOfRole("worker", {"A": 1})]  # type: ignore[arg-type, dict-item]
    for roles in (None, ["worker"], [{"name": "worker"}], {"worker": {}}, others):
        task = launch(sh("true"), launch_conn_id="cluster", wait=False, deferrable=False)

        assert run_task(task, api).error is None, roles


@_on_local
@in_modes
def test_a_sensor_shows_no_rest_of_a_secret(is_deferrable: bool) -> None:
    api = FakeExecutionApi()
    env = {"DB_PASSWORD": SECRET, "OTHER_TOKEN": "with Xk9"}
    run_task(launch(sh("sleep 1; echo with $DB_PASSWORD", env=env), wait=False), api)
    with a_dag():
        sensor = AppStatusSensor(task_id="s", handle=api.xcoms["t", "return_value"], deferrable=is_deferrable)
    ran, _ = run_to_end(sensor, api)

    assert ran.error is None
    assert "[worker/0] ***" in "".join(ran.lines)
    assert "admin" not in "".join(ran.lines)


@_on_local
def test_a_try_that_submits_again_masks_the_variables_of_the_first_one(tmp_path, monkeypatch) -> None:
    """The worker died before it knew that the app exists, and the variable has changed since."""
    api, go, tries = FakeExecutionApi(retries=3), tmp_path / "go", []

    def dies(method: str, parts: Any, body: Any) -> None:
        is_record = method == "PUT" and parts[-1] == "launch" and body["value"]["state"] == "scheduled"
        if is_record and len(tries) == 1:
            raise SystemExit("the worker died")
        if is_record:
            go.touch()  # the app ends after the second try has found it

    api.on_call = dies
    lines = ""
    for number, value in ((1, SECRET), (2, "Xk9-new-a")):
        tries.append(number)
        reset_secrets_masker()
        monkeypatch.setenv("HF_TOKEN", value)
        role = sh(f"while [ ! -e {go} ]; do sleep 0.1; done; sleep 0.5; echo with $HF_TOKEN")
        task = launch(role, on_kill="leave", deferrable=False, cfg={"copy_env": ["HF_*"]})
        with contextlib.suppress(SystemExit):
            lines = "".join(run_task(task, api, try_number=number).lines)

    assert "with ***" in lines
    assert "Qz7" not in lines


@_on_local
@in_modes
@pytest.mark.parametrize("end", ["sleep 2; echo", "exit 3"], ids=["later", "never"])
def test_the_start_of_a_secret_is_hidden_where_a_line_has_no_end(is_deferrable: bool, end: str) -> None:
    """A program that writes whole blocks of its output stops within a line."""
    script = f"sleep 0.6; echo first; printf 'login pw=%s' $(echo $DB_PASSWORD | cut -c 1-15); {end}"
    ran, _ = run_to_end(launch(sh(script, env={"DB_PASSWORD": SECRET}), deferrable=is_deferrable), FakeExecutionApi())

    own = [line for line in ran.lines if "login" in line and "printf" not in line]
    assert own
    assert all("login pw=***" in line for line in own if "..." in line or end == "exit 3"), own
    assert not [line for line in own if "..." in line and "Xk9" in line]
    if end == "exit 3":
        assert "Xk9" not in "".join(own) + str(ran.error)
        assert "login pw=***" in str(ran.error)


@_on_local
def test_a_value_of_a_run_within_a_cut_secret_does_not_show_it(monkeypatch) -> None:
    monkeypatch.setitem(support.RUN, "conf", {"given": "admin"})
    env = {"DB_PASSWORD": SECRET, "OTHER_TOKEN": "{{ dag_run.conf['given'] }}"}
    script = "sleep 0.6; printf 'bad %s' $DB_PASSWORD | head -c 20 > $TORCHELASTIC_ERROR_FILE; exit 3"
    api = FakeExecutionApi()
    ran, _ = run_to_end(launch(sh(script, env=env)), api)

    for text in (str(redact(str(ran.error))), api.xcoms["t", "app"]["error"]):
        assert "bad ***" in text
        assert "Xk9" not in text


def test_variables_of_roles_without_names_are_masked() -> None:
    roles = [SimpleNamespace(copied_env={"A": "1"}), SimpleNamespace(copied_env={"B": "2"})]

    assert copied_variables(AppDryRunInfo(SimpleNamespace(roles=roles), str)) == {"": {"A": "1", "B": "2"}}
