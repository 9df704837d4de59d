"""The log pump of a triggerer: a fair share for each app, a budget for all, and exact positions."""

from __future__ import annotations

import contextvars
import json
import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_launch._task.log_limit import NO_LIMIT, LogLimit
from airflow_provider_launch._task.progress import FollowProgress
from airflow_provider_launch._task.task_log import TaskLog
from airflow_provider_launch.follow.events import Event, LogLines
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.follow.log_reader import LogReader
from airflow_provider_launch.schedulers.api import LogChunk, Stream
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.triggers import pump as module
from airflow_provider_launch.triggers.feed import LONG_CHARS, RECORD_BYTES, TURN_BYTES, Feed
from airflow_provider_launch.triggers.pump import LogPump
from tests.support.apps import until
from tests.support.fake_scheduler import FakeEngine, FakeScheduler, an_app


class Log:
    """Replaces a task's log."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.times: list[float] = []

    def write_event(self, event: Event) -> None:
        if isinstance(event, LogLines):
            self.lines += [line.text for line in event.lines]
            self.times += [time.monotonic()] * len(event.lines)

    def report_cut(self, key: str, max_bytes: int | None) -> None:
        self.lines.append(f"cut {key} {max_bytes}")


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def feeds(engine: FakeEngine) -> Iterator[Callable[..., tuple[Feed, Log, str]]]:
    scheduler = FakeScheduler("session", engine)

    def make(
        name: str, cursors: dict[str, Any] | None = None, limit: LogLimit = NO_LIMIT, replicas: int = 1
    ) -> tuple[Feed, Log, str]:
        app_id = scheduler.schedule(scheduler.submit_dryrun(an_app(replicas=replicas), {}, app_id=name))
        log = Log()
        feed = Feed(
            scheduler,
            app_id,
            log,  # type: ignore[arg-type]
            contextvars.copy_context(),
            cursors=cursors or {},
            streams=None,
            from_now=False,
            limit=limit,
        )
        feed.reader.update_replicas([("worker", k) for k in range(replicas)], existing=False)
        return feed, log, app_id

    return make


@pytest.mark.parametrize("part", ["read", "turn", "checkpoint"])
def test_an_error_of_one_app_does_not_stop_the_lines_of_others(
    engine: FakeEngine, feeds: Any, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(module, "_CHECKPOINT_S", 0.0)
    monkeypatch.setattr(module, "_READERS", 1)
    pump = LogPump(200_000)
    broken, _, broken_id = feeds("broken")
    honest, log, honest_id = feeds("honest")
    if part == "read":
        step = LogReader.step
        monkeypatch.setattr(LogReader, "step", lambda self: fail() if self is broken.reader else step(self))
    elif part == "turn":
        take_turn = Feed.take_turn
        monkeypatch.setattr(Feed, "take_turn", lambda self: fail() if self is broken else take_turn(self))
    else:
        broken.on_checkpoint = fail
    pump.add(broken)
    pump.add(honest)
    for n in range(5):
        engine.write(broken_id, "worker", 0, f"{n}\n")
        engine.write(honest_id, "worker", 0, f"{n}\n")
        until(lambda n=n: len(log.lines) == n + 1)
    until(lambda: broken not in pump._feeds)
    pump.remove(honest)
    pump.remove(broken)


def test_first_lines_of_a_deferred_app_are_in_order_of_time(engine: FakeEngine, feeds: Any) -> None:
    """Grouped by replica, they do not show which replica failed first."""
    pump = LogPump(200_000)
    feed, log, app_id = feeds("several", replicas=3)
    for second in range(6):
        engine.write(app_id, "worker", second % 3, f"{second}\n", time=float(second))
    pump.add(feed)
    until(lambda: len(log.lines) == 6)

    assert log.lines == [f"{second}\n" for second in range(6)]
    assert feed.buffered_bytes() == 0
    pump.remove(feed)


def test_a_quiet_app_is_shown_during_floods(engine: FakeEngine, feeds: Any) -> None:
    """One app that writes without end must not hide the one line of another."""
    pump = LogPump(200_000)
    floods = [feeds(f"flood-{n}") for n in range(5)]
    for _, _, app_id in floods:
        engine.write(app_id, "worker", 0, "".join(f"{n} {'x' * 100}\n" for n in range(20_000)))
    quiet, log, quiet_id = feeds("quiet")
    for feed, _, _ in floods:
        pump.add(feed)
    time.sleep(0.5)
    pump.add(quiet)
    engine.write(quiet_id, "worker", 0, "hello\n")
    began = time.monotonic()
    until(lambda: log.lines)

    assert log.lines == ["hello\n"]
    assert time.monotonic() - began < 4
    shares = [len(other.lines) for _, other, _ in floods]
    # Within one turn of each other.
    turn = TURN_BYTES / (100 + RECORD_BYTES) + 1
    assert max(shares) - min(shares) <= 2 * turn
    for feed, _, _ in floods:
        pump.remove(feed)
    pump.remove(quiet)


def test_the_budget_holds_for_all_together(engine: FakeEngine, feeds: Any) -> None:
    pump = LogPump(50_000)
    made = [feeds(f"app-{n}") for n in range(3)]
    for feed, _, app_id in made:
        engine.write(app_id, "worker", 0, "".join(f"{n} {'x' * 100}\n" for n in range(5_000)))
        pump.add(feed)
    time.sleep(2.0)
    for feed, _, _ in made:
        pump.remove(feed)

    written = sum(len(text) + RECORD_BYTES for _, log, _ in made for text in log.lines)
    assert 0.3 * 100_000 < written < 1.8 * 100_000


def test_a_follower_adds_exactly_the_lines_that_the_pump_left(engine: FakeEngine, feeds: Any) -> None:
    """The trigger stops in the middle of a read chunk, and the worker continues from there."""
    texts = [f"{n}\n" for n in range(3_000)]
    seen: list[str] = []
    places: dict[str, Any] = {}
    # More than a turn writes: else each stop would be at the end of what was read.
    engine.chunk_lines = 500
    within = 0
    feed, log, app_id = feeds("cut")
    engine.write(app_id, "worker", 0, "".join(texts))
    for _ in range(20):
        pump = LogPump(60_000)
        pump.add(feed)
        until(lambda: log.lines)  # noqa: B023 - waits here
        places = json.loads(json.dumps(pump.remove(feed)))
        within += "launch_skip" in str(places)
        seen += log.lines
        feed, log, _ = feeds("cut", places)
    engine.state(app_id, AppState.SUCCEEDED)
    with Follower(FakeScheduler("other", engine), app_id, cursors=places) as follower:
        for event in follower:
            if isinstance(event, LogLines):
                seen += [line.text for line in event.lines]

    assert seen == texts
    assert within > 0


def test_threads_end_with_the_last_feed(engine: FakeEngine, feeds: Any) -> None:
    pump = LogPump(50_000)
    feed, log, app_id = feeds("one")
    engine.write(app_id, "worker", 0, "x\n")
    pump.add(feed)
    threads = list(pump._threads)
    until(lambda: log.lines)
    pump.remove(feed)

    assert threads
    assert feed.reader.due_in() is None, "it would be read on"
    until(lambda: not any(thread.is_alive() for thread in threads))
    assert not pump._reading_since, "a thread that has ended would count as one that hangs"


@pytest.mark.parametrize("text", ["line\n", "x" * (LONG_CHARS + 1) + "\n"], ids=["line", "piece of a long line"])
def test_a_log_that_fails_does_not_stop_the_others(engine: FakeEngine, piece_feeds: Any, text: str) -> None:
    pump = LogPump(500_000)
    broken, broken_log, broken_id = piece_feeds("broken")
    broken_log.write_event = broken_log.write_piece = lambda *_: 1 / 0
    good, log, good_id = piece_feeds("good")
    engine.write(broken_id, "worker", 0, text)
    pump.add(broken)
    until(lambda: broken.positions)
    engine.write(good_id, "worker", 0, "line\n")
    pump.add(good)
    until(lambda: log.lines)

    assert log.lines == ["line\n"]
    assert broken_log.has_gap
    pump.remove(broken)
    pump.remove(good)


def test_a_limit_that_cannot_be_reported_still_holds(engine: FakeEngine, feeds: Any) -> None:
    feed, log, app_id = feeds("flood", limit=LogLimit(10))
    log.report_cut = lambda *_: 1 / 0
    engine.write(app_id, "worker", 0, "first\nsecond\nthird\nfourth\n")
    pump = LogPump(500_000)
    pump.add(feed)
    until(lambda: "worker/0" in feed._left)
    until(lambda: feed.buffered_bytes() == 0)

    assert feed in pump._feeds
    pump.remove(feed)


def test_many_quiet_apps_are_read_a_bounded_number_of_times(engine: FakeEngine, feeds: Any) -> None:
    """The logs of a thousand waiting apps must not cost a thousand requests a second."""
    pump = LogPump(500_000)
    made = [feeds(f"idle-{n}") for n in range(200)]
    reads: dict[str, int] = defaultdict(int)
    scheduler = made[0][0].reader._scheduler
    plain = scheduler.read_logs

    def counted(app_id: str, *args: Any, **kwargs: Any) -> Any:
        reads[app_id] += 1
        return plain(app_id, *args, **kwargs)

    scheduler.read_logs = counted
    for feed, _, _ in made:
        pump.add(feed)
    # Each is read once as soon as it comes.
    until(lambda: len(reads) == len(made))
    reads.clear()
    time.sleep(3.0)
    total, apps = sum(reads.values()), len(reads)
    for feed, _, _ in made:
        pump.remove(feed)

    assert total < 3.0 * module._IDLE_READS_PER_S * 1.5
    assert apps > 30


def test_beyond_its_limit_a_replica_is_left_to_the_worker(engine, feeds) -> None:
    """A triggerer that watches for days reads of a flood no more than it may show."""
    limit = LogLimit(200)
    feed, log, app_id = feeds("flood", limit=limit)
    pump = LogPump(1e9)
    pump.add(feed)
    for number in range(1, 1001):
        engine.write(app_id, "worker", 0, f"{number}\n")
    until(lambda: log.lines[-1:] == ["cut worker/0 200"])
    reads = engine.log_calls
    engine.write(app_id, "worker", 0, "more\n")
    time.sleep(0.5)
    places = pump.remove(feed)

    assert log.lines[:-1] == [f"{number}\n" for number in range(1, 37)]
    assert engine.log_calls <= reads + 1
    again, shown, _ = feeds("flood", places, LogLimit(200, limit.shown_bytes))
    pump.add(again)
    time.sleep(0.5)
    assert shown.lines == []
    assert pump.remove(again) == places
    with Follower(FakeScheduler("session", engine), app_id, cursors=places) as follower:
        engine.state(app_id, AppState.SUCCEEDED)
        texts = [line.text for event in follower if isinstance(event, LogLines) for line in event.lines]
    assert texts[0] == "37\n"
    assert texts[-1] == "more\n"


def test_each_replica_has_a_limit_of_its_own(engine, feeds) -> None:
    feed, log, app_id = feeds("two", limit=LogLimit(200), replicas=2)
    pump = LogPump(1e9)
    pump.add(feed)
    for k in (0, 1):
        engine.write(app_id, "worker", k, "".join(f"{number}\n" for number in range(1, 1001)))
        until(lambda k=k: log.lines[-1:] == [f"cut worker/{k} 200"])
    pump.remove(feed)

    assert log.lines.count("36\n") == 2


class PieceLog(Log):
    """Takes whole lines, and pieces of long ones, as `TaskLog` does."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[tuple[int, int, str]] = []

    def write_piece(self, key: str, line: Any, parts: Any, number: int) -> None:
        self.pieces.append((number, len(parts), parts[number]))


