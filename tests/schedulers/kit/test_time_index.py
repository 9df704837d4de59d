"""Times of lines, from the index next to a log."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_launch.follow.log_positions import LogItem
from airflow_provider_launch.follow.log_reader import LogReader
from airflow_provider_launch.schedulers._kit import file_log
from airflow_provider_launch.schedulers.api import LogChunk, Stream


class Log:
    """The files of one attempt, and the reads of its index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0
        (path / "times").touch()

    def write(self, time: float, out: str = "", err: str = "") -> None:
        """Append to the logs, and add their sizes to the index."""
        for name, text in (("stdout", out), ("stderr", err)):
            with (self.path / name).open("a") as file:
                file.write(text)
            os.utime(self.path / name, (time, time))
        sizes = [(self.path / name).stat().st_size for name in ("stdout", "stderr")]
        with (self.path / "times").open("a") as file:
            file.write(f"{time} {sizes[0]} {sizes[1]}\n")

    def read(self, cursor=None, streams: Stream | None = None, *, ended: bool = False) -> LogChunk:
        return file_log.read_chunk(
            [(0, 0)],
            cursor,
            streams,
            open_log=lambda _at, stream: file_log.open_file(str(self.path / stream.value)),
            open_index=lambda _at: self._index(),
            is_complete=lambda _number: ended,
        )

    @contextmanager
    def _index(self) -> Iterator[file_log.LogFile | None]:
        with file_log.open_file(str(self.path / "times")) as file:
            if file is not None:
                whole = file.read

                def counted(offset: int, count: int) -> bytes:
                    self.bytes_read += count
                    return whole(offset, count)

                file.read = counted  # type: ignore[method-assign]
            yield file


@pytest.fixture
def log(tmp_path) -> Log:
    return Log(tmp_path)


def timed(chunk: LogChunk) -> list[tuple[str, float | None]]:
    return [(line.text, line.time) for line in chunk.lines]


def test_a_line_has_the_time_of_the_first_entry_that_covers_its_end(log) -> None:
    log.write(1.0, "a\nb")
    log.write(2.0, "b\n")
    log.write(3.0, "日本\n", err="e\n")
    log.write(4.0, "end")

    first = log.read(ended=True)

    assert timed(first) == [("a\n", 1.0), ("bb\n", 2.0), ("日本\n", 3.0), ("e\n", 3.0)]
    assert timed(log.read(first.cursor, ended=True)) == [("end", 4.0)]


def test_lines_of_both_streams_are_in_the_order_of_their_times(log) -> None:
    log.write(1.0, "a\n")
    log.write(2.0, err="b\n")
    log.write(3.0, "c\n")

    assert [text for text, _ in timed(log.read())] == ["a\n", "b\n", "c\n"]


def test_a_line_that_the_index_does_not_cover_yet_has_the_time_of_the_last_write(log) -> None:
    """The replica was killed before it wrote the last sizes, or writes them in a moment."""
    log.write(1.0, "a\n")
    with (log.path / "stdout").open("a") as file:
        file.write("b\n")
    os.utime(log.path / "stdout", (5.0, 5.0))

    assert timed(log.read()) == [("a\n", 1.0), ("b\n", 5.0)]


def test_lines_that_the_index_does_not_cover_yet_keep_their_order(log) -> None:
    """Their times are not final."""
    for name, text, time in (("stdout", "a\nb\n", 6.0), ("stderr", "e\n", 5.0)):
        (log.path / name).write_text(text)
        os.utime(log.path / name, (time, time))
    first = log.read()
    log.write(7.0, "c\n")

    assert [line.text for line in first.lines] == ["a\n", "b\n", "e\n"]
    assert [line.time for line in first.lines] == [6.0, 6.0, 5.0]
    assert [line.text for line in log.read(first.cursor).lines] == ["c\n"]


@pytest.mark.parametrize("streams", [None, Stream.STDERR], ids=["both streams", "stderr"])
@pytest.mark.parametrize("shown", range(3))
def test_a_reader_that_stops_between_lines_continues_there_after_the_order_has_changed(log, shown, streams) -> None:
    """A later line of stdout comes before lines of stderr that were shown."""

    def item_at(position) -> LogItem:
        reader = LogReader(
            scheduler,
            "app-1",
            threading.Condition(),
            cursors={"main/0": position},
            streams=streams,
            from_now=False,
            own_thread=False,
        )
        reader.update_replicas([("main", 0)], existing=True)
        reader.step()
        item = reader.pop()
        assert item is not None
        return item

    scheduler = SimpleNamespace(
        backend="files",
        poll_interval_s=1.0,
        read_logs=lambda _app_id, _role, _k, cursor, streams: log.read(cursor, streams),
    )
    log.write(1.0, "a0\n", "b0\n")
    cursor = log.read(None, streams).cursor
    with (log.path / "stderr").open("a") as file:
        file.write("b1\nb2\n")
    first = item_at(cursor)
    assert [line.text for line in first.lines] == ["b1\n", "b2\n"]
    stored = json.loads(json.dumps(first.position(shown, cursor)))
    log.write(2.0, "a1\n", "")
    again = log.read(cursor, streams).lines
    assert [line.text for line in again] == ["b1\n", "b2\n"] if streams else ["a1\n", "b1\n", "b2\n"]
    log.write(3.0, "a2\n", "b3\n")

    texts = [line.text for line in [*first.lines[:shown], *item_at(stored).lines]]
    assert [text for text in texts if text.startswith("b")] == ["b1\n", "b2\n", "b3\n"]
    assert [text for text in texts if text.startswith("a")] == ([] if streams else ["a1\n", "a2\n"])


