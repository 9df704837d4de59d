"""Removal of ended apps: by default succeeded ones, once result and log are in Airflow."""

from __future__ import annotations

import pytest

from airflow_provider_launch._task.task_log import TaskLog
from airflow_provider_launch.follow.events import Event, LogLines
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler
from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.specs.handles import parse_app_handle
from tests.airflow.support import FakeExecutionApi, launch, run_task, run_to_end, sh


class WorkerDiedError(BaseException):
    """An error that no code of ours handles."""


WRITES = 'echo working; echo "{\\"n\\": 7}" > "$LAUNCH_RESULT_PATH"'


@pytest.fixture(autouse=True)
def default(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Airflow is without a configuration; all other tests keep their apps."""
    monkeypatch.delenv("AIRFLOW__LAUNCH__ON_FINISH", raising=False)


def is_there(api: FakeExecutionApi, task_id: str = "t") -> bool:
    handle = api.xcoms[task_id, "handle"]
    hook = LaunchHook.for_connection("launch_local_default")
    try:
        return hook.runner.status(handle) is not None
    finally:
        hook.close()


@pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "triggerer"])
@pytest.mark.parametrize(
    ("on_finish", "script", "stays"),
    [
        (None, WRITES, False),
        (None, "exit 3", True),
        ("keep", WRITES, True),
        ("delete_succeeded", "exit 3", True),
        ("delete", "exit 3", False),
        ("delete", WRITES, False),
    ],
)
def test_an_app_goes_when_its_result_and_log_were_taken(deferrable, on_finish, script, stays) -> None:
    api = FakeExecutionApi()
    task = launch(sh(script), on_finish=on_finish, deferrable=deferrable)
    ran = run_to_end(task, api)[0] if deferrable else run_task(task, api)

    assert (ran.state == "success") == (script == WRITES)
    if script == WRITES:
        assert any("working" in line for line in ran.lines)
        assert api.xcoms["t", "return_value"]["result"] == {"n": 7}
    assert is_there(api) == stays


@pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "triggerer"])
def test_an_app_stays_where_a_line_could_not_be_written(deferrable, monkeypatch) -> None:
    """Whichever part of the task missed it."""
    writes, missed = TaskLog.write_event, list[Event]()

    def write(log: TaskLog, event: Event) -> None:
        if isinstance(event, LogLines) and not missed:
            missed.append(event)
            raise OSError("no space left")
        writes(log, event)

    monkeypatch.setattr(TaskLog, "write_event", write)
    api = FakeExecutionApi()
    task = launch(sh("sleep 1; echo working; sleep 1; echo done"), deferrable=deferrable)
    ran = run_to_end(task, api)[0] if deferrable else run_task(task, api)

    assert ran.state == "success"
    assert missed
    assert is_there(api)


def test_the_configuration_decides_where_a_task_does_not(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__LAUNCH__ON_FINISH", "delete")
    api = FakeExecutionApi()
    run_task(launch(sh("exit 3")), api)

    assert not is_there(api)


def test_a_task_that_does_not_wait_leaves_its_app() -> None:
    api = FakeExecutionApi()
    assert run_task(launch(sh("true"), wait=False, on_finish="delete"), api).state == "success"

    assert is_there(api)


def test_a_worker_that_dies_after_the_removal_costs_neither_the_result_nor_a_second_app() -> None:
    """The next try finds what the last one has kept before it removed the app."""
    api = FakeExecutionApi(retries=1)

    def die(method: str, parts: list[str], body: object) -> None:
        if (method, parts[0], parts[-1]) == ("POST", "xcoms", "return_value"):
            raise WorkerDiedError

    api.on_call = die
    with pytest.raises(WorkerDiedError):
        raise (run_task(launch(sh(WRITES)), api).error or AssertionError("survived"))
    assert not is_there(api)
    api.on_call = lambda method, parts, body: None
    ran = run_task(launch(sh("exit 9")), api, try_number=2)

    assert ran.state == "success"
    assert api.xcoms["t", "return_value"]["result"] == {"n": 7}
    assert any("its result was kept" in line for line in ran.lines)


def test_a_clear_launches_a_new_app_after_the_removal() -> None:
    api = FakeExecutionApi()
    assert run_task(launch(sh("true")), api).state == "success"
    first = api.xcoms["t", "handle"]
    api.clear()
    assert run_task(launch(sh("true")), api, try_number=2).state == "success"

    assert api.xcoms["t", "handle"] != first


def test_a_removal_that_fails_does_not_fail_the_task(monkeypatch) -> None:
    def refuse(self: LocalScheduler, app_id: str) -> None:
        raise SchedulerUnavailableError("out of reach")

    monkeypatch.setattr(LocalScheduler, "delete", refuse)
    api = FakeExecutionApi()
    ran = run_task(launch(sh("true")), api)

    assert ran.state == "success"
    assert any("could not be removed: out of reach" in line for line in ran.lines)
    assert is_there(api)


def test_an_app_stays_if_its_result_cannot_be_kept_for_a_retry() -> None:
    """If this worker died now, the next try would find neither the app nor its result."""
    api = FakeExecutionApi()
    refused = []

    def refuse(method: str, parts: list[str], body: object) -> None:
        if (method, parts[0]) == ("PUT", "store") and isinstance(body, dict) and (body["value"] or {}).get("value"):
            refused.append(body)
            raise OSError("no more values today")

    api.on_call = refuse
    ran = run_task(launch(sh(WRITES)), api)

    assert (ran.state, len(refused)) == ("success", 1)
    assert ran.logged("is kept: its result could not be stored for a retry: ")
    assert is_there(api)


def test_a_wrong_choice_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(Exception, match="on_finish='never' must be one of 'keep', 'delete_succeeded', 'delete'"):
        LaunchAppOperator(task_id="t", app=sh("true"), on_finish="never")


def test_programs_sweep_apps_that_tasks_have_left() -> None:
    api = FakeExecutionApi()
    run_task(launch(sh("exit 3")), api)
    hook = LaunchHook.for_connection("launch_local_default")
    handle = api.xcoms["t", "handle"]

    assert hook.runner.status(handle).state is AppState.FAILED
    assert hook.runner.sweep("local", 3600) == []
    assert [parse_app_handle(one).app_id for one in hook.runner.sweep("local", 0, dag_id="test_dag")] == [
        parse_app_handle(handle).app_id
    ]
    assert hook.runner.status(handle) is None
    with pytest.raises(ValueError, match="older_than_s=-1"):
        hook.runner.sweep("local", -1)
    hook.close()
