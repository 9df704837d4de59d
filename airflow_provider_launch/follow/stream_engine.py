"""One thread per process that waits for all log streams.

Sockets that have data are read one block after the other in turn, so that a flood does not delay the other streams. A
stream whose lines are not taken is paused. The program is not delayed, because the scheduler writes logs to files.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import logging
import os
import random
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_launch.schedulers.log_streams import LogStream, StreamEnd
from airflow_provider_launch.schedulers.logs import LogLine

log = logging.getLogger(__name__)

MAX_STREAMS = 200
"""Open streams of one process."""
BUFFERED_BYTES = 8 * 1024 * 1024
"""Limit of text that all streams together have read and no consumer has taken yet."""
_BLOCK_BYTES = 64 * 1024
_SEEK_S, _SEEK_MAX_S = 1.0, 3.0
"""While a stream seeks the requested position: seconds that it may be silent, and that it may take."""
_SILENT_S, _SILENT_UNRELIABLE_S = 300.0, 60.0
"""Idle network streams are reopened after this many seconds, because a dead connection gives no signal."""
_CHECK_S = 30.0


class Subscriber(Protocol):
    """Takes the lines of a stream. Called on the engine's thread, so it must not block."""

    def on_lines(self, stream: LogStream, lines: list[LogLine]) -> bool:
        """Take lines; return False to pause until `StreamEngine.resume`."""

    def on_end(self, stream: LogStream, *, silent: bool) -> None:
        """Handle the end of the stream, which is closed. `silent`: it was closed because of its silence; reopen it."""


@dataclass(eq=False)
class _Member:
    stream: LogStream
    subscriber: Subscriber
    opened_at: float = field(default_factory=time.monotonic)
    active_at: float = field(default_factory=time.monotonic)
    is_paused: bool = False
    is_waiting: bool = False
    """Paused because all streams together have buffered too much."""
    is_closed: bool = False


