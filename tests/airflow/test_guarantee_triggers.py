"""Guarantee 7: two triggers for one app, a late trigger of an older try, a triggerer whose clock is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from tests.airflow.guarantees import (
    CONN,
    WAIT,
    Heard,
    Place,
    deferred,
    launch,
    meanwhile,
    on_places,
    resumed,
)
from tests.airflow.support import USER_ACTION, FakeExecutionApi, run_task, run_to_end, run_trigger, run_triggers
from tests.support.apps import until

HOUR_S = 3600.0


@pytest.fixture
def task_state(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Lets Airflow say this state of the task, to each trigger that asks."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    def say(state: str | None) -> None:
        states = {"r": {"t": state}}
        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_: states))

    return say


def state_of(app_id: str) -> AppState:
    from airflow_provider_launch.hooks.launch import LaunchHook

    hook = LaunchHook.for_connection(CONN)
    try:
        found = hook.scheduler.describe(app_id)
        assert found is not None
        return found.state
    finally:
        hook.close()


@on_places
def test_two_triggers_of_one_app_show_the_same_end(place: Place) -> None:
    """Guarantee 7: a trigger that moves to another triggerer may run in both for a while."""
    task = launch(place, place.role(WAIT), deferrable=True, poll_interval_s=0.05)
    one, asked = deferred(task, api := FakeExecutionApi())
    two = AppStatusTrigger(**one.serialize()[1])

    def during(_cancel: Any) -> None:
        until(lambda: sum("[main/0] begun" in line for _, line in heard.lines) == 2)
        place.go()

    with Heard() as heard:
        events = run_triggers(one, two, during=during)
        ran = resumed(task, api, asked, events[1][0].payload)

    assert [[event.payload["why"] for event in each] for each in events] == [["ended"], ["ended"]]
    assert ran.state == "success", ran.error
    assert place.starts() == ["0"]


@on_places
@pytest.mark.parametrize("message", [USER_ACTION, None], ids=["moved", "stopped"])
def test_the_end_of_one_of_two_triggers_disturbs_neither_the_app_nor_the_other(
    place: Place, task_state: Callable[[str | None], None], message: str | None
) -> None:
    """Guarantee 7: Airflow ends a trigger that it gave to another triggerer as if a user had killed the task."""
    task = launch(place, place.role(WAIT), deferrable=True, poll_interval_s=0.05)
    one, asked = deferred(task, api := FakeExecutionApi())
    two = AppStatusTrigger(**one.serialize()[1])
    for trigger in (one, two):
        trigger.task_instance = instance()
    task_state("deferred")

    def during(cancel: Callable[[int, str | None], None]) -> None:
        until(lambda: sum("[main/0] begun" in line for _, line in heard.lines) == 2)
        cancel(0, message)
        # Longer than a cancel needs to show.
        time.sleep(1)
        assert place.alive() == 1
        place.go()

    with Heard() as heard:
        events = run_triggers(one, two, during=during)
        ran = resumed(task, api, asked, events[1][0].payload)

    assert events[0] == []
    assert [event.payload["why"] for event in events[1]] == ["ended"]
    assert ran.state == "success", ran.error
    assert sum("[main/0] done" in line for _, line in heard.lines) == 1


@on_places
@pytest.mark.parametrize("state", ["running", "queued", "scheduled", "up_for_retry", "deferred", None])
def test_a_late_kill_of_an_older_try_spares_the_app_that_a_newer_try_has_adopted(
    place: Place, task_state: Callable[[str | None], None], state: str | None
) -> None:
    """Guarantee 7."""
    roles = place.role(WAIT)
    api = FakeExecutionApi(retries=1)
    old, _ = deferred(launch(place, roles, deferrable=True, poll_interval_s=0.05), api)
    old.task_instance = instance()
    task_state(state)
    events: list[Any] = []

    def act() -> None:
        heard.until("continuing with app")
        until(lambda: place.alive() == 1)
        events.append(run_triggers(old, during=kill))
        # Longer than a cancel needs to show.
        time.sleep(1)
        assert place.alive() == 1
        until(lambda: [state_of(app_id) for app_id in place.apps()] == [AppState.RUNNING])
        place.go()

    def kill(cancel: Callable[[int, str | None], None]) -> None:
        until(lambda: bool(old._resolved))
        # Past the resolution of the handle the trigger follows; a kill at any moment is as good.
        cancel(0, USER_ACTION)

    with Heard() as heard, meanwhile(act, place):
        second = run_task(launch(place, roles, poll_interval_s=0.05), api, try_number=2)

    assert events == [[[]]]
    assert second.state == "success", (second.error, second.lines)
    assert place.starts() == ["0"]


@on_places
@pytest.mark.parametrize("state", ["running", "queued"])
def test_a_late_deadline_of_an_older_try_spares_the_app_that_a_newer_try_has_adopted(
    place: Place, task_state: Callable[[str | None], None], state: str
) -> None:
    """Guarantee 7: the deadline is that of the older try; the newer one has its own."""
    roles = place.role(WAIT)
    api = FakeExecutionApi(retries=1)
    old, _ = deferred(launch(place, roles, deferrable=True, execution_timeout=timedelta(seconds=30)), api)
    old.task_instance = instance()
    old.deadline = time.time()
    task_state(state)

    def act() -> None:
        heard.until("continuing with app")
        ((event,),) = run_triggers(old, during=lambda _cancel: None)
        assert event.payload["why"] == "deadline"
        assert "is cancelled" not in event.payload["text"]
        until(lambda: state_of(place.apps()[0]) is AppState.RUNNING)
        place.go()

    with Heard() as heard, meanwhile(act, place):
        second = run_task(launch(place, roles, poll_interval_s=0.05), api, try_number=2)

    assert second.state == "success", (second.error, second.lines)


@on_places
def test_a_deadline_of_the_try_that_waits_cancels_the_app(
    place: Place, task_state: Callable[[str | None], None]
) -> None:
    """The other side of it: no worker is needed for that."""
    trigger, _ = deferred(launch(place, place.role(WAIT), deferrable=True), FakeExecutionApi())
    trigger.task_instance = instance()
    trigger.deadline = time.time()
    task_state("deferred")

    (event,) = run_trigger(trigger)

    assert "is cancelled" in event.payload["text"]
    until(lambda: place.alive() == 0)


@on_places
def test_a_late_kill_of_a_cleared_try_ends_its_own_app_only(
    place: Place, task_state: Callable[[str | None], None]
) -> None:
    """Guarantee 7: after a clear the new try has another app, which the old trigger does not know."""
    roles = place.role(WAIT)
    api = FakeExecutionApi()
    old, _ = deferred(launch(place, roles, deferrable=True, poll_interval_s=0.05), api)
    old.task_instance = instance()
    (first,) = place.apps()
    api.clear()
    new, asked = deferred(task := launch(place, roles, deferrable=True, poll_interval_s=0.05), api, try_number=2)
    (second,) = set(place.apps()) - {first}
    # The worst moment: Airflow says of the newer try that it is over.
    task_state("failed")

    def during(cancel: Callable[[int, str | None], None]) -> None:
        until(lambda: bool(old._resolved))
        cancel(0, USER_ACTION)
        heard.until("[main/0] begun")
        until(lambda: state_of(second) is AppState.RUNNING)
        place.go()

    with Heard() as heard:
        events = run_triggers(old, new, during=during)
        ran = resumed(task, api, asked, events[1][0].payload, try_number=2)

    assert ran.state == "success", ran.error
    assert {app_id: state_of(app_id) for app_id in (first, second)} == {
        first: AppState.CANCELLED,
        second: AppState.SUCCEEDED,
    }


# ---- clocks ------------------------------------------------------------------------------------------------------


@pytest.fixture
def triggerer_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets this process, and no other, have a clock that is wrong by seconds."""
    plain = time.time

    def shift(offset_s: float) -> None:
        monkeypatch.setattr(time, "time", lambda: plain() + offset_s)

    return shift


