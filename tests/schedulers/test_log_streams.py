"""Errors of an open log stream: which of them end it, and how; the other side is a socket of the test."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_launch.schedulers.log_streams import (
    LogStream,
    PositionLostError,
    StreamEnd,
    _received,
    lines_in,
)
from airflow_provider_launch.schedulers.logs import LogLine, Stream
from airflow_provider_launch.util.http_answer import Body, HttpAnswer


class Lines:
    """Parses each byte string as one line, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def feed(self, data: bytes) -> list[LogLine]:
        if self.error is not None:
            raise self.error
        return [LogLine(data.decode(), Stream.STDOUT, None, 0)]

    def is_positioned(self) -> bool:
        return self.error is None

    def cursor(self) -> dict[str, Any]:
        return {}

    def refusal(self) -> str:
        return ""


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def stream_of(sock: socket.socket, parser: Lines, on_lost: Callable[[], object] = lambda: None) -> LogStream:
    answer = HttpAnswer(sock, Body(chunked=True), b"")
    return LogStream(answer, parser, host="test", cursor_of=dict, is_remote=False, on_lost=on_lost)


@pytest.mark.parametrize(
    ("error", "end", "data"),
    [
        (PositionLostError(), StreamEnd.LOST, b"1\r\nx\r\n"),
        (OSError("wrong frame"), StreamEnd.CUT, b"1\r\nx\r\n"),
        (ValueError("no number"), StreamEnd.CUT, b"1\r\nx\r\n"),
        (None, StreamEnd.CUT, b"no size\r\n"),
    ],
    ids=["position", "frame", "number", "chunk"],
)
def test_bytes_that_cannot_be_parsed_end_the_stream_without_an_error(pair, error, end, data) -> None:
    lost: list[bool] = []
    stream = stream_of(pair[1], Lines(error), lambda: lost.append(True))

    assert stream.feed(data) == []
    assert stream.end is end
    assert bool(lost) is (end is StreamEnd.LOST)
    assert stream.feed(b"1\r\ny\r\n") == []


@pytest.mark.parametrize("error", [None, OSError("wrong frame")], ids=["end", "error"])
def test_a_stream_is_closed_when_it_has_ended(pair, error) -> None:
    ours, theirs = pair
    ours.sendall(b"1\r\nx\r\n0\r\n\r\n")
    stream = stream_of(theirs, Lines(error))

    assert [line.text for lines in lines_in(stream) for line in lines] == ([] if error else ["x"])
    assert theirs.fileno() == -1
    stream.close()


class Failing(socket.socket):
    """A socket with bytes to read, whose next read fails."""

    error: Exception

    def recv(self, *_: Any) -> bytes:
        raise self.error


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (BlockingIOError(), None),
        (InterruptedError(), None),
        (ssl.SSLWantReadError(), None),
        (ssl.SSLWantWriteError(), None),
        (ConnectionResetError(), b""),
        (ssl.SSLError(), b""),
    ],
    ids=lambda item: type(item).__name__,
)
def test_a_read_that_may_be_repeated_is_not_the_end_of_a_connection(pair, error, found) -> None:
    pair[0].sendall(b"x")
    with Failing(fileno=os.dup(pair[1].fileno())) as sock:
        sock.error = error
        assert _received(sock, 5.0) == found
