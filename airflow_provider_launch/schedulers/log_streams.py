"""Log streams: open HTTP responses that deliver log lines while a replica runs."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_launch.schedulers.logs import JsonValue, LogLine, Stream

if TYPE_CHECKING:
    from airflow_provider_launch.util.http_answer import HttpAnswer

_BLOCK_BYTES = 64 * 1024
_POSITION_S = 2.0
"""Maximum seconds to search a stream for the position of the cursor."""
_SILENT_S = 300.0
"""Idle network streams are closed after this many seconds, because a dead connection gives no signal."""


class StreamEnd(Enum):
    """Why a stream has ended."""

    ENDED = "ended"
    """The engine reports that this program has ended."""
    CUT = "cut"
    """The connection has ended; the program may still run."""
    LOST = "lost"
    """The stream does not contain the position of the cursor, or repeats earlier lines."""
    REFUSED = "refused"
    """The engine cannot follow the log of this replica now; `LogStream.refusal` is the reason."""


class PositionLostError(Exception):
    """A response repeats earlier lines, or starts after the position of the cursor."""


class LineParser(Protocol):
    """Parses a response body into lines and drops the lines before its cursor: pure."""

    def feed(self, data: bytes) -> list[LogLine]:
        """Return the lines that these bytes complete; raises `PositionLostError`, or `OSError` with a message."""

    def is_positioned(self) -> bool:
        """Whether the position of the cursor was reached."""

    def cursor(self) -> dict[str, Any]:
        """Return the cursor after the last line returned."""

    def refusal(self) -> str:
        """Return the error that the engine sends at the end instead of lines; empty if it sends none."""


class LogStream:
    """The log of one attempt of a replica from a cursor on, as an open response. Used by one thread at a time.

    Args:
        answer: the open response of the engine.
        parser: parses its body into lines.
        host: name of the server; used to share connection limits between streams.
        cursor_of: converts the parser's cursor to the scheduler's.
        attempt: stored in each line.
        only: the stream whose lines are kept. None: all are kept.
        is_remote: whether the connection uses a network and may die without a signal.
        on_lost: called when the position of the cursor was not found.
        on_refused: called when the engine cannot follow this log now.
    """

    __slots__ = (
        "_answer",
        "_cursor_of",
        "_on_lost",
        "_on_refused",
        "_only",
        "_parser",
        "attempt",
        "end",
        "host",
        "is_remote",
        "refusal",
    )

    def __init__(
        self,
        answer: HttpAnswer,
        parser: LineParser,
        *,
        host: str,
        cursor_of: Callable[[Mapping[str, Any]], JsonValue],
        attempt: int = 0,
        only: Stream | None = None,
        is_remote: bool = True,
        on_lost: Callable[[], object] = lambda: None,
        on_refused: Callable[[], object] = lambda: None,
    ) -> None:
        self._answer = answer
        self._parser = parser
        self._cursor_of = cursor_of
        self._only = only
        self._on_lost = on_lost
        self._on_refused = on_refused
        self.attempt = attempt
        self.host = host
        self.is_remote = is_remote
        self.end: StreamEnd | None = None
        """None: more may come."""
        self.refusal = ""

    @property
    def sock(self) -> socket.socket:
        """The non-blocking socket to wait for."""
        return self._answer.sock

    @property
    def cursor(self) -> JsonValue:
        """The cursor after the last line returned, as `Scheduler.read_logs` takes it."""
        return self._cursor_of(self._parser.cursor())

    @property
    def is_positioned(self) -> bool:
        """Whether the position of the cursor was reached; no line is returned before."""
        return self._parser.is_positioned()

    def start(self) -> list[LogLine]:
        """Return the lines that were received together with the response header."""
        first, self._answer.first = self._answer.first, b""
        return self.feed(first) if first else []

    def feed(self, data: bytes) -> list[LogLine]:
        """Return the lines that these bytes complete; empty `data` means that the connection has ended."""
        if self.end is not None:
            return []
        if not data:
            self._close_with(StreamEnd.CUT)
            return []
        body = self._answer.body
        try:
            text = body.feed(data)
            lines = self._parser.feed(text) if text else []
        except PositionLostError:
            self.lose()
            return []
        except (OSError, ValueError):
            self.end = StreamEnd.CUT
            return []
        if body.complete:
            self._close_with(StreamEnd.ENDED)
        if self._only is not None:
            lines = [line for line in lines if line.stream is self._only]
        return [line._replace(attempt=self.attempt) for line in lines] if self.attempt else lines

    def lose(self) -> None:
        """End the stream, because the position of its cursor was not found."""
        if not self.is_positioned:
            self._on_lost()
        self.end = StreamEnd.LOST

    def close(self) -> None:
        """Close the connection; may be repeated."""
        self._answer.sock.close()

    def _close_with(self, end: StreamEnd) -> None:
        self.refusal = self._parser.refusal()
        self.end = StreamEnd.REFUSED if self.refusal else end
        if self.refusal:
            self._on_refused()


def lines_in(stream: LogStream) -> Iterator[list[LogLine]]:
    """Yield the lines of one stream as they arrive, and block; close it when it ends or was idle too long."""
    started = received_at = time.monotonic()
    try:
        if lines := stream.start():
            yield lines
        while stream.end is None:
            if not stream.is_positioned and time.monotonic() - started > _POSITION_S:
                stream.lose()
                return
            data = _received(stream.sock, _POSITION_S)
            now = time.monotonic()
            if data is not None:
                received_at = now
                if lines := stream.feed(data):
                    yield lines
            elif stream.is_remote and now - received_at > _SILENT_S:
                return
    finally:
        stream.close()


def _received(sock: socket.socket, wait_s: float) -> bytes | None:
    """Return the received bytes; None if there is nothing within `wait_s`, or only a part of a TLS record."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        # Bytes that TLS has already decrypted do not wake the selector.
        has_pending = isinstance(sock, ssl.SSLSocket) and sock.pending() > 0
        if not has_pending and not selector.select(wait_s):
            return None
    try:
        return sock.recv(_BLOCK_BYTES)
    except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return None
    except OSError:
        return b""
