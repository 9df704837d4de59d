"""Responses with limits, and their lines, which arrive in pieces of any size."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from airflow_provider_launch.util import whole_answers
from airflow_provider_launch.util.whole_answers import LimitedResponse, lines_of, time_limit

TEXT = b"\none\n\ntwo and more\nend"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_the_same_in_any_pieces(size: int) -> None:
    pieces = [TEXT[at : at + size] for at in range(0, len(TEXT), size)]

    assert list(lines_of(pieces, 100)) == TEXT.split(b"\n")
    assert list(lines_of([*pieces, b"\n"], 100)) == TEXT.split(b"\n")


@pytest.mark.parametrize("size", [1, 5, 100])
@pytest.mark.parametrize("text", [b"short\nlong line\nlast\n", b"short\nlast\nlong line"])
def test_a_line_that_is_too_long_is_refused_or_left_out(size: int, text: bytes) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]

    assert list(lines_of(pieces, 5, skip_longer=True)) == [b"short", b"last"]
    with pytest.raises(OSError, match="a line of more than 5 bytes"):
        list(lines_of(pieces, 5))


def test_a_long_line_costs_each_of_its_bytes_once() -> None:
    """16 MB took minutes, during which no other app of the engine was polled."""
    began = time.process_time()
    (line,) = lines_of((b"x" * 512 for _ in range(32 * 1024)), 2**24)

    assert len(line) == 2**24
    assert time.process_time() - began < 10


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection: our end has a limit for single steps, and the other end has sent the start of a response."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok")
        yield ours, theirs


def test_a_time_limit_is_gone_after_its_block(ends) -> None:
    with pytest.raises(ZeroDivisionError), time_limit(0):
        _ = 1 / 0
    with LimitedResponse(ends[0]) as response:
        response.begin()

        assert response.read(2) == b"ok"


def test_an_inner_time_limit_is_not_longer_than_the_outer_one(ends) -> None:
    with time_limit(0), time_limit(10), LimitedResponse(ends[0]) as response, pytest.raises(TimeoutError):
        response.begin()


def test_a_time_limit_leaves_the_limit_for_single_steps(ends) -> None:
    with LimitedResponse(ends[0]) as response:
        with time_limit(5):
            response.begin()

        assert ends[0].gettimeout() == 10


def test_the_limit_of_the_header_is_not_one_of_the_body(ends, monkeypatch) -> None:
    clock = SimpleNamespace(now=1.0)
    monkeypatch.setattr(whole_answers, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with LimitedResponse(ends[0]) as response:
        response.begin()
        clock.now += 1000
        ends[1].sendall(b"ay")

        assert response.read(4) == b"okay"


def test_the_line_with_the_size_of_a_chunk_is_read(ends) -> None:
    """urllib3 reads it without a limit."""
    with LimitedResponse(ends[0]) as response:
        response.begin()
        ends[1].sendall(b"\n1f;name=value\r\nrest")

        assert [response.fp.readline(), response.fp.readline()] == [b"ok\n", b"1f;name=value\r\n"]


def test_a_response_that_is_closed_closes_its_connection(ends) -> None:
    ours, theirs = ends
    response = LimitedResponse(ours)
    reader = response.fp
    response.begin()
    assert response.read(2) == b"ok"
    ours.close()

    response.close()

    assert theirs.recv(1) == b""
    assert reader.closed
