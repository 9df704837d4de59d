"""A follower of logs that come by streams: each line once and in order, whatever happens to a stream."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_launch.follow import log_positions as log_queue
from airflow_provider_launch.follow import log_reader
from airflow_provider_launch.follow.events import LogGap, LogLines
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.follow.stream_loop import stream_loop
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.specs.states import AppState
from tests.support.apps import until
from tests.support.fake_scheduler import an_app
from tests.support.fake_streams import StreamingEngine, StreamingScheduler
from tests.support.follow import collect, states, texts
from tests.support.follow import until as events_until

LIMIT_S = 60


@pytest.fixture
def engine() -> StreamingEngine:
    return StreamingEngine()


@pytest.fixture
def scheduler(engine: StreamingEngine) -> StreamingScheduler:
    return StreamingScheduler("session", engine)


@pytest.fixture
def app_id(engine: StreamingEngine, scheduler: StreamingScheduler) -> str:
    """An app that runs."""
    app_id = scheduler.schedule(scheduler.submit_dryrun(an_app(replicas=2), {}, app_id="app-1"))
    engine.state(app_id, AppState.RUNNING)
    return app_id


@pytest.fixture
def follow(engine: StreamingEngine, scheduler: StreamingScheduler, app_id: str) -> Iterator[Callable[..., Follower]]:
    made: list[Follower] = []

    def make(**options: Any) -> Follower:
        made.append(Follower(scheduler, app_id, **options))
        return made[-1]

    yield make
    for follower in made:
        follower.close()
    # In any case: a stream that is no longer read was closed.
    until(lambda: stream_loop().count() == 0)
    engine.state(app_id, AppState.CANCELLED)
    for stream in engine.opened:
        assert stream.is_over.wait(LIMIT_S)


def shown(follower: Follower, text: str) -> list[Any]:
    """The events up to a line."""

    def has_it(event: Any) -> bool:
        return isinstance(event, LogLines) and any(line.text == text for line in event.lines)

    return events_until(follower, has_it, LIMIT_S)


def streams(engine: StreamingEngine, count: int) -> None:
    """Wait until this many streams were opened."""
    until(lambda: len(engine.opened) >= count)


def test_lines_come_once_and_in_order_and_no_read_is_needed(engine, app_id, follow) -> None:
    follower = follow()
    engine.write(app_id, "worker", 0, "first\n")
    events = shown(follower, "first\n")
    streams(engine, 2)
    reads = engine.log_calls
    for number in range(50):
        engine.write(app_id, "worker", 0, f"{number}\n")
        engine.write(app_id, "worker", 1, f"{number}\n")
    events += shown(follower, "49\n")
    assert engine.log_calls == reads
    engine.state(app_id, AppState.SUCCEEDED)
    events += collect(follower, LIMIT_S)

    numbers = [f"{number}\n" for number in range(50)]
    assert texts(events) == ["first\n", *numbers]
    assert texts(events, replica=1) == numbers
    assert not [event for event in events if isinstance(event, LogGap)]


def test_a_stream_that_is_cut_continues_where_it_stopped(engine, app_id, follow) -> None:
    follower, events = follow(), []
    for number in range(4):
        streams(engine, 2) if number else None
        engine.write(app_id, "worker", 0, f"{number}\n")
        events += shown(follower, f"{number}\n")
        for stream in [*engine.opened]:
            stream.cut()
    engine.state(app_id, AppState.SUCCEEDED)
    events += collect(follower, LIMIT_S)

    assert len(engine.opened) > 2
    assert texts(events) == [f"{number}\n" for number in range(4)]


def test_a_stream_that_is_cut_a_thousand_times_is_opened_again(engine, app_id, follow, monkeypatch, caplog) -> None:
    """The pause doubles with each cut of a silent program; a power that grows without a limit is an error."""
    monkeypatch.setattr(log_reader, "_CUT_S", 0.0)
    follower = follow()
    engine.write(app_id, "worker", 0, "zero\n")
    shown(follower, "zero\n")

    def of_first() -> list[Any]:
        return [stream for stream in engine.opened if stream._k == 0]

    for number in range(1100):
        until(lambda wanted=number: len(of_first()) > wanted, pause_s=0.001)
        of_first()[number].cut()
    engine.write(app_id, "worker", 0, "one\n")

    assert texts(shown(follower, "one\n")) == ["one\n"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_an_app_without_a_stream_is_read(engine, scheduler, app_id, follow, monkeypatch) -> None:
    """An error of opening a stream does not end the log."""
    opened = threading.Event()

    def fail(*_: Any, **__: Any) -> None:
        opened.set()
        raise SchedulerUnavailableError("no route to the node")

    monkeypatch.setattr(StreamingScheduler, "stream_log", fail)
    follower = follow()
    engine.write(app_id, "worker", 0, "one\n")
    events = shown(follower, "one\n")
    engine.write(app_id, "worker", 0, "two\n")
    events += shown(follower, "two\n")
    engine.state(app_id, AppState.SUCCEEDED)
    events += collect(follower, LIMIT_S)

    assert opened.is_set()
    assert texts(events) == ["one\n", "two\n"]
    assert not [event for event in events if isinstance(event, LogGap)]


def test_a_log_that_cannot_be_followed_is_read_in_turns(engine, app_id, follow, caplog) -> None:
    follower = follow()
    engine.write(app_id, "worker", 0, "one\n")
    events = shown(follower, "one\n")
    streams(engine, 2)
    for stream in engine.opened:
        stream.refuse("too many followers")
    until(lambda: "too many followers" in caplog.text)
    engine.write(app_id, "worker", 0, "two\n")
    events += shown(follower, "two\n")
    count = len(engine.opened)
    engine.write(app_id, "worker", 0, "three\n")
    events += shown(follower, "three\n")

    assert texts(events) == ["one\n", "two\n", "three\n"]
    assert "polling them for the next 10 minutes: too many followers" in caplog.text
    assert len(engine.opened) == count == 2


def test_the_end_of_a_program_shows_the_end_of_its_app(engine, scheduler, app_id, follow) -> None:
    """Long before the state would be asked for again."""
    follower = follow(poll_interval_s=300.0)
    engine.write(app_id, "worker", 0, "one\n")
    events = shown(follower, "one\n")
    streams(engine, 2)
    # No more of the questions about an app that has just come.
    until(follower._reader.is_streaming)
    follower._poller.set_ends_reported(app_id, True)
    began = time.monotonic()
    engine.state(app_id, AppState.SUCCEEDED)
    events += collect(follower, LIMIT_S)

    assert states(events)[-1] == "SUCCEEDED"
    assert time.monotonic() - began < LIMIT_S


def test_a_consumer_that_is_slow_pauses_the_stream_and_loses_nothing(engine, app_id, follow) -> None:
    follower = follow()
    engine.write(app_id, "worker", 0, "begun\n")
    events = shown(follower, "begun\n")
    streams(engine, 2)
    count = log_queue._STREAM_LINES + 2000
    engine.write(app_id, "worker", 0, "".join(f"{number}\n" for number in range(count)))
    until(lambda: follower._reader._queue.is_full_for_streams)
    # Of each stream a block may be under way.
    until(lambda: follower._reader._paused)
    events += shown(follower, f"{count - 1}\n")
    engine.state(app_id, AppState.SUCCEEDED)
    events += collect(follower, LIMIT_S)

    assert texts(events) == ["begun\n", *[f"{number}\n" for number in range(count)]]
    assert stream_loop()._buffered == 0


def test_a_consumer_that_stops_in_the_middle_of_lines_buffers_none(engine, app_id, follow) -> None:
    """Else each task that is killed while it shows lines takes room from the streams of its process, for ever."""
    follower = follow()
    engine.write(app_id, "worker", 0, "begun\n")
    shown(follower, "begun\n")
    streams(engine, 2)
    engine.write(app_id, "worker", 0, "more\n")
    events = iter(follower)
    until(lambda: any(line.text == "more\n" for line in getattr(next(events), "lines", ())))
    buffered = stream_loop()._buffered
    follower.close()

    assert buffered > 0
    until(lambda: stream_loop()._buffered == 0)


def test_a_replica_that_is_left_has_no_stream(engine, app_id, follow) -> None:
    follower = follow()
    engine.write(app_id, "worker", 0, "one\n")
    shown(follower, "one\n")
    streams(engine, 2)
    until(lambda: stream_loop().count() == 2)
    follower.leave(1)

    until(lambda: stream_loop().count() == 1)


@pytest.mark.parametrize("end", ["close", "leave"])
def test_a_stream_that_opens_too_late_is_closed(engine, app_id, follow, monkeypatch, end) -> None:
    """A slow host answers after the task has ended; its connection would stay open as long as the app runs."""
    opening, may_open = threading.Event(), threading.Event()
    open_stream = StreamingScheduler.stream_log

    def open_slowly(self: StreamingScheduler, app_id: str, role: str, k: int, *args: Any, **how: Any) -> Any:
        if k:
            return None
        if engine.opened:
            opening.set()
            assert may_open.wait(LIMIT_S)
        return open_stream(self, app_id, role, k, *args, **how)

    monkeypatch.setattr(StreamingScheduler, "stream_log", open_slowly)
    follower = follow()
    engine.write(app_id, "worker", 0, "one\n")
    shown(follower, "one\n")
    engine.opened[0].cut()
    assert opening.wait(LIMIT_S)
    if end == "leave":
        follower.leave(1)
    else:
        follower.close()
    may_open.set()

    streams(engine, 2)
    until(lambda: engine.opened[1]._theirs.fileno() == -1)


def test_an_unfinished_line_that_cannot_be_read_is_not_a_gap(engine, app_id, follow, monkeypatch) -> None:
    asked = threading.Event()

    def fail(*_: Any, **__: Any) -> None:
        asked.set()
        raise RuntimeError("not now")

    monkeypatch.setattr(StreamingScheduler, "unfinished_line", fail)
    monkeypatch.setattr(StreamingScheduler, "stream_log", lambda *_, **__: None)
    follower, events = follow(), []
    engine.write(app_id, "worker", 0, "one\n")
    for event in follower:
        events.append(event)
        if asked.is_set():
            break
    engine.write(app_id, "worker", 0, "two\n")
    events += shown(follower, "two\n")

    assert texts(events) == ["one\n", "two\n"]
    assert not [event for event in events if isinstance(event, LogGap)]