class StreamEngine:
    """Reads log streams until they end or are closed. Its thread lives while there are streams."""

    def __init__(self) -> None:
        # Re-entrant: the garbage collector may close a follower, and so its streams, while the lock is held.
        self._lock = threading.RLock()
        self._members: dict[LogStream, _Member] = {}
        self._commands: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._wake_in: socket.socket | None = None
        self._wake_out: socket.socket | None = None
        self._is_woken = False
        self._selector: selectors.BaseSelector | None = None
        self._timers: list[tuple[float, int, _Member]] = []
        self._numbers = itertools.count()
        self._buffered = 0
        self._waiting: list[_Member] = []
        self._unreliable: set[str] = set()
        self._reserved = 0

    # ---- called by any thread ----------------------------------------------------------------------------------------

    def reserve(self) -> bool:
        """Reserve a slot for a stream that is about to be opened; return False if there is none.

        If all slots are taken, a stream that has been silent for long is closed to free its slot.
        """
        with self._lock:
            if len(self._members) + self._reserved < MAX_STREAMS:
                self._reserved += 1
                return True
        self._command(self._make_room)
        return False

    def release(self) -> None:
        """Release a reserved slot for which no stream was opened."""
        with self._lock:
            self._reserved -= 1

    def add(self, stream: LogStream, subscriber: Subscriber) -> None:
        """Read a stream for which a slot was reserved."""
        member = _Member(stream, subscriber)
        with self._lock:
            self._reserved -= 1
            self._members[stream] = member
            self._commands.append(lambda: self._guard(member, lambda: self._start_member(member)))
            thread = self._new_thread() if self._thread is None else None
            self._wake()
        if thread is not None:
            # Without the lock: starting a thread may collect garbage, which may close a follower, which takes the lock.
            thread.start()

    def resume(self, stream: LogStream) -> None:
        """Resume a stream that its subscriber paused."""
        self._command(lambda: self._resume(stream))

    def close(self, stream: LogStream) -> None:
        """Close a stream; its subscriber gets no more calls, except one that is running."""
        with self._lock:
            member = self._members.get(stream)
            if member is None:
                return
            member.is_closed = True
        self._command(lambda: self._remove(member))

    def add_buffered(self, size: int) -> None:
        """Add to the size of buffered text; negative when text was taken."""
        with self._lock:
            before, self._buffered = self._buffered, self._buffered + size
            if not (before > BUFFERED_BYTES / 2 >= self._buffered and self._waiting):
                return
        self._command(self._resume_waiting)

    def mark_unreliable(self, host: str) -> None:
        """Reopen silent streams of this host sooner, because one was silent although there were lines."""
        self._unreliable.add(host)

    def count(self) -> int:
        """Return the number of open streams."""
        return len(self._members)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _new_thread(self) -> threading.Thread:
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._is_woken = False
        self._thread = threading.Thread(target=self._run, name="launch-streams", daemon=True)
        return self._thread

    def _command(self, command: Callable[[], None]) -> None:
        with self._lock:
            if self._thread is not None:
                self._commands.append(command)
                self._wake()

    def _wake(self) -> None:
        if not self._is_woken and self._wake_out is not None:
            self._is_woken = True
            with suppress(OSError):
                self._wake_out.send(b"\0")

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:
            log.exception("the thread that reads all logs has failed; their streams are opened again")
            self._restart()

    def _restart(self) -> None:
        """Close all streams. Their subscribers open them again, and the first one starts another thread."""
        with self._lock:
            members = list(self._members.values())
            self._members.clear()
            self._commands.clear()
            self._stop()
        for member in members:
            self._give_up(member)

    def _guard(self, member: _Member, step: Callable[[], object]) -> bool:
        """Do a step of one stream, and close that stream on an unexpected error. Return the result of the step."""
        try:
            return bool(step())
        except Exception:
            log.exception("the stream of a log at %s is closed", member.stream.host)
            was_closed = member.is_closed
            self._remove(member)
            if not was_closed:
                self._give_up(member)
            return False

    def _give_up(self, member: _Member) -> None:
        with suppress(Exception):
            member.stream.close()
        if member.stream.end is None:
            member.stream.end = StreamEnd.CUT
        try:
            member.subscriber.on_end(member.stream, silent=False)
        except Exception:
            log.exception("a follower failed to handle the end of its stream")

    def _loop(self) -> None:
        ready: deque[_Member] = deque()
        assert self._selector is not None
        while True:
            timeout = 0.0 if ready else self._due_in()
            for key, _ in self._selector.select(timeout):
                if key.data is None:
                    self._take_wake()
                elif key.data not in ready:
                    ready.append(key.data)
            if not self._obey():
                return
            for _ in range(len(ready)):
                member = ready.popleft()
                # TLS may have buffered bytes that the selector does not see.
                if self._guard(member, functools.partial(self._read, member)):
                    ready.append(member)
            self._watch_timers()

    def _take_wake(self) -> None:
        assert self._wake_in is not None
        with suppress(BlockingIOError):
            while self._wake_in.recv(64):
                pass
        with self._lock:
            self._is_woken = False

    def _obey(self) -> bool:
        """Run the commands of other threads; return False if no streams are left."""
        while True:
            with self._lock:
                if not self._commands:
                    if self._members or self._reserved:
                        return True
                    self._stop()
                    return False
                command = self._commands.popleft()
            command()

    def _stop(self) -> None:
        for end in (self._wake_in, self._wake_out, self._selector):
            if end is not None:
                end.close()
        self._thread = self._wake_in = self._wake_out = self._selector = None
        self._timers.clear()
        self._waiting.clear()

    def _start_member(self, member: _Member) -> None:
        if member.is_closed:
            self._remove(member)
            return
        self._register(member)
        self._remind(member, _SEEK_S)
        self._serve(member, member.stream.begin())

    def _register(self, member: _Member) -> None:
        assert self._selector is not None
        self._selector.register(member.stream.sock, selectors.EVENT_READ, member)

    def _unregister(self, member: _Member) -> None:
        assert self._selector is not None
        with suppress(KeyError, ValueError):
            self._selector.unregister(member.stream.sock)

    def _read(self, member: _Member) -> bool:
        """Read one block, and return whether there may be more that the selector does not see."""
        stream = member.stream
        if member.is_closed or member.is_paused or stream.end is not None:
            return False
        try:
            data = stream.sock.recv(_BLOCK_BYTES)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            data = b""
        member.active_at = time.monotonic()
        self._serve(member, stream.feed(data))
        return _has_pending(stream)

    def _serve(self, member: _Member, lines: list[LogLine]) -> None:
        if lines and not member.is_closed and not member.subscriber.on_lines(member.stream, lines):
            self._pause(member)
        if member.stream.end is not None:
            self._end(member, silent=False)
        elif self._buffered > BUFFERED_BYTES and not member.is_paused:
            member.is_waiting = True
            self._waiting.append(member)
            self._pause(member)

    def _end(self, member: _Member, *, silent: bool) -> None:
        was_closed = member.is_closed
        self._remove(member)
        if not was_closed:
            member.subscriber.on_end(member.stream, silent=silent)

    def _remove(self, member: _Member) -> None:
        member.is_closed = True
        with self._lock:
            known = self._members.pop(member.stream, None)
        if known is not None:
            self._unregister(member)
            member.stream.close()

    def _pause(self, member: _Member) -> None:
        if not member.is_paused:
            member.is_paused = True
            self._unregister(member)

    def _resume(self, stream: LogStream) -> None:
        member = self._members.get(stream)
        if member is not None and not member.is_closed and not member.is_waiting:
            self._guard(member, lambda: self._resume_member(member))

    def _resume_member(self, member: _Member) -> None:
        stream = member.stream
        if member.is_paused:
            member.is_paused = False
            member.active_at = time.monotonic()
            self._register(member)
            # Bytes that TLS has already decrypted wake no selector.
            if _has_pending(stream):
                self._commands.append(lambda: self._read_pending(member))

    def _read_pending(self, member: _Member) -> None:
        if self._guard(member, lambda: self._read(member)):
            self._commands.append(lambda: self._read_pending(member))

    def _resume_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for member in waiting:
            member.is_waiting = False
            self._resume(member.stream)

    # ---- silence -----------------------------------------------------------------------------------------------------

    def _due_in(self) -> float:
        return min(max(0.0, self._timers[0][0] - time.monotonic()), _CHECK_S) if self._timers else _CHECK_S

    def _remind(self, member: _Member, after_s: float) -> None:
        heapq.heappush(self._timers, (time.monotonic() + after_s, next(self._numbers), member))

    def _watch_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            member = heapq.heappop(self._timers)[2]
            if not member.is_closed and member.stream.end is None:
                self._guard(member, functools.partial(self._check_silence, member, now))

    def _check_silence(self, member: _Member, now: float) -> None:
        silent_s = now - member.active_at
        if member.is_paused:
            self._remind(member, _CHECK_S)
        elif not member.stream.is_placed:
            if silent_s < _SEEK_S and now - member.opened_at < _SEEK_MAX_S:
                self._remind(member, _SEEK_S - silent_s)
            else:
                member.stream.lose()
                self._end(member, silent=False)
        elif member.stream.is_remote:
            limit_s = _SILENT_UNRELIABLE_S if member.stream.host in self._unreliable else _SILENT_S
            # Spread the streams over time.
            limit_s *= random.uniform(0.8, 1.2)  # noqa: S311 - no secret
            if silent_s >= limit_s:
                member.stream.end = StreamEnd.CUT
                self._end(member, silent=True)
            else:
                self._remind(member, limit_s - silent_s)

    def _make_room(self) -> None:
        """Close the stream with the longest silence, if it was silent for long enough."""
        if len(self._members) + self._reserved < MAX_STREAMS:
            return
        member = min(self._members.values(), key=lambda item: item.active_at, default=None)
        if member is not None and time.monotonic() - member.active_at > _SILENT_S:
            member.stream.end = StreamEnd.CUT
            self._end(member, silent=True)


def _has_pending(stream: LogStream) -> bool:
    """Return whether TLS has decrypted bytes that no selector sees."""
    sock = stream.sock
    return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0


class _Engines:
    """Holds the engine of this process; a forked child gets a new one."""

    def __init__(self) -> None:
        self.one = StreamEngine()

    def forget(self) -> None:
        self.one = StreamEngine()


_engines = _Engines()
os.register_at_fork(after_in_child=_engines.forget)


def stream_engine() -> StreamEngine:
    """Return the engine of this process."""
    return _engines.one