at_wrong_hours = pytest.mark.parametrize("offset_s", [HOUR_S, -HOUR_S], ids=["ahead", "behind"])


@on_places
@at_wrong_hours
def test_a_triggerer_with_a_wrong_clock_shows_each_line_once_and_the_end(
    place: Place, triggerer_clock: Callable[[float], None], offset_s: float
) -> None:
    """Guarantee 7: positions in logs and limits of outages do not depend on the triggerer's clock."""
    script = "i=0; while [ $i -lt 40 ]; do i=$((i + 1)); echo line $i; test $((i % 5)) = 0 && sleep 0.1; done; " + WAIT
    task = launch(place, place.role(script), deferrable=True, poll_interval_s=0.05, unavailable_for_s=5)
    trigger, asked = deferred(task, api := FakeExecutionApi())

    def during(_cancel: Any) -> None:
        heard.until("[main/0] begun")
        place.go()

    with Heard() as heard:
        triggerer_clock(offset_s)
        ((event,),) = run_triggers(trigger, during=during)
        triggerer_clock(0)
        ran = resumed(task, api, asked, event.payload)

    assert ran.state == "success", ran.error
    told = [line for _, line in heard.lines if line.startswith("[main/0] line")]
    assert told == [f"[main/0] line {number}" for number in range(1, 41)]


