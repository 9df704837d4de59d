"""When a log is read next."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from airflow_provider_launch.follow import log_positions as log_queue
from airflow_provider_launch.follow.events import AttemptEnded, LogGap, LogLines
from airflow_provider_launch.follow.log_positions import position_after
from airflow_provider_launch.follow.log_reader import LogReader
from airflow_provider_launch.follow.stream_loop import stream_loop
from airflow_provider_launch.schedulers.api import LogChunk, LogLine, Stream
from airflow_provider_launch.schedulers.logs import LINE_BYTES


def reader_of(lines: list[LogLine], chunk_lines: int, **how) -> LogReader:
    """A reader, without a thread, of one replica whose cursor is the number of lines."""

    def read_logs(_app_id, _role, _k, cursor, **_how) -> LogChunk:
        begin = cursor or 0
        return LogChunk(lines[begin : begin + chunk_lines], min(begin + chunk_lines, len(lines)))

    scheduler = SimpleNamespace(backend="some", poll_interval_s=1.0, read_logs=read_logs)
    known = {"cursors": {}, "streams": None, "from_now": False, "own_thread": False, **how}
    reader = LogReader(scheduler, "app-1", threading.Condition(), **known)
    reader.update_replicas([("main", 0)], existing=True)
    return reader


def texts_of(reader: LogReader) -> list[str]:
    texts: list[str] = []
    for item in iter(reader.pop, None):
        texts += [line.text for line in item.event.lines] if item.event is not None else []
        reader.release(item)
    return texts


def numbered(count: int, size: int = 1, **how) -> list[LogLine]:
    return [LogLine(f"{number}".rjust(size) + "\n", Stream.STDOUT, how.get("time")) for number in range(count)]


def test_lines_that_were_shown_are_left_out_over_several_chunks():
    """Another process may read in smaller chunks than the one that has shown them."""
    reader = reader_of(numbered(8), 2, cursors={"main/0": position_after(None, {"stdout": 5})})
    for _ in range(4):
        reader.step()

    assert texts_of(reader) == ["5\n", "6\n", "7\n"]


@pytest.mark.parametrize("size", [1, 1000], ids=["short lines", "long lines"])
def test_reading_stops_while_much_waits(size):
    """Lines of a log wait in memory until they are written, whatever their length."""
    reader = reader_of(numbered(5000, size), 20)
    for _ in range(250):
        if reader.due_in() is None:
            break
        reader.step()

    assert reader.due_in() is None
    assert len(texts_of(reader)) <= log_queue.QUEUE_LINES + 20
    assert reader.buffered_bytes() <= log_queue.QUEUE_BYTES + 20 * (1001 + LINE_BYTES)


@pytest.fixture
def short_pieces(monkeypatch) -> None:
    monkeypatch.setattr("airflow_provider_launch.schedulers.logs.LONGEST_LINE", 100)
    monkeypatch.setattr("airflow_provider_launch.schedulers.logs._MOST_LETTERS", 110)


@pytest.mark.usefixtures("short_pieces")
def test_a_line_that_its_scheduler_has_not_cut_is_shown_in_pieces():
    """A plug-in may return a line of any length; the reader must not keep copies of all of it."""
    lines = [LogLine("a" * 250 + "\n", None), LogLine("b" * 110, None), LogLine("", None), LogLine("c\n", None)]
    reader = reader_of(lines, 10)
    reader.step()

    assert texts_of(reader) == ["a" * 100, "a" * 100, "a" * 50 + "\n", "b" * 110, "", "c\n"]


class Opened:
    cursor = 1


@pytest.mark.usefixtures("short_pieces")
def test_a_reader_continues_after_the_pieces_that_were_shown():
    lines = [LogLine("a" * 250 + "\n", Stream.STDERR), LogLine("c\n", Stream.STDERR)]
    reader = reader_of(lines, 10, cursors={"main/0": position_after(None, {"stderr": 2})})
    reader.step()

    assert texts_of(reader) == ["a" * 50 + "\n", "c\n"]


@pytest.mark.usefixtures("short_pieces")
def test_long_lines_of_a_stream_are_shown_in_pieces():
    reader = reader_of([], 10)
    stream = Opened()
    replica = reader._replicas["main/0"]
    replica.stream, reader._streamed[stream] = stream, replica
    reader.on_lines(stream, [LogLine("a" * 250, None)])

    assert texts_of(reader) == ["a" * 100, "a" * 100, "a" * 50]


def test_of_a_line_without_an_end_its_last_letters_are_shown():
    reader = reader_of([], 10)
    reader._shows_unfinished = True
    reader._scheduler.unfinished_line = lambda *_place, **_how: LogLine("a" * 100_000 + "z", None)
    reader._replicas["main/0"].quiet_since = 0.0
    reader.step()
    shown = next(item.event for item in iter(reader.pop, None) if item.event is not None)

    assert shown.line.text == "a" * 4095 + "z"


def test_the_first_line_since_the_follower_came_is_shown():
    old, new = numbered(3, time=1.0), numbered(2, time=time.time() + 60)
    reader = reader_of([*old, *new], 10, from_now=True)
    reader.step()

    assert texts_of(reader) == ["0\n", "1\n"]


@pytest.mark.parametrize("stream", [
    SimpleNamespace(attempt="first", cursor=1, close=lambda: None),
    SimpleNamespace(cursor=1),
    5,
    [],
])  # fmt: skip
def test_a_stream_of_a_plug_in_that_cannot_be_used_leaves_its_slot_to_others(stream):
    """There are 200 in a process; each such stream took one for ever."""
    reader = reader_of(numbered(2), 1)
    reader.can_stream = True
    reader._scheduler.stream_log = lambda *_, **__: stream
    before = stream_loop()._reserved
    for _ in range(3):
        reader.step()

    assert stream_loop()._reserved == before
    assert texts_of(reader) == ["0\n", "1\n"]
    assert not reader.is_streaming()


def test_an_ending_that_cannot_be_read_holds_back_no_line():
    """It is the last output of an earlier attempt, which may be deleted."""
    lines = [LogLine("first\n", None, None, 0), LogLine("second\n", None, None, 1)]
    reader = reader_of(lines, 2)

    def fail(*_args: object) -> str:
        raise OSError("gone")

    reader._scheduler.attempt_ending = fail
    reader.step()
    events = [item.event for item in iter(reader.pop, None)]

    assert [(event.attempt, event.ending) for event in events if isinstance(event, AttemptEnded)] == [(0, "")]
    lines = [line.text for event in events if isinstance(event, LogLines) for line in event.lines]
    assert lines == ["first\n", "second\n"]


def test_an_end_that_comes_in_the_middle_of_a_read_is_read_at_once():
    """Such a read says nothing about the end, and the next one must not wait for the slow step of a quiet log."""

    def read_logs(*_place, **_how) -> LogChunk:
        if not reads:
            reader.finish()
        reads.append(reader)
        return LogChunk([], None)

    reads: list[LogReader] = []
    scheduler = SimpleNamespace(backend="slow", poll_interval_s=10.0, read_logs=read_logs)
    reader = LogReader(
        scheduler, "app-1", threading.Condition(), cursors={}, streams=None, from_now=False, own_thread=False
    )
    reader.update_replicas([("main", 0)], existing=False)
    reader.step()

    assert not reader.done()
    assert reader.due_in() <= 0
    reader.step()
    assert reader.incomplete() == []
    assert len(reads) == 2


@pytest.mark.parametrize("answer", [None, iter(()), LogChunk([3], None)], ids=["none", "iterator", "no lines"])
def test_an_answer_that_is_not_a_chunk_is_a_gap(answer):
    """A triggerer reads the logs of all apps on a few threads, which must not end by a plug-in's mistake."""
    scheduler = SimpleNamespace(backend="odd", poll_interval_s=1.0, read_logs=lambda *_place, **_how: answer)
    reader = LogReader(
        scheduler, "app-1", threading.Condition(), cursors={}, streams=None, from_now=False, own_thread=False
    )
    reader.update_replicas([("main", 0)], existing=False)
    reader.step()

    item = reader.pop()
    assert item is not None
    assert isinstance(item.event, LogGap)
    assert reader.incomplete()


