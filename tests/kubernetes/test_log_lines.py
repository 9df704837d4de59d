"""Positions in a log whose times are not in order: no line is lost or repeated."""

from __future__ import annotations

import random
import tracemalloc
from datetime import datetime, timezone

import pytest

from airflow_provider_launch.schedulers.kubernetes.attempts_log import StampedLines
from airflow_provider_launch.schedulers.kubernetes.log_lines import (
    LONGEST_LINE,
    MARGIN_S,
    LineReader,
    split,
)

NOW = 1_700_000_000


def stamp(ns: int) -> bytes:
    seconds, rest = divmod(ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z ".encode()


class Log:
    """A growing log, as a node serves it."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, bytes]] = []
        self.tail = b""

    def add(self, ns: int, text: str) -> None:
        self.lines.append((ns, text.encode()))

    def answer(self, since: str | None) -> bytes:
        first = 0
        if since:
            first = int(datetime.fromisoformat(since.replace("Z", "+00:00")).timestamp()) * 10**9
        return b"".join(stamp(ns) + text for ns, text in self.lines if ns >= first) + self.tail


def read(log: Log, cursor: dict, size: int = 50, limit: int = 10**9) -> tuple[list[str], dict, LineReader]:
    reader = LineReader(cursor)
    data = log.answer(reader.since)
    lines: list = []
    reader.take(split(data[at : at + size] for at in range(0, len(data), size)), lines, limit)
    return [line.text for line in lines], reader.cursor(), reader


def test_times_that_are_out_of_order_cost_no_line():
    """Two threads write one file: a later line may have an earlier time."""
    rng = random.Random(7)
    log, seen, cursor, number = Log(), [], {}, 0
    for step in range(300):
        for _ in range(rng.randrange(8)):
            number += 1
            log.add((NOW + step // 20) * 10**9 + step * 10**6 + rng.randrange(-40, 40) * 10**6 + number, f"{number}\n")
        lines, after, _ = read(log, cursor, limit=rng.choice([1, 20, 10**9]))
        if rng.random() > 0.2:  # else the reader died before it stored the cursor
            seen += lines
            cursor = after
    while lines:
        lines, cursor, _ = read(log, cursor)
        seen += lines

    assert seen == [f"{n}\n" for n in range(1, number + 1)]


def test_lines_of_one_time_are_distinguished():
    """CRI-O gives one time to all lines of one read from a pipe, and programs repeat lines."""
    rng = random.Random(11)
    written = [rng.choice(["\n", "loss 0.3\n", "epoch\n"]) for _ in range(300)]
    log, seen, cursor = Log(), [], {}
    for number, text in enumerate(written):
        log.add((NOW + number // 50) * 10**9, text)
        if rng.random() < 0.3:
            lines, cursor, _ = read(log, cursor, limit=rng.choice([1, 30]))
            seen += lines
            assert read(log, cursor)[0] == written[len(seen) : number + 1]

    assert seen + read(log, cursor)[0] == written


def test_a_read_starts_some_seconds_before_its_position():
    log = Log()
    log.add(NOW * 10**9 + 5, "a\n")
    _, cursor, _ = read(log, {})

    since = LineReader(cursor).since
    assert since is not None
    assert datetime.fromisoformat(since.replace("Z", "+00:00")).timestamp() == NOW - MARGIN_S


def test_an_unfinished_line_is_left_for_later():
    log = Log()
    log.add(NOW * 10**9, "a\n")
    log.tail = stamp(NOW * 10**9 + 1) + b"half"
    lines, cursor, reader = read(log, {})

    assert lines == ["a\n"]
    assert [line.text for line in reader.rest()] == ["half"]
    log.tail = b""
    log.add(NOW * 10**9 + 1, "half and half\n")
    assert read(log, cursor)[0] == ["half and half\n"]


def test_the_rest_of_a_long_line_has_no_time_and_is_dropped():
    """A line of several pieces that started before the read was already delivered."""
    reader = LineReader({})
    lines: list = []
    reader.take(split([b"xxx\n", stamp(NOW * 10**9), b"next\n"]), lines, 10**9)

    assert [line.text for line in lines] == ["next\n"]


def test_a_new_file_does_not_hold_the_place():
    old, new = Log(), Log()
    old.add(NOW * 10**9, "old\n")
    new.add((NOW + 1) * 10**9, "new\n")
    _, cursor, _ = read(old, {})
    lines, after, reader = read(new, cursor)

    assert lines == []
    assert reader.seeking
    assert reader.first == (NOW + 1) * 10**9
    assert not reader.cut_off
    assert after == cursor


def test_an_answer_that_is_cut_off_is_no_new_file():
    """Its lines are older than the position: they were delivered, and must not be repeated."""
    log = Log()
    for second in range(20):
        log.add((NOW + second) * 10**9, f"{second}\n")
    _, cursor, _ = read(log, {})
    del log.lines[10:]
    reader = LineReader(cursor, whole=True)
    reader.take(split([log.answer(reader.since)]), [], 10**9)

    assert reader.seeking
    assert reader.cut_off


@pytest.mark.parametrize("zone", ["Z", "+00:00", "+05:30", "-07:00"])
def test_nodes_write_the_times_of_their_zone(zone):
    reader = LineReader({})
    lines: list = []
    reader.take(split([f"2026-01-31T12:00:00.5{zone} a\n".encode()]), lines, 10**9)

    expected = datetime.fromisoformat("2026-01-31T12:00:00" + zone.replace("Z", "+00:00")).timestamp() + 0.5
    assert lines[0].time == expected


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_whole_wherever_the_pieces_end(size):
    text = b"a\n\nb\r\nc"

    assert [*split(text[at : at + size] for at in range(0, len(text), size))] == [b"a\n", b"\n", b"b\r\n", b"c"]


def test_memory_does_not_grow_with_the_seconds_of_a_log():
    """A follower reads one answer for days, and each line may have another second."""
    parser = StampedLines({})
    tracemalloc.start()
    try:
        for second in range(20_000):
            parser.feed(stamp((NOW + second) * 10**9) + b"x\n")
        assert tracemalloc.get_traced_memory()[0] < 10**6
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_a_line_without_end():
    parser, piece, lines = StampedLines({}), b"x" * 64 * 1024, []
    tracemalloc.start()
    try:
        lines += parser.feed(stamp(NOW * 10**9))
        for _ in range(1600):  # 100 MB
            # A follower takes the lines and prints them.
            lines += [line._replace(text=line.text[:10]) for line in parser.feed(piece)]
        assert tracemalloc.get_traced_memory()[1] < 5 * LONGEST_LINE
    finally:
        tracemalloc.stop()
    assert len(lines) == 1600 * len(piece) // LONGEST_LINE


@pytest.mark.parametrize("size", [LONGEST_LINE - 1, LONGEST_LINE, LONGEST_LINE + 1, 2 * LONGEST_LINE + 5])
@pytest.mark.parametrize("end", ["", "\n"], ids=["unfinished", "whole"])
def test_a_long_line_is_cut_at_the_same_bytes_wherever_its_answer_is_cut(size, end):
    first = stamp(NOW * 10**9)
    text = first + b"a" * (size - len(first)) + end.encode() + (stamp(NOW * 10**9 + 1) + b"next\n" if end else b"")
    found = [list(split(text[at : at + step] for at in range(0, len(text), step))) for step in (65_536, 10**6, 10**9)]

    assert found[0] == found[1] == found[2]
    assert b"".join(found[0]) == text
    assert max(map(len, found[0])) <= LONGEST_LINE + len(end)


def test_a_reader_continues_within_a_long_line():
    log = Log()
    # The text after the cut looks like a time, and like a message of the node.
    body = ("y" * (LONGEST_LINE - len(stamp(0))) + stamp(0).decode() + "y" * LONGEST_LINE)[: 2 * LONGEST_LINE]
    log.add(NOW * 10**9, body + "\n")
    log.add(NOW * 10**9, "next\n")
    seen, cursor = [], {}
    while True:
        lines, after, _ = read(log, cursor, size=10**6, limit=1)
        if not lines:
            break
        seen += lines
        assert len(lines) == 1
        cursor = after

    assert "".join(seen) == body + "\nnext\n"
    assert max(map(len, seen)) <= LONGEST_LINE


def test_the_rest_of_a_long_line_is_no_report_of_the_node():
    parser = StampedLines({})
    parser.feed(stamp(NOW * 10**9) + b"x" * (LONGEST_LINE - len(stamp(0))) + b"failed to watch: too many open files")

    assert parser.refusal() == ""
