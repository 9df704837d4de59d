"""Every line once, for any log: threads that copy out of order, clocks that step, long lines."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import process_time

import pytest

from airflow_provider_launch.schedulers.docker import log_reader
from airflow_provider_launch.schedulers.docker.log_frames import Frame, FrameParser, LineReader, frames_in
from airflow_provider_launch.schedulers.docker.log_reader import LogReader
from airflow_provider_launch.specs import AppUnavailableError, SchedulerUnavailableError
from tests.support.repeats import often

NS = 1_000_000_000
BASE = 1_700_000_000 * NS
PIECE = 40
"""The engine splits lines into pieces of 16 KiB; smaller ones give more pieces."""


@dataclass
class Log:
    """The log of one container as the engine stores it: frames in the order of the file."""

    frames: list[Frame] = field(default_factory=list)
    cut_after: int | None = None
    reads: int = 0
    asked: list[int] = field(default_factory=list)
    """Number of frames in each response."""
    sent: int = 0
    """Bytes that were read."""

    def write(self, stream: str, text: str, time: int) -> None:
        data = text.encode()
        pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
        self.frames += [(stream, time, piece) for piece in pieces]

    def logs(self, _container: str, since: str | None, tail: int | None) -> Log.Answer:
        self.reads += 1
        frames = self.frames if tail is None else self.frames[-tail:]
        if since:
            seconds, _, rest = since.partition(".")
            frames = [frame for frame in frames if frame[1] >= int(seconds) * NS + int(rest)]
        self.asked.append(len(frames))
        return Log.Answer(self, encoded(frames), self.cut_after)

    @dataclass
    class Answer:
        log: Log
        data: bytes
        cut_after: int | None

        def iter_content(self, _size: int) -> Iterator[bytes]:
            for at in range(0, len(self.data), 7):
                if self.cut_after is not None and at >= self.cut_after:
                    raise ConnectionError("cut off")
                self.log.sent += 7
                yield self.data[at : at + 7]

        def close(self) -> None:
            pass


def encoded(frames: list[Frame]) -> bytes:
    from datetime import datetime, timezone

    parts = []
    for stream, time, text in frames:
        second = datetime.fromtimestamp(time // NS, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
        payload = f"{second}.{time % NS:09d}Z ".encode() + text
        parts.append(bytes([2 if stream == "stderr" else 1, 0, 0, 0]) + len(payload).to_bytes(4, "big") + payload)
    return b"".join(parts)


def written(dice: random.Random, lines: int, step_back_at: int | None = None) -> list[tuple[str, str, int]]:
    """Return (stream, text, time) of each line in the order of the file: ordered per stream, not across them."""
    rows, clock, offset = [], BASE, 0
    for number in range(lines):
        clock += int(dice.expovariate(1 / (20e6 if dice.random() < 0.95 else 3e9)))
        if number == step_back_at:
            offset = -NS
        stream = dice.choice(["stdout", "stderr"])
        size = dice.choice([0, 1, 10, 39, 40, 41, 200])
        rows.append((stream, f"{number} " + "x" * size + "\n", clock + offset))
    for at in range(len(rows) - 1):
        # One thread writes slightly later than the other.
        if rows[at][0] != rows[at + 1][0] and rows[at + 1][2] - rows[at][2] < 40e6 and dice.random() < 0.5:
            rows[at], rows[at + 1] = rows[at + 1], rows[at]
    return rows


def read_all(
    reader: LogReader, cursor: dict[str, object] | None = None, texts: list[str] | None = None
) -> dict[str, object]:
    """Read to the current end of the log, from a cursor; the lines go into `texts`."""
    cursor = cursor or {}
    while True:
        chunk = reader.read("c", cursor, complete=False)
        if texts is not None:
            texts += [line.text for line in chunk.lines]
        cursor = chunk.cursor
        if chunk.at_end:
            return cursor


@pytest.mark.parametrize("seed", range(often(5, 30)))
@pytest.mark.parametrize("step_back", [False, True])
def test_reads_at_any_moment_lose_and_repeat_nothing(
    monkeypatch: pytest.MonkeyPatch, seed: int, step_back: bool
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(log_reader, "CHUNK_BYTES", dice.choice([50, 500, 10_000]))
    monkeypatch.setattr(log_reader, "TAILS", dice.choice([(3,), (3, 20, 100), (500, 4000)]))
    monkeypatch.setattr(log_reader, "STEP_FRAMES", dice.choice([2, 7, 500]))
    monkeypatch.setattr(log_reader, "NARROW_FRAMES", dice.choice([1, 10, 8000]))
    monkeypatch.setattr(log_reader, "FAST_FRAMES", dice.choice([0, 20]))
    monkeypatch.setattr(log_reader, "MOST_LINES", dice.choice([3, 50, 8192]))
    rows = written(dice, 300, step_back_at=150 if step_back else None)
    log, cursor, told = Log(), "{}", []
    reader = LogReader(log)  # type: ignore[arg-type]  # the one method that it uses
    todo = list(rows)
    while True:
        for _ in range(dice.randrange(0, 20)):
            if todo:
                log.write(*todo.pop(0))
        complete = not todo
        if dice.random() < 0.3:
            reader = LogReader(log)  # type: ignore[arg-type]  # another process continues
        log.cut_after = dice.randrange(400) if dice.random() < 0.2 else None
        try:
            chunk = reader.read("container", json.loads(cursor), complete=complete)
        except SchedulerUnavailableError:
            continue
        told += [(line.stream.value, line.text) for line in chunk.lines]
        cursor = json.dumps(chunk.cursor)
        if complete and not chunk.lines and chunk.at_end:
            break

    for stream in ("stdout", "stderr"):
        expected = [text for kind, text, _ in rows if kind == stream]
        assert [text for kind, text in told if kind == stream] == expected


MB = 2**20


@pytest.mark.parametrize("size", [1, 7, 64 * 1024])
def test_frames_are_the_same_in_any_pieces(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("airflow_provider_launch.schedulers.docker.log_frames._LONGEST_FRAME", 64)
    data = encoded(
        [("stdout", BASE, b"one\n"), ("stderr", BASE + 1, b"x" * 150 + b"\n"), ("stdout", BASE + 2, b"two\n")]
    )
    frames = list(frames_in(data[at : at + size] for at in range(0, len(data), size)))

    assert [stream for stream, _, _ in frames] == ["stdout", "stderr", "stderr", "stderr", "stdout"]
    assert [time - BASE for _, time, _ in frames] == [0, 1, 1, 1, 2]
    assert b"".join(text for _, _, text in frames) == b"one\n" + b"x" * 150 + b"\ntwo\n"


def test_a_frame_of_gigabytes_is_delivered_as_it_comes() -> None:
    """It was buffered until it was complete, and joined again with each piece, in the thread of all streams."""
    stamp = b"2026-01-31T12:00:00.000000000Z "
    parser, began, got = FrameParser(), process_time(), 0
    tracemalloc.start()
    try:
        list(parser.feed(b"\1\0\0\0\xff\xff\xff\xff" + stamp))
        for _ in range(64 * 1024):
            got += sum(len(text) for _, _, text in parser.feed(b"x" * 1024))
        assert tracemalloc.get_traced_memory()[1] < 8 * MB
    finally:
        tracemalloc.stop()
    assert got > 62 * MB
    assert process_time() - began < 30


def test_memory_does_not_grow_with_the_seconds_of_a_log() -> None:
    """A follower reads one answer for days, and each line may have another second."""
    parser = FrameParser()
    tracemalloc.start()
    try:
        for second in range(20_000):
            list(parser.feed(encoded([("stdout", BASE + second * NS, b"x\n")])))
        assert tracemalloc.get_traced_memory()[0] < MB
    finally:
        tracemalloc.stop()


def test_a_quiet_log_is_read_with_one_short_answer() -> None:
    log = Log()
    for number in range(5000):
        log.write("stdout", f"{number}\n", BASE + number * NS)
    reader = LogReader(log)  # type: ignore[arg-type]
    cursor: dict[str, object] = {}
    while not (chunk := reader.read("c", cursor, complete=False)).at_end:
        cursor = chunk.cursor
    reads = log.reads
    chunk = reader.read("c", chunk.cursor, complete=False)

    assert (chunk.lines, chunk.at_end, log.reads) == ([], True, reads + 1)


@pytest.mark.parametrize("new", [1, 499, 700, 3000])
def test_a_read_of_a_fast_log_is_at_most_twice_its_new_lines(monkeypatch: pytest.MonkeyPatch, new: int) -> None:
    """A flood ends before the margin does, so all of it would be read again after the end of its container."""
    monkeypatch.setattr(log_reader, "FAST_FRAMES", 0)
    log = Log()
    reader = LogReader(log)  # type: ignore[arg-type]
    cursor: dict[str, object] = {}
    for number in range(5000):
        log.write("stdout", f"{number}\n", BASE + number * 10_000)
    while not (chunk := reader.read("c", cursor, complete=False)).at_end:
        cursor = chunk.cursor
    for number in range(5000, 5000 + new):
        log.write("stdout", f"{number}\n", BASE + number * 10_000)
    log.asked.clear()
    chunk = reader.read("c", chunk.cursor, complete=True)

    assert [line.text for line in chunk.lines] == [f"{number}\n" for number in range(5000, 5000 + new)]
    assert log.asked[-1] <= max(2 * (new + 1), 500)


@pytest.mark.parametrize("new", [1100, 1500, 2047, 2100])
def test_few_frames_of_a_flood_are_read_before_the_position(monkeypatch: pytest.MonkeyPatch, new: int) -> None:
    """Frames before the position are read and dropped; a probe that is too short or too long costs one frame."""
    monkeypatch.setattr(log_reader, "TAILS", (4, 16, 64, 256, 1024, 4096))
    monkeypatch.setattr(log_reader, "NARROW_FRAMES", 100)
    log = Log()
    reader = LogReader(log)  # type: ignore[arg-type]
    for number in range(10_000):
        log.write("stdout", f"{number}\n", BASE + number * 10_000)
    cursor = read_all(reader)
    for number in range(10_000, 10_000 + new):
        log.write("stdout", f"{number}\n", BASE + number * 10_000)
    log.sent = 0

    read_all(reader, cursor, texts := [])
    assert texts == [f"{number}\n" for number in range(10_000, 10_000 + new)]
    # The probes too, and a last read that finds nothing new.
    size = len(encoded(log.frames[-1:]))
    assert log.sent / size < new + 100 + 50


def test_a_flood_on_one_stream_is_found_by_the_position_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrower response has no frame of the idle stream, so it cannot be trusted and is not used."""
    monkeypatch.setattr(log_reader, "TAILS", (4, 16, 64, 256, 1024, 4096))
    monkeypatch.setattr(log_reader, "NARROW_FRAMES", 10)
    log = Log()
    reader = LogReader(log)  # type: ignore[arg-type]
    log.write("stderr", "begin\n", BASE)
    for number in range(500):
        log.write("stdout", f"{number}\n", BASE + number * 10_000)
    cursor = read_all(reader)
    for number in range(500, 1500):
        log.write("stdout", f"{number}\n", BASE + number * 10_000)
    log.write("stderr", "end\n", BASE + NS)

    read_all(reader, cursor, texts := [])
    assert sorted(texts) == sorted(["end\n", *(f"{number}\n" for number in range(500, 1500))])


