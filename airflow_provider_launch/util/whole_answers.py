"""Limits for whole answers of HTTP, where urllib3 and http.client have limits for each step only.

A server that sends one byte a minute stays below a limit of silence for days, and one that sends a line without an end,
or text that inflates without an end, fills the memory.
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
    """An answer has more bytes than it may have."""


class _Limits(threading.local):
    deadline = math.inf


_limits = _Limits()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Give up an answer that this thread has not read within that time, however steadily it comes.

    Raises:
        TimeoutError: by the read that is under way then.
    """
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
    """What comes by a channel of ssh, whose own files have no raw side."""

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
    """Reads nothing of unknown size: the libraries would take a negative size of a chunk for "all"."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise OSError("an answer without a size, or with a negative one")
        return super().read(size)

    def readline(self, size: int | None = -1, /) -> bytes:
        if size is not None and size >= 0:
            return super().readline(size)
        line = super().readline(_LONGEST_SIZE_LINE)
        if len(line) == _LONGEST_SIZE_LINE and not line.endswith(b"\n"):
            raise OSError("an answer with a line without an end where a size belongs")
        return line


class LimitedResponse(HTTPResponse):
    """An answer whose header has the time of one step as a whole, and whose body `time_limit` ends."""

    def __init__(self, sock: Any, *args: Any, **how: Any) -> None:
        super().__init__(sock, *args, **how)
        self._input = _LimitedInput(self.fp.detach() if hasattr(self.fp, "detach") else _Received(sock), sock)
        self._step_s = sock.gettimeout()
        self.fp = _LimitedReader(self._input)
        # Of the answer of a proxy to CONNECT the header is read without `begin`.
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
    """Let all new connections of a pool manager answer with `LimitedResponse`; may be repeated."""
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
    """Return all of an answer.

    Raises:
        TooLargeError: it is larger.
    """
    return b"".join(bounded(pieces, max_bytes))


def bounded(pieces: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """Yield the pieces of an answer.

    Raises:
        TooLargeError: there are more bytes.
    """
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise TooLargeError(f"the answer has more than {max_bytes} bytes")
        yield piece


def beginning(pieces: Iterable[bytes], max_bytes: int) -> bytes:
    """Return no more than so many bytes of an answer."""
    data = b""
    for piece in pieces:
        data += piece
        if len(data) >= max_bytes:
            break
    return data[:max_bytes]


def lines_of(pieces: Iterable[bytes], longest: int, *, skip_longer: bool = False) -> Iterator[bytes]:
    """Yield the lines of an answer as they come, without line feeds.

    Args:
        pieces: of the answer.
        longest: how many bytes a line may have.
        skip_longer: leave out a line that is longer.

    Raises:
        OSError: a line is longer, and not to be left out.
    """
    # Each byte is taken once: a line may come in thousands of pieces.
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
