"""Secrets of variables that an app inherits, and in the texts with which a task ends."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

import pytest
from airflow.sdk.log import redact

from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs import AppState
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