def test_a_tail_that_starts_among_frames_of_one_time_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the second frame of that time would be taken for the first, which was delivered, and be lost."""
    monkeypatch.setattr(log_reader, "TAILS", (3, 6, 12))
    log = Log()
    for text in ("early\n", "one\n"):
        log.write("stdout", text, BASE)
    reader = LogReader(log)  # type: ignore[arg-type]
    chunk = reader.read("c", {}, complete=False)
    for text in ("two\n", "three\n", "four\n", "five\n"):
        log.write("stdout", text, BASE)
    more = reader.read("c", chunk.cursor, complete=True)

    assert [line.text for line in more.lines] == ["two\n", "three\n", "four\n", "five\n"]


def test_a_frame_of_the_other_stream_before_them_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "TAILS", (4, 8, 16))
    log = Log()
    log.write("stdout", "one\n", BASE)
    reader = LogReader(log)  # type: ignore[arg-type]
    chunk = reader.read("c", {}, complete=False)
    log.write("stderr", "late\n", BASE - 1)
    for text in ("two\n", "three\n", "four\n"):
        log.write("stdout", text, BASE)
    more = reader.read("c", chunk.cursor, complete=True)

    assert sorted(line.text for line in more.lines) == ["four\n", "late\n", "three\n", "two\n"]


def test_few_tails_are_tried_if_the_position_was_rotated_away() -> None:
    log = Log()
    for number in range(3000):
        log.write("stdout", f"{number}\n", BASE + number * 1000)
    reader = LogReader(log)  # type: ignore[arg-type]
    cursor: dict[str, object] = {}
    while not (chunk := reader.read("c", cursor, complete=False)).at_end:
        cursor = chunk.cursor
    del log.frames[:]
    for number in range(3000, 9000):
        log.write("stdout", f"{number}\n", BASE + number * 1000)
    log.asked.clear()
    texts, cursor = [], chunk.cursor
    while not (chunk := reader.read("c", cursor, complete=True)).at_end:
        texts += [line.text for line in chunk.lines]
        cursor = chunk.cursor

    gap, *lines = [*texts, *(line.text for line in chunk.lines)]
    assert "dropped" in gap
    assert lines == [f"{number}\n" for number in range(3000, 9000)]
    # From 4000 on: a short one, two that start at the same frame, and all.
    assert len(log.asked) <= 5


def test_a_search_for_the_position_keeps_little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of one stream are new, long and many, and the position of the other stream is after them."""
    monkeypatch.setattr(log_reader, "FAST_FRAMES", 0)
    monkeypatch.setattr(log_reader, "MAX_KEPT_BYTES", 10_000)
    log = Log()
    log.write("stdout", "out\n", BASE)
    reader = LogReader(log)  # type: ignore[arg-type]
    cursor = reader.read("c", {}, complete=False).cursor
    for number in range(2000):
        log.write("stdout", f"{number} ".ljust(39, "x") + "\n", BASE + 1 + number)
    sizes, count, at_end = [], 0, False
    while not at_end:
        chunk = reader.read("c", cursor, complete=True)
        sizes.append(sum(len(line.text) for line in chunk.lines))
        count += len(chunk.lines)
        cursor, at_end = chunk.cursor, chunk.at_end

    assert count == 2000
    assert max(sizes) < log_reader.CHUNK_BYTES + 10_000 + 500 * 40


