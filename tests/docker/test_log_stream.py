"""Lines of a followed log: from the exact position on, without lines that the engine repeats."""

from __future__ import annotations

import datetime as dt

import pytest

from airflow_provider_launch.schedulers.docker.attempts_log import FrameLines
from airflow_provider_launch.schedulers.log_streams import PositionLostError

BASE = 1_700_000_000_000_000_000
MS = 1_000_000


def frame(text: str, time: int, stream: int = 1) -> bytes:
    moment = dt.datetime.fromtimestamp(time // 10**9, dt.timezone.utc)
    data = f"{moment:%Y-%m-%dT%H:%M:%S}.{time % 10**9:09d}Z {text}".encode()
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def numbered(first: int, last: int) -> bytes:
    return b"".join(frame(f"{n}\n", BASE + n * MS) for n in range(first, last))


def place(number: int) -> dict[str, object]:
    time = BASE + number * MS
    return {"stdout": [time, 1], "newest": time}


def texts(parser: FrameLines, data: bytes) -> list[str]:
    return [line.text for line in parser.feed(data)]


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_lines_start_after_the_position_however_they_are_cut(size):
    data = numbered(0, 20)
    parser = FrameLines(place(9), is_whole=False)
    found = [text for at in range(0, len(data), size) for text in texts(parser, data[at : at + size])]

    assert found == [f"{n}\n" for n in range(10, 20)]
    assert parser.cursor() == place(19)


def test_a_stream_that_repeats_lines_is_lost():
    """It reads files from the start again when they are rotated."""
    parser = FrameLines({}, is_whole=True)
    assert texts(parser, numbered(0, 10)) == [f"{n}\n" for n in range(10)]

    with pytest.raises(PositionLostError):
        parser.feed(numbered(4, 12))


def test_no_line_is_shown_before_the_position():
    parser = FrameLines(place(9), is_whole=False)

    assert texts(parser, numbered(0, 9)) == []
    assert not parser.is_positioned()
    assert texts(parser, numbered(9, 11)) == ["10\n"]
    assert parser.is_positioned()


def test_a_tail_that_starts_at_the_position_is_not_trusted():
    """There may be earlier frames of the same time, and the position is one of several."""
    parser = FrameLines(place(9), is_whole=False)

    with pytest.raises(PositionLostError):
        parser.feed(numbered(9, 12))
    assert parser.starts_late
    assert texts(FrameLines(place(9), is_whole=True), numbered(9, 12)) == ["10\n", "11\n"]


def test_each_stream_has_its_position():
    cursor = {"stdout": [BASE + 9 * MS, 1], "stderr": [BASE + 5 * MS, 1], "newest": BASE + 9 * MS}
    late = frame("e4\n", BASE + 4 * MS, 2) + frame("e5\n", BASE + 5 * MS, 2) + frame("e6\n", BASE + 6 * MS, 2)
    parser = FrameLines(cursor, is_whole=False)

    assert texts(parser, numbered(0, 12)) == []  # the position of the other one was not reached
    assert texts(parser, late) == ["10\n", "11\n", "e6\n"]


def test_a_flood_before_a_position_that_was_rotated_away_takes_little_memory():
    """The position of stderr is gone; all lines of stdout were kept until the search timed out, for all streams."""
    time = BASE + 9 * MS
    parser = FrameLines({"stdout": [time, 1], "stderr": [time - MS, 1], "newest": time}, is_whole=True)
    text = "x" * 10_000
    parser.feed(frame("9\n", time))

    flood = [frame(f"{number} {text}\n", BASE + number * MS) for number in range(10, 600)]
    with pytest.raises(PositionLostError):
        any(map(parser.feed, flood))
