"""Functions that a task calls when its app starts, changes and ends."""

from __future__ import annotations

import pytest
from airflow.sdk.execution_time.comms import DeferTask

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import InvalidAppError
from tests.airflow.support import FakeExecutionApi, launch, run_task, run_to_end, sh

in_modes = pytest.mark.parametrize(
    "how",
    [{}, {"deferrable": True, "defer_after_s": 0}, {"deferrable": True, "defer_after_s": 1}],
    ids=["worker", "triggerer", "both"],
)


class Calls:
    """Functions that note their calls."""

    def __init__(self) -> None:
        self.all: list[tuple[str, AppState]] = []

    def of(self, name: str):
        return lambda status: self.all.append((name, status.state))

    @property
    def arguments(self):
        return {name: self.of(name) for name in ("on_start", "on_event", "on_end")}


@in_modes
@pytest.mark.parametrize(
    ("script", "last"), [("sleep 2", AppState.SUCCEEDED), ("sleep 2; exit 3", AppState.FAILED)], ids=["good", "bad"]
)
def test_functions_are_called_in_both_modes(how, script, last):
    """A task that resumes calls the functions whose moment came while it was deferred."""
    calls = Calls()

    run_to_end(launch(sh(script), **calls.arguments, **how), FakeExecutionApi())

    assert [name for name, _ in calls.all if name != "on_event"] == ["on_start", "on_end"]
    assert calls.all[-1] == ("on_end", last)
    assert ("on_event", last) in calls.all


def test_a_status_has_the_exit_codes_of_the_replicas():
    """A function decides by them whom to inform."""
    seen = []

    run_to_end(launch(sh("exit 3"), on_end=seen.append), FakeExecutionApi())

    assert seen[0].roles[0].replicas[0].exit_code == 3


def test_an_app_that_was_cancelled_before_its_start_has_not_started(engine, api):
    """A message that the training has started would be wrong."""
    calls = Calls()
    engine.on_scheduled = lambda app_id: engine.state(app_id, AppState.CANCELLED)

    run_to_end(launch(sh("true"), launch_conn_id="cluster", **calls.arguments), api)

    assert [name for name, _ in calls.all] == ["on_event", "on_end"]


@in_modes
def test_an_exception_of_a_function_is_logged_and_changes_nothing(how):
    """A chat that is down must not fail the training."""

    def fail(_status):
        raise RuntimeError("the chat is down")

    ran, _ = run_to_end(launch(sh("sleep 1.5"), on_start=fail, on_event=fail, on_end=fail, **how), FakeExecutionApi())

    assert ran.state == "success"
    told = [line for line in ran.lines if "which does not change the task" in line]
    assert [line.split()[0] for line in told if "on_event" not in line] == ["on_start", "on_end"]


def test_a_deferral_without_functions_is_that_of_earlier_releases():
    """A worker with an earlier release may resume the task."""
    ran = run_task(launch(sh("sleep 2"), deferrable=True, defer_after_s=1), FakeExecutionApi())

    assert isinstance(ran.msg, DeferTask)
    assert "has_started" not in str(ran.msg.next_kwargs)


@pytest.mark.parametrize("name", ["on_start", "on_event", "on_end"])
def test_a_value_that_is_not_a_function_is_refused(name):
    """Otherwise it would show only hours later, when the app ends."""
    with pytest.raises(InvalidAppError, match=f"{name}='notify' must be a function"):
        LaunchAppOperator(task_id="t", component="utils.echo", **{name: "notify"})
