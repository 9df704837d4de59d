"""Logs that go on while a replica writes, as open answers: for a follower of many of them, or of one."""

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
_PLACE_S = 2.0
"""How long the place from which to go on is searched for."""
_SILENT_S = 300.0
"""After so long without a byte a connection by network may be dead without a word."""


class StreamEnd(Enum):
    """Why nothing more comes by a stream."""

    ENDED = "ended"
    """The engine reports that this program has ended."""
    CUT = "cut"
    """The connection has ended; the program may go on."""
    LOST = "lost"
    """The place from which to go on is not in it, or it repeats what was written before."""
    REFUSED = "refused"
    """The engine cannot follow the log of this replica now; `LogStream.refusal` is the reason."""


class PlaceLostError(Exception):
    """An answer repeats what came before, or begins after the place from which to go on."""


class LineParser(Protocol):
    """Makes lines of the body of an answer. It drops what stands before the place from which it goes on: pure."""

    def feed(self, data: bytes) -> list[LogLine]:
        """Return the lines that these bytes complete; raises `PlaceLostError`, or `OSError` with the engine's words."""

    def is_placed(self) -> bool:
        """Whether the place was met from which to go on."""

    def cursor(self) -> dict[str, Any]:
        """Return the place after the last line returned."""

    def refusal(self) -> str:
        """Return what the engine reports at the end in place of lines; empty: nothing."""


class LogStream:
    """The log of one attempt of a replica, from a cursor on, as an open answer. Used by one thread at a time.

    Args:
        answer: of the engine.
        parser: makes lines of it.
        host: the server's name; its streams have limits in common.
        cursor_of: makes the scheduler's cursor of the parser's.
        attempt: put into each line.
        only: lines of another stream are dropped. None: none are.
        is_remote: there is a network between, which may lose a connection without a word.
        on_lost: called when the place was not found from which to go on.
        on_refused: called when the engine cannot follow it now.
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
        """What is waited for; it does not block."""
        return self._answer.sock

    @property
    def cursor(self) -> JsonValue:
        """The place after the last line returned, as `Scheduler.read_logs` takes it."""
        return self._cursor_of(self._parser.cursor())

    @property
    def is_placed(self) -> bool:
        """Whether the place was met from which to go on; until then no line is returned."""
        return self._parser.is_placed()

    def begin(self) -> list[LogLine]:
        """Return the lines that came with the header of the answer."""
        first, self._answer.first = self._answer.first, b""
        return self.feed(first) if first else []

    def feed(self, data: bytes) -> list[LogLine]:
        """Return the lines that these bytes complete; no bytes: the connection has ended."""
        if self.end is not None:
            return []
        if not data:
            self._close_with(StreamEnd.CUT)
            return []
        body = self._answer.body
        try:
            text = body.feed(data)
            lines = self._parser.feed(text) if text else []
        except PlaceLostError:
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
        """Note that the place from which to go on was searched for long enough, or is behind what comes."""
        if not self.is_placed:
            self._on_lost()
        self.end = StreamEnd.LOST

    def close(self) -> None:
        """Take nothing more; may be repeated."""
        self._answer.sock.close()

    def _close_with(self, end: StreamEnd) -> None:
        self.refusal = self._parser.refusal()
        self.end = StreamEnd.REFUSED if self.refusal else end
        if self.refusal:
            self._on_refused()


def lines_in(stream: LogStream) -> Iterator[list[LogLine]]:
    """Yield the lines of one stream as they come; close it when it ends, or was silent for so long that it may be dead.

    Blocks meanwhile: who follows many at once waits for all their sockets instead.
    """
    began = heard_at = time.monotonic()
    try:
        if lines := stream.begin():
            yield lines
        while stream.end is None:
            if not stream.is_placed and time.monotonic() - began > _PLACE_S:
                stream.lose()
                return
            data = _received(stream.sock, _PLACE_S)
            now = time.monotonic()
            if data is not None:
                heard_at = now
                if lines := stream.feed(data):
                    yield lines
            elif stream.is_remote and now - heard_at > _SILENT_S:
                return
    finally:
        stream.close()


def _received(sock: socket.socket, wait_s: float) -> bytes | None:
    """Return what has come; None: nothing within that time, or only a part of what TLS needs."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        # What TLS has decrypted already wakes no selector.
        has_pending = isinstance(sock, ssl.SSLSocket) and sock.pending() > 0
        if not has_pending and not selector.select(wait_s):
            return None
    try:
        return sock.recv(_BLOCK_BYTES)
    except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return None
    except OSError:
        return b""
