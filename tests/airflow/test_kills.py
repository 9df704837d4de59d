"""Many tasks that end in the same moment: each app is cancelled, whatever Airflow does to the triggers meanwhile."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.triggers import task_states
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from tests.airflow.support import USER_ACTION, FakeExecutionApi, TaskInstance, logged, rendered, run_triggers
from tests.support.fake_scheduler import FakeEngine, FakeScheduler, an_app

MANY = 100


@pytest.fixture(autouse=True, scope="module")
def _triggerer() -> None:
    importlib.import_module("airflow.jobs.triggerer_job_runner")


def deferred(engine: FakeEngine, count: int) -> list[AppStatusTrigger]:
    """The triggers of a mapped task, whose apps run."""
    scheduler = FakeScheduler("cluster", engine)
    triggers = []
    for k in range(count):
        app_id = scheduler.schedule(scheduler.submit_dryrun(an_app(), {}, app_id=f"app-{k}"))
        engine.state(app_id, AppState.RUNNING)
        trigger = AppStatusTrigger(f"fake://cluster/{app_id}", known=True)
        ids = {"id": uuid.uuid4(), "dag_version_id": uuid.uuid4(), "dag_id": "d", "run_id": "r", "task_id": "t"}
        trigger.task_instance = TaskInstance(**ids, try_number=1, map_index=k)
        triggers.append(trigger)
    return triggers


def end_together(triggers: list[AppStatusTrigger], engine: FakeEngine, *, until: Callable[[], bool]) -> None:
    """End the triggers as Airflow does: all of them again and again, also while their `on_kill` runs."""

    def during(cancel: Callable[[int, str | None], None]) -> None:
        followed = {app_id for call in engine.describe_calls for app_id in call}
        deadline = time.monotonic() + 60
        while len(followed) < len(triggers):
            assert time.monotonic() < deadline, "the triggers do not begin"
            time.sleep(0.05)
            followed = {app_id for call in [*engine.describe_calls] for app_id in call}
        done = False
        while not done:
            assert time.monotonic() < deadline, f"{len(engine.cancelled)} of {len(triggers)} apps were cancelled"
            done = until()
            for index in range(len(triggers)):
                cancel(index, USER_ACTION)
            time.sleep(0.1)

    run_triggers(*triggers, during=during)


class Airflow:
    """Airflow's answers about states of tasks: slow, and at first perhaps none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: str | None, *, failures: int = 0) -> None:
        self.state, self.failures, self.asked = state, failures, 0
        self._mutex = threading.Lock()
        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(self.get_task_states))
        # After a clear: the new try has started, and decides.
        monkeypatch.setattr(BaseXCom, "get_one", staticmethod(lambda **_: None))

    def get_task_states(self, *, run_ids: list[str], task_ids: list[str], **_: object) -> dict[str, Any]:
        with self._mutex:
            self.asked += 1
            fails = self.asked <= self.failures
        time.sleep(0.3)
        if fails:
            raise RuntimeError("the API server does not answer")
        return {run_ids[0]: {f"{task_ids[0]}_{k}": self.state for k in range(MANY)}}


def test_tasks_that_end_together_leave_nothing_alive(
    engine: FakeEngine, api: FakeExecutionApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's second cancellation came before most of them had learned the state of their task."""
    airflow = Airflow(monkeypatch, "failed")
    monkeypatch.setattr(task_states, "_GATHER_S", 1.0)
    triggers = deferred(engine, MANY)

    started = time.monotonic()
    end_together(triggers, engine, until=lambda: len(engine.cancelled) >= MANY)
    took_s = time.monotonic() - started

    assert sorted(engine.cancelled) == sorted(f"app-{k}" for k in range(MANY))
    # A question waits for others to join it; a slow machine ends the triggers one after the other.
    assert airflow.asked <= 2 + took_s / 1.0, "the states of one task of a run are one question"


@pytest.mark.parametrize("state", ["deferred", None, "scheduled"])
def test_tasks_that_continue_keep_their_apps(
    engine: FakeEngine, api: FakeExecutionApi, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """Triggers that move to another triggerer are ended in the same way; after a clear the next try decides."""
    airflow = Airflow(monkeypatch, state)
    triggers = deferred(engine, MANY)
    ended = time.monotonic() + 2

    end_together(triggers, engine, until=lambda: airflow.asked > 0 and time.monotonic() > ended)

    assert engine.cancelled == []


def test_a_kill_waits_for_airflow_to_answer_again(
    engine: FakeEngine, api: FakeExecutionApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    Airflow(monkeypatch, "failed", failures=2)

    end_together(deferred(engine, 3), engine, until=lambda: len(engine.cancelled) >= 3)

    assert sorted(engine.cancelled) == ["app-0", "app-1", "app-2"]


def test_an_app_that_could_not_be_cancelled_is_in_the_log(
    engine: FakeEngine, api: FakeExecutionApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = Airflow(monkeypatch, "failed", failures=1000)
    monkeypatch.setattr("airflow_provider_launch.triggers.kills.KILL_S", 1.0)
    (trigger,) = deferred(engine, 1)
    ended = time.monotonic() + 4

    with logged() as entries:
        end_together([trigger], engine, until=lambda: airflow.asked > 1 and time.monotonic() > ended)

    (error,) = [entry for entry in entries if entry["level"] == "error"]
    assert "app fake://cluster/app-0 could not be cancelled: Airflow did not return the state of the task" in rendered(
        error
    )


def test_a_trigger_that_is_ended_before_it_starts_cancels_its_app(
    engine: FakeEngine, api: FakeExecutionApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    Airflow(monkeypatch, "failed")
    (trigger,) = deferred(engine, 1)

    asyncio.run(trigger.on_kill())

    assert engine.cancelled == ["app-0"]