@on_places
@at_wrong_hours
def test_a_duration_is_a_duration_by_any_clock(
    place: Place, triggerer_clock: Callable[[float], None], offset_s: float
) -> None:
    """Guarantee 7: a sensor's timeout, which counts from the start of the trigger, does not need a correct clock."""
    old, _ = deferred(launch(place, place.role(WAIT), deferrable=True), FakeExecutionApi())
    trigger = AppStatusTrigger(old.handle, timeout_s=1.0, cancels_at_deadline=False, poll_interval_s=0.05)
    until(lambda: place.alive() == 1)
    triggerer_clock(offset_s)
    began = time.monotonic()

    (event,) = run_trigger(trigger)
    took = time.monotonic() - began

    assert event.payload["why"] == "deadline"
    assert 1.0 <= took < 10
    assert place.alive() == 1


@on_places
def test_a_deadline_is_a_moment_of_the_triggerers_clock_and_never_a_success(
    place: Place, triggerer_clock: Callable[[float], None]
) -> None:
    """Guarantee 7: a clock that is ahead ends the app early, as a time-out that says so."""
    task = launch(place, place.role(WAIT), deferrable=True, execution_timeout=timedelta(seconds=600))
    trigger, asked = deferred(task, api := FakeExecutionApi())
    triggerer_clock(HOUR_S)

    (event,) = run_trigger(trigger)
    triggerer_clock(0)
    ran = resumed(task, api, asked, event.payload)

    assert event.payload["why"] == "deadline"
    assert ran.state == "failed"
    assert "AirflowTaskTimeout" in repr(ran.error)
    until(lambda: place.alive() == 0)


@on_places
def test_a_slow_clock_does_not_delay_the_end(place: Place, triggerer_clock: Callable[[float], None]) -> None:
    """Guarantee 7: the deadline comes late, the end of the app does not."""
    task = launch(place, place.role("sleep 1"), deferrable=True, execution_timeout=timedelta(seconds=600))
    triggerer_clock(-HOUR_S)

    ran, _ = run_to_end(task, FakeExecutionApi())

    assert ran.state == "success", ran.error


def instance() -> Any:
    """Return a task instance as the triggerer gives it."""
    import uuid

    from airflow.sdk.api.datamodels._generated import TaskInstance

    ids = {"id": uuid.uuid4(), "dag_version_id": uuid.uuid4(), "dag_id": "d", "run_id": "r", "task_id": "t"}
    return TaskInstance(**ids, try_number=1, map_index=-1)