def test_short_lines_count_with_their_memory():
    """The limits of a triggerer would otherwise let gigabytes pass."""
    reader = reader_of(numbered(1000), 1000)
    reader.step()

    assert reader.buffered_bytes() >= 1000 * LINE_BYTES


def reader_of_two(first: list[LogLine], second: list[LogLine], cursors=None) -> LogReader:
    """A reader, without a thread, of two replicas."""
    logs = [first, second]

    def read_logs(_app_id, _role, k, cursor, **_how) -> LogChunk:
        return LogChunk(logs[k][cursor or 0 :], len(logs[k]))

    scheduler = SimpleNamespace(backend="some", poll_interval_s=1.0, read_logs=read_logs)
    reader = LogReader(
        scheduler, "app-1", threading.Condition(), cursors=cursors or {}, streams=None, from_now=False, own_thread=False
    )
    reader.update_replicas([("main", 0), ("main", 1)], existing=True)
    return reader


def timed(*lines: tuple[str, float]) -> list[LogLine]:
    return [LogLine(text, None, at) for text, at in lines]


def test_first_lines_of_replicas_wait_for_each_other_and_are_in_order_of_time():
    """A deferred app may have written all its lines before the first of them is read."""
    reader = reader_of_two(timed(("a1", 1), ("a4", 4), ("a5", 5)), timed(("b2", 2), ("b3", 3)))
    reader.step()
    held = reader.pop()
    wait_s = reader.due_in()
    reader.step()

    assert held is None
    assert wait_s is not None
    assert texts_of(reader) == ["a1", "b2", "b3", "a4", "a5"]
    assert reader.buffered_bytes() == 0


