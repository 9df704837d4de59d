"""Requests for the secrets of an app, on threads that the triggers of a connection share."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch._task.places import copied_variables
from airflow_provider_launch.specs.errors import AppUnavailableError, SchedulerRejectedError, SchedulerUnavailableError
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
def test_an_error_of_the_stored_request_lets_the_next_change_try_again(error, caplog):
    """Lines would otherwise wait for the secrets until the app has ended."""
    run = run_of(Scheduler(bad=[error]), "bad", Helpers("test-questions", 1))
    run._trigger = SimpleNamespace(secret_places=None)  # type: ignore[assignment]
    run._deciding, run._waits_for_masks = threading.Lock(), (None, False)  # type: ignore[assignment]

    asyncio.run(run._register_masks(SimpleNamespace(roles=[object()])))  # type: ignore[arg-type]

    assert run._waits_for_masks is None
    # Only an error that says nothing about the app needs a report.
    assert ("the secrets of app bad cannot be read" in caplog.text) == isinstance(error, TypeError)


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


def test_an_outage_does_not_keep_a_trigger_that_has_stopped():
    run = run_of(Scheduler(app=[SchedulerUnavailableError("away")]), "app", Helpers("test-questions", 1))
    run._is_stopped = True

    with pytest.raises(SchedulerUnavailableError, match="away"):
        asyncio.run(run._native())


def test_a_request_that_may_not_be_read_shows_no_secrets():
    run = run_of(Scheduler(app=[SchedulerRejectedError("no right")]), "app", Helpers("test-questions", 1))

    assert asyncio.run(run._native()) is None


def test_events_that_waited_for_the_secrets_are_shown_once():
    run, shown = run_of(Scheduler(), "app", Helpers("test-questions", 1)), []
    run._feed = SimpleNamespace(add_event=shown.append)  # type: ignore[assignment]
    run._hub.pump = SimpleNamespace(wake=lambda _feed: None)  # type: ignore[misc]
    run._withheld = deque(["an event", "another"])  # type: ignore[list-item]
    run._show_withheld()
    run._show_withheld()

    assert shown == ["an event", "another"]


@pytest.mark.parametrize("error", [None, SchedulerRejectedError("no right to cancel")])
def test_the_end_at_a_deadline_reports_whether_the_app_is_cancelled(error):
    run, asked = run_of(Scheduler(), "app", Helpers("test-questions", 1)), []

    def cancel(app_id: str) -> None:
        asked.append(app_id)
        if error is not None:
            raise error

    run._shared.scheduler.cancel = cancel
    text = run._cancel()

    assert asked == ["app"]
    assert text == (
        "the time is over, but app app could not be cancelled: no right to cancel"
        if error
        else "the time is over; app app is cancelled"
    )


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_an_answer_after_the_end_of_the_event_loop_raises_nothing_in_the_poller():
    """The triggerer ends; the poller's thread also serves others."""
    run = run_of(Scheduler(), "app", Helpers("test-questions", 1))
    run._loop, run._news, run._waits_for_masks = asyncio.new_event_loop(), asyncio.Event(), None
    run._loop.close()
    run._wake()
    run._mask(SimpleNamespace(), existing=True)  # type: ignore[arg-type]

    assert run._waits_for_masks is not None


def test_a_trigger_that_stops_leaves_nothing_that_is_due_later():
    """Shared objects live for months."""
    run, left, masking, timer = run_of(Scheduler(), "app", Helpers("test-questions", 1)), [], Future(), Future()
    run._shared.poller = SimpleNamespace(unsubscribe=lambda app_id, _: left.append(app_id))  # type: ignore[misc]
    run._hub.ticker = SimpleNamespace(remove=lambda *_: left.append("the ticker"))  # type: ignore[misc]
    run._masking, run._timer, run._loop = masking, timer, None  # type: ignore[assignment]
    run._unsubscribe()

    assert left == ["app", "the ticker"]
    assert masking.cancelled()
    assert timer.cancelled()


def test_a_trigger_that_is_cancelled_again_while_it_stops_keeps_its_position(monkeypatch):
    """A triggerer that ends cancels its triggers twice."""

    async def play() -> Any:
        run, stopping = run_of(Scheduler(), "app", Helpers("test-questions", 1)), asyncio.Future()
        run._feed = SimpleNamespace(checkpoint={"main/0": "here"})  # type: ignore[assignment]
        monkeypatch.setattr(TriggerRun, "_unsubscribe", lambda _: None)
        monkeypatch.setattr(TriggerRun, "_stop_soon", lambda _: stopping)
        stopped = asyncio.ensure_future(run._stopped())
        await asyncio.sleep(0)
        stopped.cancel()
        return await stopped

    assert asyncio.run(play()) == {"main/0": "here"}