def test_an_unfinished_line_waits_for_its_end_however_far_the_other_stream_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pieces of a line have the time of the first one, so the next read must start there."""
    monkeypatch.setattr(log_reader, "TAILS", (2,))
    log = Log()
    log.write("stdout", "s" * PIECE, BASE)
    log.write("stderr", "early\n", BASE + NS)
    log.write("stderr", "late\n", BASE + 60 * NS)
    first = LogReader(log).read("c", {}, complete=False)  # type: ignore[arg-type]
    assert [line.text for line in first.lines] == ["early\n", "late\n"]

    log.write("stdout", "end\n", BASE)
    second = LogReader(log).read("c", first.cursor, complete=True)  # type: ignore[arg-type]
    assert [line.text for line in second.lines] == ["s" * PIECE + "end\n"]


def test_the_end_without_a_line_feed_comes_when_the_container_has_ended() -> None:
    log = Log()
    log.write("stdout", "half", BASE)
    reader = LogReader(log)  # type: ignore[arg-type]

    running = reader.read("c", {}, complete=False)
    assert (running.lines, running.partial) == ([], True)
    assert [line.text for line in reader.read("c", running.cursor, complete=True).lines] == ["half"]


def test_lines_before_the_position_that_have_a_later_time_are_not_delivered() -> None:
    """The clock was set back; a later read must not start at their time either."""
    reader, lines = LineReader((BASE, 1), None, BASE - NS), []
    reader.take([("stdout", BASE + 5, b"before\n"), ("stdout", BASE, b"last\n"), ("stdout", BASE + 7, b"new\n")], lines)

    assert [line.text for line in lines] == ["new\n"]
    assert reader.found()
    assert reader.pending_since is None


def test_what_was_rotated_away_does_not_stop_the_rest() -> None:
    log = Log()
    for number in range(100):
        log.write("stdout", f"{number}\n", BASE + number * NS // 10)
    first = LogReader(log).read("c", {}, complete=False)  # type: ignore[arg-type]
    for number in range(100, 120):
        log.write("stdout", f"{number}\n", BASE + number * NS // 10)
    del log.frames[:110]
    rest = LogReader(log).read("c", first.cursor, complete=True)  # type: ignore[arg-type]

    gap, *lines = [line.text for line in rest.lines]
    assert "dropped" in gap
    assert lines == [f"{number}\n" for number in range(110, 120)]


def test_frames_cut_anywhere_are_put_together() -> None:
    frames = [("stdout", BASE, b"a\n"), ("stderr", BASE + 5, b"\xff\x00\n"), ("stdout", BASE + 7, b"")]
    data = encoded(frames)

    for size in (1, 3, 9, len(data)):
        assert list(frames_in(data[at : at + size] for at in range(0, len(data), size))) == frames
    assert list(frames_in([data[:-1]])) == frames[:-1]


def test_an_answer_from_before_the_end_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open response ends at the end of the log at the time of its request."""
    monkeypatch.setattr(log_reader, "CHUNK_BYTES", 10)
    log = Log()
    for number in range(20):
        log.write("stdout", f"{number:04}\n", BASE + number)
    reader = LogReader(log)  # type: ignore[arg-type]
    chunk = reader.read("c", {}, complete=False)
    told = list(chunk.lines)
    for number in range(20, 40):
        log.write("stdout", f"{number:04}\n", BASE + number)
    while chunk.lines or not chunk.at_end:
        chunk = reader.read("c", chunk.cursor, complete=True)
        told += chunk.lines

    assert [line.text for line in told] == [f"{number:04}\n" for number in range(40)]