def test_a_reader_that_stops_between_divided_lines_continues_there():
    first, second = timed(("a1", 1), ("a4", 4), ("a5", 5), ("a7", 7)), timed(("b2", 2), ("b3", 3), ("b6", 6))
    for shown in range(1, 6):
        reader = reader_of_two(first, second)
        reader.step()
        reader.step()
        cursors, texts = {}, []
        for number in range(1, shown + 1):
            item = reader.pop()
            lines = item.lines[:1] if number == shown else item.lines
            cursors[item.key] = item.position(len(lines), None)
            texts += [line.text for line in lines]
            reader.release(item)
        another = reader_of_two(first, second, cursors)
        another.step()
        another.step()

        assert sorted([*texts, *texts_of(another)]) == ["a1", "a4", "a5", "a7", "b2", "b3", "b6"]


def test_first_lines_do_not_wait_long_for_a_log_that_hangs():
    reader = reader_of_two(timed(("a1", 1)), timed(("b2", 2)))
    reader.step()
    held = reader.pop()
    time.sleep(0.6)

    assert held is None
    assert texts_of(reader) == ["a1"]


def test_lines_without_times_are_not_kept():
    """Local processes store no times, so waiting would not order their lines."""
    reader = reader_of_two([LogLine("a", None)], [LogLine("b", None)])
    reader.step()

    assert texts_of(reader) == ["a"]


def test_join_waits_for_a_read_that_is_under_way():
    """After it the client may be closed."""
    asked, may_answer = threading.Event(), threading.Event()

    def read_late(*_place, **_how) -> LogChunk:
        asked.set()
        may_answer.wait(20)
        return LogChunk([], None)

    reader = reader_of([], 1, own_thread=True)
    reader._scheduler.read_logs = read_late
    reader.update_replicas([("main", 0)], existing=True)
    assert asked.wait(20)
    reader.stop()
    threading.Timer(0.3, may_answer.set).start()
    reader.join(20)

    assert not reader._thread.is_alive()
