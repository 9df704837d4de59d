"""Positions between two cursors of a scheduler, whose next read may merge the lines of several writers differently."""

from __future__ import annotations

import json
import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch.follow.events import LogLines
from airflow_provider_launch.follow.log_positions import LogItem, cursor_in, pieces_after, pieces_in, pieces_of
from airflow_provider_launch.follow.log_reader import LogReader
from airflow_provider_launch.schedulers.api import LogChunk, LogLine, Stream

WRITERS = ((Stream.STDOUT, ""), (Stream.STDERR, ""), (Stream.COMBINED, "side"), (Stream.COMBINED, ""))


class Writers:
    """A scheduler of one replica: each read returns some lines of each writer, in a random order."""

    backend, poll_interval_s = "random", 1.0

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: dict[str, list[LogLine]] = {str(number): [] for number in range(len(WRITERS))}

    def write(self) -> None:
        for number, (stream, container) in enumerate(WRITERS):
            lines = self.lines[str(number)]
            for _ in range(self.random.randint(0, 3)):
                lines.append(LogLine(f"{number} {len(lines)}\n", stream, container=container))

    def read_logs(self, _app_id: str, _role: str, _k: int, cursor: Any, **_how: Any) -> LogChunk:
        after = dict(cursor or {})
        left = {name: lines[after.get(name, 0) :][: self.random.randint(0, 6)] for name, lines in self.lines.items()}
        after |= {name: after.get(name, 0) + len(lines) for name, lines in left.items()}
        names = [name for name, lines in left.items() for _ in lines]
        self.random.shuffle(names)
        return LogChunk([left[name].pop(0) for name in names], after)


def reader_at(scheduler: Any, stored: str) -> LogReader:
    """A reader, without a thread, that continues at a stored position."""
    reader = LogReader(
        scheduler,
        "app-1",
        threading.Condition(),
        cursors={"main/0": json.loads(stored)},
        streams=None,
        from_now=False,
        own_thread=False,
    )
    reader.update_replicas([("main", 0)], existing=True)
    return reader


@pytest.mark.parametrize("seed", range(50))
def test_each_line_is_shown_once_when_each_read_has_another_order(seed: int) -> None:
    """A reader is cut between any two lines, and the next one may get more lines, fewer lines, or others first."""
    scheduler, stored, texts = Writers(seed), "null", list[str]()
    for cut in range(300):
        if cut < 200:
            scheduler.write()
        reader = reader_at(scheduler, stored)
        for _ in range(scheduler.random.randint(1, 3)):
            reader.step()
        for item in iter(reader.pop, None):
            shown = scheduler.random.randint(0, len(item.lines))
            texts += [line.text for line in item.lines[:shown]]
            stored = json.dumps(item.position(shown, json.loads(stored)))
            reader.release(item)
            if shown < len(item.lines):
                break
    reader = reader_at(scheduler, stored)
    for _ in range(2000):
        reader.step()
        for item in iter(reader.pop, None):
            texts += [line.text for line in item.lines]
            reader.release(item)

    for number, lines in scheduler.lines.items():
        assert [text for text in texts if text.startswith(number)] == [line.text for line in lines]
    assert len(texts) == sum(map(len, scheduler.lines.values())) > 500


def test_a_position_of_an_earlier_version_counts_lines_of_all_writers() -> None:
    """It is in triggers and records of tasks that were deferred before an upgrade."""
    lines = [LogLine(text, stream) for text, (stream, _) in zip("abcd", WRITERS * 2, strict=False)]
    scheduler = SimpleNamespace(
        backend="some",
        poll_interval_s=1.0,
        read_logs=lambda _app_id, _role, _k, cursor, **_how: LogChunk(lines[cursor or 0 :][:2], (cursor or 0) + 2),
    )
    for skip in range(5):
        reader = reader_at(scheduler, json.dumps({"launch_from": None, "launch_skip": skip}))
        texts = []
        for _ in range(2):
            reader.step()
            item = reader.pop()
            assert item is not None
            texts += [line.text for line in item.lines]
        assert texts == [*"abcd"[skip:]]


@pytest.mark.parametrize("skip", [-3, "2", None, [1], {"stdout": -1, "stderr": "x"}])
def test_a_position_that_is_not_valid_skips_nothing(skip: Any) -> None:
    """Users can edit positions, which are in the arguments of triggers."""
    assert cursor_in({"launch_from": 7, "launch_skip": skip}) == (7, {})
    assert pieces_in({"launch_from": 7, "launch_skip": 0, "launch_pieces": skip}) == {}


OUT, ERR = (LogLine(text, stream) for text, stream in (("out\n", Stream.STDOUT), ("err\n", Stream.STDERR)))


def test_pieces_belong_to_the_next_line_of_their_writer() -> None:
    item = LogItem(LogLines("main", 0, [ERR]), "main/0", {"at": 1}, start=None, start_skip={})
    stored = json.loads(json.dumps(item.position(0, None, 2)))
    again = LogItem(LogLines("main", 0, [OUT, ERR]), "main/0", {"at": 2}, start=None, start_skip={})

    assert [pieces_of(line, pieces_in(stored)) for line in again.lines] == [0, 2]
    assert pieces_in(again.position(1, stored)) == {"stderr": 2}
    assert pieces_in(again.position(0, stored, 1)) == {"stderr": 2, "stdout": 1}
    assert again.position(2, stored) == {"at": 2}


def test_pieces_of_an_earlier_version_belong_to_the_next_line() -> None:
    pieces = pieces_in({"launch_from": None, "launch_skip": 1, "launch_pieces": 2})

    assert pieces_of(ERR, pieces) == 2
    assert pieces_after([ERR], pieces) == {}


@pytest.mark.parametrize("part", ["launch_skip", "launch_pieces"])
def test_an_edited_position_of_many_writers_takes_little_memory(part: str) -> None:
    """Each item that waits has counts of its own: 200 lines took 3 GB."""
    stored = {"launch_from": {}, "launch_skip": {}, part: {f"{number:x}": 1 for number in range(20_000)}}
    scheduler = Writers(0)
    reader = reader_at(scheduler, json.dumps(stored))
    for _ in range(20):
        scheduler.write()
        reader.step()
    items = [*iter(reader.pop, None)]
    counts = [item.start_skip or {} for item in items]
    counts += [position.get(part, {}) for item in items for position in [item.position(len(item.lines), stored)]]

    assert len(items) > 5
    assert max(map(len, counts)) < 1000