def test_a_read_error_of_the_engine_is_reported_with_its_message():
    """It comes between the lines, as a frame of a third stream; earlier lines count, and the log is not complete."""
    log = Log()
    log.write("stdout", "one\n", BASE)
    words = b"Error grabbing logs: invalid character 'x'\n"
    data = encoded(log.frames) + bytes([3, 0, 0, 0]) + len(words).to_bytes(4, "big") + words
    log.logs = lambda *_: Log.Answer(log, data, None)
    reader = LogReader(log)
    chunk = reader.read("c", {}, complete=True)

    assert [line.text for line in chunk.lines] == ["one\n"]
    assert not chunk.at_end
    # A file that a full disk has damaged is not an outage of the engine.
    with pytest.raises(AppUnavailableError, match=r"was cut off: Error grabbing logs: invalid character 'x'$"):
        reader.read("c", chunk.cursor, complete=True)


def test_empty_lines_after_a_lost_position_take_little_memory() -> None:
    """The frame of the cursor was rotated away; a million empty lines were kept in 370 MB until it was given up."""
    read: list[int] = []

    def frames() -> Iterator[Frame]:
        for number in range(100_000):
            read.append(number)
            yield "stdout", BASE + number, b"\n"

    reader, lines = LineReader((BASE - NS, 1), None, BASE - 5 * NS), []

    assert reader.take(frames(), lines, 1024)
    assert len(lines) == len(read) < 50_000
    assert reader.gave_up()