def test_times_never_go_back_within_a_log(log) -> None:
    """The clock of a node was set back: sorting by time must not change the order of lines."""
    log.write(9.0, "a\n")
    log.write(5.0, "b\n")

    assert timed(log.read()) == [("a\n", 9.0), ("b\n", 9.0)]


def test_a_cursor_continues_in_the_index_at_its_position(log, monkeypatch) -> None:
    """Each chunk reads its own part of the index, so a log of days costs only as much as its chunks."""
    monkeypatch.setattr(file_log, "CHUNK_BYTES", 100)
    expected = [(f"{number:09}\n", float(number)) for number in range(5000)]
    for text, time in expected:
        log.write(time, text)
    found, cursor = [], None
    while (chunk := log.read(cursor)).lines:
        found += timed(chunk)
        cursor = chunk.cursor

    assert found == expected
    # 500 chunks of ten lines; each read starts with 16 KB, of an index of 80 KB.
    assert log.bytes_read < 500 * 17_000
    for cut in (1, 2, 5):
        cursor = log.read(timed_cursor(log, cut)).cursor
        assert timed(log.read(cursor))[0] == expected[10 * (cut + 1)]


def timed_cursor(log: Log, chunks: int):
    cursor = None
    for _ in range(chunks):
        cursor = log.read(cursor).cursor
    return cursor


def test_a_silent_stream_does_not_read_the_times_of_the_other_one(log) -> None:
    """An error after days of progress: its time is at the end of the index."""
    log.write(0.0, err="first\n")
    cursor = log.read().cursor
    for number in range(1, 4000):
        log.write(float(number), f"{number}\n")
    cursor = log.read(cursor).cursor
    log.bytes_read = 0
    log.write(5000.0, err="second\n")

    assert timed(log.read(cursor)) == [("second\n", 5000.0)]
    assert log.bytes_read < 100


def test_an_incomplete_entry_is_ignored(log) -> None:
    """It was read while it was written, or on a full disk."""
    log.write(1.0, "a\n")
    with (log.path / "times").open("a") as file:
        file.write("2.5 4")
    (log.path / "stdout").write_text("a\nb\n")
    os.utime(log.path / "stdout", (7.0, 7.0))

    assert timed(log.read()) == [("a\n", 1.0), ("b\n", 7.0)]


@pytest.mark.parametrize("entry", ["\n", "1 0 0\n"])
def test_an_index_that_a_program_has_filled_takes_no_seconds(log, monkeypatch, entry: str) -> None:
    """Each poll of an app with new lines would take them, of a triggerer that follows other apps."""
    monkeypatch.setattr(file_log, "_MOST_ENTRIES", 1000)
    (log.path / "times").write_text(entry * 1_000_000)
    log.write(5.0, "a\n")

    assert timed(log.read()) == [("a\n", 5.0)]
    assert log.bytes_read <= file_log.FIRST_BYTES


def test_a_cursor_without_a_position_in_the_index_continues(log) -> None:
    """An older release had no index: a task that continues has a cursor without it."""
    log.write(1.0, "a\n")
    log.write(2.0, "b\n")
    inode = (log.path / "stdout").stat().st_ino

    assert timed(log.read({"at": [0, 0], "stdout": [inode, 2, 2]})) == [("b\n", 2.0)]


def test_a_log_without_an_index_has_no_times(log) -> None:
    log.write(1.0, "a\n")
    (log.path / "times").unlink()

    assert timed(log.read()) == [("a\n", None)]


def test_an_entry_that_was_read_while_it_was_written_is_skipped(log) -> None:
    """The rest of an entry alone would be another time."""
    log.write(1.0, "a\n")
    with (log.path / "times").open("a") as file:
        file.write("9")
    cursor = log.read().cursor
    with (log.path / "times").open("a") as file:
        file.write("00.0 4 0\n")
    (log.path / "stdout").write_text("a\nb\n")
    os.utime(log.path / "stdout", (7.0, 7.0))

    assert timed(log.read(cursor)) == [("b\n", 7.0)]


@pytest.mark.parametrize(
    "garbage", ["x 2 0\n", "nan 2 0\n", "inf 2 0\n", "1e400 2 0\n", f"1.0 {'9' * 5000} 0\n", "\0" * 100_000, "² 2 0\n"]
)
def test_an_index_that_the_program_has_written_into_does_not_stop_the_log(log, garbage) -> None:
    log.write(5.0, "a\n")
    with (log.path / "times").open("r+") as file:
        file.write(garbage)
    log.write(7.0, "b\n")

    lines = log.read(ended=True).lines

    assert [line.text for line in lines] == ["a\n", "b\n"]
    assert all(0 < line.time <= 7.0 for line in lines)


def test_an_endless_index_is_not_read_to_its_end(log) -> None:
    """A sparse file costs nothing to create, and each part of it is a request to a login node."""
    log.write(5.0, "a\n")
    with (log.path / "times").open("wb") as file:
        file.truncate(900 << 20)

    assert timed(log.read(ended=True)) == [("a\n", 5.0)]
    assert log.bytes_read < 20 << 20