def test_a_log_that_is_not_shown_live_is_named(
    engine: FakeEngine, feeds: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A triggerer shows the logs of thousands of apps."""
    pump = LogPump(1024 * 1024)
    feed, _, app_id = feeds("broken")

    def fail(_self: Feed) -> int:
        raise ValueError("a line that cannot be read")

    monkeypatch.setattr(Feed, "take_turn", fail)
    engine.write(app_id, "worker", 0, "line\n")
    pump.add(feed)
    until(lambda: caplog.records)
    pump.remove(feed)

    assert f"the log of app {app_id} is no longer shown live" in caplog.text


@pytest.fixture
def piece_feeds(engine: FakeEngine) -> Callable[..., tuple[Feed, PieceLog, str]]:
    scheduler = FakeScheduler("session", engine)

    def make(name: str, cursors: dict[str, Any] | None = None, log: Any = None) -> tuple[Feed, PieceLog, str]:
        app_id = scheduler.schedule(scheduler.submit_dryrun(an_app(), {}, app_id=name))
        log = log or PieceLog()
        context = contextvars.copy_context()
        feed = Feed(scheduler, app_id, log, context, cursors=cursors or {}, streams=None, from_now=False)
        feed.reader.update_replicas([("worker", 0)], existing=False)
        return feed, log, app_id

    return make


def test_a_long_line_does_not_delay_other_apps(engine: FakeEngine, piece_feeds: Any) -> None:
    """A program without line feeds writes lines of 16 MB; other apps of the triggerer are still shown."""
    pump = LogPump(256 * 1024)
    engine.chunk_lines = 1
    loud = [piece_feeds(f"loud-{n}") for n in range(4)]
    for feed, _, loud_id in loud:
        for _ in range(3):
            engine.write(loud_id, "worker", 0, "x" * (16 * 1024 * 1024) + "\n")
        pump.add(feed)
    quiet, log, quiet_id = piece_feeds("quiet")
    pump.add(quiet)
    delays = []
    for n in range(15):
        began = time.monotonic()
        engine.write(quiet_id, "worker", 0, f"{n}\n")
        until(lambda n=n: len(log.lines) > n)
        delays.append(time.monotonic() - began)
        time.sleep(0.1)
    began = time.monotonic()
    for feed, _, _ in loud:
        pump.remove(feed)
    left_s = time.monotonic() - began
    pump.remove(quiet)

    assert log.lines == [f"{n}\n" for n in range(15)]
    # A quiet app is read about each second at the latest; the rest is the wait behind the long line.
    assert max(delays) < 2.0, delays
    assert left_s < 1.0


def test_no_turn_of_a_long_line_with_many_secrets_is_long(engine: FakeEngine, piece_feeds: Any) -> None:
    """One thread writes the lines of all apps; the secrets of one app must not hold back the others."""
    letters = random.Random(1)
    secrets = ["".join(letters.choices("abcdefgh", k=size)) for size in (16_000, *[100] * 127)]
    text = "".join(letters.choices("abcdefgh", k=128 * 1024)) * 32
    record = TaskRecorder()
    task_log = TaskLog(record, "long", FollowProgress())
    task_log.hide(secrets)
    feed, _, app_id = piece_feeds("long", log=task_log)
    engine.write(app_id, "worker", 0, text[: -len(secrets[0])] + secrets[0] + "\n")
    feed.reader.step()
    took = []
    while feed.has_more():
        started_at = time.thread_time()
        feed.take_turn()
        took.append(time.thread_time() - started_at)

    assert len(took) >= 128
    assert max(took[1:]) < 0.2
    assert took[0] < 1, "it imports the masks of Airflow"
    shown = [line.partition("] ")[2] for line in record.lines]
    assert "".join(shown) == text[: -len(secrets[0])] + "***"


def test_a_long_line_that_is_interrupted_continues_where_it_stopped(engine: FakeEngine, piece_feeds: Any) -> None:
    """Each piece is written once, by whichever trigger, or by the worker."""
    text = "".join(chr(ord("a") + n % 26) * 1000 for n in range(2_000))
    feed, log, app_id = piece_feeds("cut")
    engine.write(app_id, "worker", 0, "first\n" + text + "\nlast\n")
    pieces: list[tuple[int, int, str]] = []
    lines: list[str] = []
    places: dict[str, Any] = {}
    for _ in range(8):
        pump = LogPump(400_000)
        pump.add(feed)
        until(lambda: log.pieces)  # noqa: B023 - waits here
        places = json.loads(json.dumps(pump.remove(feed)))
        pieces += log.pieces
        lines += log.lines
        feed, log, _ = piece_feeds("cut", places)
    assert "launch_pieces" in str(places), "the cuts are to be within the line"
    assert len(pieces) < 62

    engine.state(app_id, AppState.SUCCEEDED)
    record = TaskRecorder()
    task_log = TaskLog(record, "cut", FollowProgress(cursors=places))
    with Follower(FakeScheduler("other", engine), app_id, cursors=places) as follower:
        for event in follower:
            if isinstance(event, LogLines):
                task_log.write_event(event)

    rest = [re.fullmatch(r"\[worker/0 (\d+)/(\d+)\] (.*)", line) for line in record.lines]
    pieces += [(int(found[1]) - 1, int(found[2]), found[3]) for found in rest if found]
    assert [number for number, _, _ in pieces] == list(range(pieces[0][1]))
    assert "".join(part for _, _, part in pieces) == text
    assert lines == ["first\n"]
    assert record.lines[-1] == "[worker/0] last"


class StdoutFirst(FakeScheduler):
    """A scheduler with a file for each stream: each read returns its lines of stdout first."""

    def read_logs(self, *place: Any, **how: Any) -> LogChunk:
        chunk = super().read_logs(*place, **how)
        return LogChunk(sorted(chunk.lines, key=lambda line: line.stream is Stream.STDERR), chunk.cursor)


def test_pieces_of_a_line_are_not_taken_for_pieces_of_an_earlier_one(engine: FakeEngine) -> None:
    """Between two parts of the task, the other stream may get a line that the next read returns first."""
    scheduler, places, log = StdoutFirst("session", engine), {}, PieceLog()
    app_id = scheduler.schedule(scheduler.submit_dryrun(an_app(), {}, app_id="both"))
    text = "".join(chr(ord("a") + n % 26) * 1000 for n in range(200))
    engine.write(app_id, "worker", 0, text + "\n", stream=Stream.STDERR)

    def run(turns: int) -> dict[str, Any]:
        feed = Feed(scheduler, app_id, log, contextvars.copy_context(), cursors=places, streams=None, from_now=False)  # type: ignore[arg-type]
        feed.reader.update_replicas([("worker", 0)], existing=False)
        feed.reader.step()
        for _ in range(turns):
            feed.take_turn()
        return json.loads(json.dumps(feed.close()))  # type: ignore[no-any-return]

    places = run(2)
    engine.write(app_id, "worker", 0, text + "\n")
    places = run(3)
    engine.write(app_id, "worker", 0, "short\n")
    rest = TaskRecorder()
    engine.state(app_id, AppState.SUCCEEDED)
    with Follower(scheduler, app_id, cursors=places) as follower:
        task_log = TaskLog(rest, "both", FollowProgress(cursors=places))
        for event in follower:
            if isinstance(event, LogLines):
                task_log.write_event(event)

    assert [number for number, _, _ in log.pieces] == [0, 1, 0, 1, 2]
    numbers = [line.partition("]")[0] for line in rest.lines]
    assert numbers == [
        *(f"[worker/0 {number}/7" for number in range(4, 8)),
        "[worker/0",
        *(f"[worker/0 {number}/7" for number in range(3, 8)),
    ]


def test_a_follower_keeps_the_pieces_of_a_line_that_it_has_not_reached(engine: FakeEngine) -> None:
    """A worker that is interrupted before it leaves the pieces to the next one."""
    scheduler = FakeScheduler("session", engine)
    app_id = scheduler.schedule(scheduler.submit_dryrun(an_app(), {}, app_id="interrupted"))
    engine.state(app_id, AppState.RUNNING)
    places = {"worker/0": {"launch_from": None, "launch_skip": {}, "launch_pieces": {"stderr": 2}}}
    engine.write(app_id, "worker", 0, "short\n")
    with Follower(scheduler, app_id, cursors=places) as follower:
        next(event for event in follower if isinstance(event, LogLines))

        assert follower.cursors["worker/0"]["launch_pieces"] == {"stderr": 2}  # type: ignore[index, call-overload]
        engine.write(app_id, "worker", 0, "long\n", stream=Stream.STDERR)
        next(event for event in follower if isinstance(event, LogLines))
        assert "launch_pieces" not in str(follower.cursors)


class TaskRecorder:
    """A task's logger."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, *args: object) -> None:
        self.lines.append(text % args if args else text)

    warning = info

    def log(self, _level: int, text: str, *args: object) -> None:
        """Changes of state are of no interest here."""


def test_while_much_is_buffered_only_light_feeds_are_read(engine: FakeEngine, feeds: Any, monkeypatch: Any) -> None:
    """Memory does not grow with the logs, and no quiet app is silenced by it."""
    monkeypatch.setattr(module, "_BUFFERED_BYTES", 1000)
    pump = LogPump(1.0)
    (held, _, _), (heavy, _, _), (quiet, _, _) = (feeds(name) for name in ("held", "heavy", "quiet"))
    monkeypatch.setattr(type(held), "buffered_bytes", lambda self: 2000 if self is held else 0)
    heavy.is_heavy = True
    pump._writable = [(0, 1, held)]
    now = time.monotonic()
    for number, feed in enumerate((heavy, quiet)):
        pump._feeds[feed] = served = module._Served()
        served.ticket = number + 1
        pump._readable.append((now + number, number + 1, feed))

    assert pump._due_at(now) == now + 1
    assert [feed for _, _, feed in pump._readable] == [quiet]
    pump._writable = []
    assert pump._due_at(now) == now
    assert {feed for _, _, feed in pump._readable} == {heavy, quiet}
    assert pump._due_at(now) == now
    assert len(pump._readable) == 2


def test_a_reader_that_is_no_longer_needed_does_not_count() -> None:
    """It has replaced one that hung; otherwise the others would end, too."""
    pump, mine = LogPump(1.0), threading.current_thread()
    pump._threads = [mine, *(threading.Thread() for _ in range(module._READERS + 1))]

    assert pump._next_to_read() is None
    assert mine not in pump._threads


def test_a_checkpoint_does_not_delay_lines_for_long(engine: FakeEngine, feeds: Any, monkeypatch: Any) -> None:
    """It waits until the supervisor has read all; one that is busy must not silence a quiet app meanwhile."""
    monkeypatch.setattr(module, "_CHECKPOINT_S", 0.2)
    monkeypatch.setattr(module, "log_bytes_unread", lambda: 1)
    pump = LogPump(1e6)
    feed, log, app_id = feeds("quiet")
    pump.add(feed)
    delays = []
    for n in range(9):
        began = time.monotonic()
        engine.write(app_id, "worker", 0, f"{n}\n")
        feed.reader.read_now()
        pump.wake(feed)
        until(lambda n=n: len(log.lines) > n)
        delays.append(time.monotonic() - began)
        time.sleep(0.2)
    muted = feed.checkpoint
    monkeypatch.setattr(module, "log_bytes_unread", lambda: 0)
    until(lambda: feed.checkpoint == feed.positions)
    pump.remove(feed)

    assert sorted(delays)[4] < 0.5, delays
    assert muted == {}