def test_small_pieces_of_a_long_line_take_little_memory() -> None:
    """Podman sends a piece for each write of a program; a line of 16 MB of two bytes each took 350 MB."""
    reader, lines = LineReader(None, None, 0), []
    pieces = (("stdout", BASE, str(number % 90 + 10).encode()) for number in range(300_000))
    tracemalloc.start()
    try:
        reader.take(pieces, lines)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert kept < 2_000_000
    assert reader.take([("stdout", BASE, b"\n")], lines, 1)
    assert len(lines[0].text) == 600_001


def test_few_large_frames_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other engines send frames of a megabyte, of which 500 were read to see whether the log is short."""
    frames = (("stdout", BASE, b"x" * 1_000_000) for _ in range(500))
    answer = log_reader._Answer(None, frames, LineReader(None, None, 0), complete=False)  # type: ignore[arg-type]

    step, is_over = log_reader._next_frames(answer, 500)

    assert len(step) < 20
    assert not is_over

    # Small steps find the position, too.
    monkeypatch.setattr(log_reader, "_STEP_BYTES", 100)
    log = Log()
    log.write("stdout", "one\n", BASE)
    reader = LogReader(log)  # type: ignore[arg-type]
    cursor = reader.read("c", {}, complete=False).cursor
    for number in range(1000):
        log.write("stdout", f"{number}\n", BASE + 1 + number)
    texts, at_end = [], False
    while not at_end:
        chunk = reader.read("c", cursor, complete=False)
        texts += [line.text for line in chunk.lines]
        cursor, at_end = chunk.cursor, chunk.at_end

    assert texts == [f"{number}\n" for number in range(1000)]
