"""A scheduler that tells of ends is not asked for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from airflow_provider_launch.follow.events import Ended, StateChanged
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.follow.poller import Poller
from airflow_provider_launch.specs.states import AppState
from tests.support import apps
from tests.support.fake_scheduler import FakeEngine, FakeScheduler, an_app
from tests.support.follow import collect, launch_threads, until


class Telling(FakeScheduler):
    """Says when something has ended."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__("session", engine)
        self.ended = threading.Event()
        self.waits = 0

    def await_end(self, app_id: str, timeout_s: float) -> bool:
        self.waits += 1
        return self.ended.wait(timeout_s)


class Failing(Telling):
    """Says no more than that it cannot, after a while, as an engine does that is far away."""

    def await_end(self, app_id: str, timeout_s: float) -> bool:
        super().await_end(app_id, 0.03)
        raise RuntimeError("does not answer")


class Hasty(Telling):
    """Says that something has ended though nothing has."""

    def await_end(self, app_id: str, timeout_s: float) -> bool:
        super().await_end(app_id, 0.03)
        return True


@pytest.fixture
def scheduler() -> Iterator[Telling]:
    scheduler = Telling(FakeEngine())
    yield scheduler
    scheduler.ended.set()


def running(scheduler: FakeScheduler) -> str:
    app_id = scheduler.schedule(scheduler.submit_dryrun(an_app(), {}, app_id="app-1"))
    scheduler.engine.state(app_id, AppState.RUNNING)
    return app_id


def describes(scheduler: FakeScheduler, seconds: float) -> int:
    """Count how often the state is asked for in this time."""
    scheduler.engine.describe_calls.clear()
    time.sleep(seconds)
    return len(scheduler.engine.describe_calls)


def test_an_end_is_noticed_at_once_even_with_rare_polls(scheduler: Telling) -> None:
    app_id = running(scheduler)
    with Follower(scheduler, app_id, logs=False, poll_interval_s=60) as follower:
        until(follower, lambda _: scheduler.waits > 0)
        scheduler.engine.state(app_id, AppState.SUCCEEDED)
        began = time.monotonic()
        scheduler.ended.set()
        events = collect(follower)
        took = time.monotonic() - began

    assert isinstance(events[-1], Ended)
    assert took < 10
    deadline = time.monotonic() + 5
    while launch_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert launch_threads() == []


def test_a_new_app_is_not_polled_often_where_its_end_is_reported(scheduler: Telling) -> None:
    scheduler.poll_interval_s = 0.5
    app_id = running(scheduler)
    with Follower(scheduler, app_id, logs=False) as follower:
        until(follower, lambda _: scheduler.waits > 0)
        asked = describes(scheduler, 1.2)

    # A new app of another scheduler is polled about twenty times.
    assert 1 <= asked <= 4


def test_followers_that_share_a_poller_share_its_requests(scheduler: Telling) -> None:
    """A wait for each of a thousand apps would be a thousand requests under way."""
    app_id = running(scheduler)
    with Follower(scheduler, app_id, logs=False, poller=Poller(scheduler, 0.1)) as follower:
        until(follower, lambda _: len(scheduler.engine.describe_calls) > 2)

    assert scheduler.waits == 0


def test_repeated_reports_of_an_end_are_polled_with_pauses() -> None:
    """A list may lag behind the end; and of a thousand replicas some end each moment."""
    scheduler = Hasty(FakeEngine())
    app_id = running(scheduler)
    with Follower(scheduler, app_id, logs=False, poll_interval_s=60) as follower:
        until(follower, lambda _: scheduler.waits > 0)
        asked = describes(scheduler, 1.2)

    assert 3 <= asked <= 10
    assert 3 <= scheduler.waits <= 12


def test_one_that_fails_to_show_is_asked_as_before() -> None:
    scheduler = Failing(FakeEngine())
    app_id = running(scheduler)
    with Follower(scheduler, app_id, logs=False, poll_interval_s=0.2) as follower:
        until(follower, lambda _: scheduler.waits > 1)
        describes(scheduler, 1.2)
        waits = scheduler.waits
        scheduler.engine.state(app_id, AppState.SUCCEEDED)
        events = collect(follower)

    assert isinstance(events[-1], Ended)
    assert waits < 12


def waiters() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("launch-end-")]


@pytest.mark.parametrize("how", ["closed", "ended"])
def test_the_wait_stops_with_the_follower(scheduler: Telling, how: str) -> None:
    """A consumer may keep a follower that it no longer asks, and each wait is a request under way."""
    app_id = running(scheduler)
    follower = Follower(scheduler, app_id, logs=False, poll_interval_s=0.1)
    try:
        until(follower, lambda _: scheduler.waits > 0)
        if how == "closed":
            follower.close()
        else:
            scheduler.engine.state(app_id, AppState.SUCCEEDED)
            until(follower, lambda event: isinstance(event, StateChanged) and event.new is AppState.SUCCEEDED)
        scheduler.ended.set()

        apps.until(lambda: not waiters(), 30)
    finally:
        follower.close()


def test_the_next_wait_comes_after_the_answer_about_the_last_end() -> None:
    """Otherwise a scheduler that is slow to answer gets request after request about the same end."""
    scheduler, asking, early = Hasty(FakeEngine()), threading.Event(), threading.Event()
    app_id = running(scheduler)
    await_end = scheduler.await_end

    def waited(app_id: str, timeout_s: float) -> bool:
        if asking.is_set():
            early.set()
        return await_end(app_id, timeout_s)

    def answer_slowly(_ids: list[str]) -> None:
        if scheduler.waits > 2:
            asking.set()
            early.wait(1)
            asking.clear()

    scheduler.await_end = waited
    scheduler.engine.on_describe = answer_slowly
    with Follower(scheduler, app_id, logs=False, poll_interval_s=60) as follower:
        until(follower, lambda _: scheduler.waits > 3)

    assert not early.is_set()


def test_one_that_refuses_to_show_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler may learn from its engine that it cannot report ends."""
    scheduler = Telling(FakeEngine())

    def refuse(self: Telling, _app_id: str, _timeout_s: float) -> bool:
        self.waits += 1
        raise NotImplementedError

    monkeypatch.setattr(Telling, "await_end", refuse)
    app_id = running(scheduler)
    with Follower(scheduler, app_id, logs=False, poll_interval_s=0.1) as follower:
        until(follower, lambda _: scheduler.waits > 0)
        apps.until(lambda: not waiters(), 30)

    assert scheduler.waits == 1


def test_one_that_cannot_show_reports_it() -> None:
    with pytest.raises(NotImplementedError, match="does not report when an app ends; poll its state"):
        FakeScheduler("session", FakeEngine()).await_end("app", 1)
