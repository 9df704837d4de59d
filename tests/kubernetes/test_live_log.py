"""Lines of an answer that goes on: what has come is taken, what has not is not waited for."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator

import pytest
from urllib3.exceptions import ProtocolError

from airflow_provider_launch.schedulers.kubernetes import live_log
from airflow_provider_launch.schedulers.kubernetes.live_log import LiveLog


class Answer:
    """An answer whose pieces the test gives: bytes, an error, or None for its end."""

    def __init__(self) -> None:
        self.pieces: queue.Queue[bytes | Exception | None] = queue.Queue()
        self.taken = 0
        self.closed = False

    def stream(self, _amount: int, *, decode_content: bool) -> Iterator[bytes]:
        assert decode_content
        while (piece := self.pieces.get(timeout=10)) is not None:
            if isinstance(piece, Exception):
                raise piece
            self.taken += 1
            yield piece

    def shutdown(self) -> None:
        self.pieces.put(None)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def answer() -> Answer:
    return Answer()


@pytest.fixture
def log(answer: Answer) -> Iterator[LiveLog]:
    made = LiveLog(answer)  # type: ignore[arg-type] # it is used as one
    yield made
    made.close()


def wait_for(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_stops_where_nothing_has_come_yet_and_goes_on(answer, log):
    assert list(log) == []
    answer.pieces.put(b"one\ntw")
    log.wait(10)
    assert list(log) == [b"one\n"]
    assert not log.ended
    answer.pieces.put(b"o\n")
    log.wait(10)
    assert list(log) == [b"two\n"]


@pytest.mark.parametrize("end", [None, ProtocolError("cut"), OSError("timed out")])
def test_what_came_before_the_end_is_taken_and_half_a_line_is_left(answer, log, end):
    answer.pieces.put(b"one\nhalf")
    answer.pieces.put(end)
    wait_for(lambda: answer.closed)
    assert not log.ended
    assert list(log) == [b"one\n"]
    assert log.ended


def test_the_server_waits_for_a_reader_that_does_not_come(answer, log, monkeypatch):
    monkeypatch.setattr(live_log, "_HELD_BYTES", 1000)
    for _ in range(100):
        answer.pieces.put(b"x" * 99 + b"\n")
    wait_for(lambda: answer.taken >= 10)
    time.sleep(0.1)
    assert answer.taken <= 12
    found = 0
    while found < 100:
        log.wait(10)
        found += len(list(log))
    assert found == 100


def test_one_that_is_closed_ends(answer, log):
    answer.pieces.put(b"one\n")
    log.wait(10)
    log.close()
    wait_for(lambda: answer.closed)
    assert list(log) == []
    assert log.ended
