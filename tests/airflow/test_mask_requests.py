"""Requests for the secrets of an app, on threads that the triggers of a connection share."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch._task.secrets import copied_variables
from airflow_provider_launch.specs.errors import AppUnavailableError, SchedulerUnavailableError
from airflow_provider_launch.triggers import _run
from airflow_provider_launch.triggers._run import TriggerRun
from airflow_provider_launch.triggers.helpers import Helpers


class Scheduler:
    """Raises the error of an app."""

    def __init__(self, **errors: list[Exception]) -> None:
        self.errors = errors

    def describe_native(self, app_id: str) -> Any:
        if self.errors.get(app_id):
            raise self.errors[app_id].pop()
        return f"request of {app_id}"


def run_of(scheduler: Scheduler, app_id: str, questions: Helpers) -> TriggerRun:
    run = object.__new__(TriggerRun)
    run._app_id, run._is_stopped = app_id, False
    run._shared = SimpleNamespace(scheduler=scheduler, hook=SimpleNamespace(launch_conn_id="conn"))  # type: ignore[assignment]
    run._hub = SimpleNamespace(questions=questions)  # type: ignore[assignment]
    return run


def test_a_damaged_record_is_not_asked_for_again():
    """A program may have replaced it, so the error may last."""
    scheduler = Scheduler(bad=[AppUnavailableError("damaged")])
    with pytest.raises(AppUnavailableError):
        asyncio.run(run_of(scheduler, "bad", Helpers("test-questions", 1))._native())


@pytest.mark.parametrize("error", [AppUnavailableError("damaged"), TypeError("'int' object is not a mapping")])
def test_an_error_of_the_stored_request_lets_the_next_change_try_again(error):
    """Lines would otherwise wait for the secrets until the app has ended."""
    run = run_of(Scheduler(bad=[error]), "bad", Helpers("test-questions", 1))
    run._trigger = SimpleNamespace(secret_places=None)  # type: ignore[assignment]
    run._deciding, run._waits_for_masks = threading.Lock(), (None, False)  # type: ignore[assignment]

    asyncio.run(run._register_masks(SimpleNamespace(roles=[object()])))  # type: ignore[arg-type]

    assert run._waits_for_masks is None


@pytest.mark.parametrize("env", [[1], 5, {"A": 1}, {"A": None}, "text"])
def test_damaged_variables_are_an_error_of_the_app(env):
    native = SimpleNamespace(request=SimpleNamespace(roles=[SimpleNamespace(name="main", copied_env=env)]))

    with pytest.raises(AppUnavailableError, match="damaged"):
        copied_variables(native)  # type: ignore[arg-type]


def test_apps_that_wait_for_the_scheduler_keep_no_thread_of_others(monkeypatch):
    monkeypatch.setattr(_run, "_MASK_PAUSE_S", 0.05)
    scheduler = Scheduler(bad=[SchedulerUnavailableError("away")] * 100_000)
    questions = Helpers("test-questions", 1)

    async def play() -> Any:
        waiting = [asyncio.ensure_future(run_of(scheduler, "bad", questions)._native()) for _ in range(4)]
        await asyncio.sleep(0.2)
        found = await asyncio.wait_for(run_of(scheduler, "other", questions)._native(), 30)
        assert not [task for task in waiting if task.done()]
        for task in waiting:
            task.cancel()
        return found

    assert asyncio.run(play()) == "request of other"


def test_an_outage_is_survived(monkeypatch):
    monkeypatch.setattr(_run, "_MASK_PAUSE_S", 0.01)
    scheduler = Scheduler(app=[SchedulerUnavailableError("away")] * 3)

    assert asyncio.run(run_of(scheduler, "app", Helpers("test-questions", 1))._native()) == "request of app"
