"""Limits for whole HTTP responses; urllib3 and http.client only limit single steps.

A server that sends one byte a minute never exceeds a read timeout, and a server that sends an endless line, or text
that decompresses without end, fills the memory.
"""

from __future__ import annotations

import io
import math
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from urllib3 import PoolManager

_LONGEST_SIZE_LINE = 64 * 1024


class TooLargeError(OSError):
    """A response has more bytes than allowed."""


class _Limits(threading.local):
    deadline = math.inf


_limits = _Limits()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Abort a response that this thread has not read within this time, however steadily it arrives: TimeoutError."""
    before = _limits.deadline
    _limits.deadline = min(before, time.monotonic() + seconds)
    try:
        yield
    finally:
        _limits.deadline = before


class _LimitedInput(io.RawIOBase):
    """Reads from a socket until a deadline."""

    def __init__(self, raw: Any, sock: Any) -> None:
        super().__init__()
        self._raw = raw
        self._sock = sock
        self.deadline = math.inf

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._raw.fileno())

    def readinto(self, buffer: Any) -> int | None:
        deadline = min(self.deadline, _limits.deadline)
        if deadline == math.inf:
            return self._raw.readinto(buffer)  # type: ignore[no-any-return]
        left_s, step_s = deadline - time.monotonic(), self._sock.gettimeout()
        if left_s <= 0:
            raise TimeoutError("the answer takes too long")
        if step_s is not None and step_s <= left_s:
            return self._raw.readinto(buffer)  # type: ignore[no-any-return]
        self._sock.settimeout(left_s)
        try:
            return self._raw.readinto(buffer)  # type: ignore[no-any-return]
        finally:
            self._sock.settimeout(step_s)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Received(io.RawIOBase):
    """Data received from an SSH channel, whose own file objects have no raw side."""

    def __init__(self, channel: Any) -> None:
        super().__init__()
        self._channel = channel

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._channel.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _LimitedReader(io.BufferedReader):
    """Refuses reads of unknown size: the libraries would take a negative chunk size as "all"."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise OSError("the answer has no size, or a negative size")
        return super().read(size)

    def readline(self, size: int | None = -1, /) -> bytes:
        if size is not None and size >= 0:
            return super().readline(size)
        line = super().readline(_LONGEST_SIZE_LINE)
        if len(line) == _LONGEST_SIZE_LINE and not line.endswith(b"\n"):
            raise OSError("the answer has an endless line instead of a size")
        return line


class LimitedResponse(HTTPResponse):
    """A response whose whole header has one timeout, and whose body is limited by `time_limit`."""

    def __init__(self, sock: Any, *args: Any, **how: Any) -> None:
        super().__init__(sock, *args, **how)
        self._input = _LimitedInput(self.fp.detach() if hasattr(self.fp, "detach") else _Received(sock), sock)
        self._step_s = sock.gettimeout()
        self.fp = _LimitedReader(self._input)
        # The header of a proxy's answer to CONNECT is read without `begin`.
        self._limit_header()

    def _limit_header(self) -> None:
        self._input.deadline = math.inf if self._step_s is None else time.monotonic() + self._step_s

    def begin(self) -> None:
        """Read the header."""
        self._limit_header()
        try:
            super().begin()
        finally:
            self._input.deadline = math.inf


def limit_pools(manager: PoolManager) -> None:
    """Make all new connections of a pool manager return `LimitedResponse`; may be called again."""
    classes: dict[str, Any] = {}
    known: dict[str, Any] = dict(manager.pool_classes_by_scheme)
    for scheme, pool in known.items():
        if getattr(pool.ConnectionCls, "response_class", None) is LimitedResponse:
            classes[scheme] = pool
            continue
        connection = type("Connection", (pool.ConnectionCls,), {"response_class": LimitedResponse})
        classes[scheme] = type("ConnectionPool", (pool,), {"ConnectionCls": connection})
    manager.pool_classes_by_scheme = classes


def whole(pieces: Iterable[bytes], max_bytes: int) -> bytes:
    """Return the complete response; raise TooLargeError if it is larger."""
    return b"".join(bounded(pieces, max_bytes))


def bounded(pieces: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """Yield the pieces of a response; raise TooLargeError if it is larger."""
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise TooLargeError(f"the answer has more than {max_bytes} bytes")
        yield piece


def beginning(pieces: Iterable[bytes], max_bytes: int) -> bytes:
    """Return at most `max_bytes` bytes of a response."""
    data = b""
    for piece in pieces:
        data += piece
        if len(data) >= max_bytes:
            break
    return data[:max_bytes]


def lines_of(pieces: Iterable[bytes], longest: int, *, skip_longer: bool = False) -> Iterator[bytes]:
    """Yield the lines of a response as they arrive, without line feeds.

    A line of more than `longest` bytes is an OSError, or skipped with `skip_longer`.
    """
    # Each byte is processed once: a line may arrive in thousands of pieces.
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        first, *others = piece.split(b"\n")
        for number, part in enumerate((first, *others)):
            if number:
                if size <= longest:
                    yield b"".join(parts)
                parts, size = [], 0
            size += len(part)
            if size > longest:
                if not skip_longer:
                    raise OSError(f"the answer has a line of more than {longest} bytes")
                parts = []
            else:
                parts.append(part)
    if size and size <= longest:
        yield b"".join(parts)
