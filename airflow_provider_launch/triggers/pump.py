"""The logs of many apps into the logs of their triggers: few threads, a budget, and a fair share for each.

A triggerer's supervisor takes only a few hundred kilobytes of log per second for all its triggers together, and blocks
the one that writes more. So one thread writes, in small turns and only while little is unread; others read ahead by one
chunk for each app. What was not written when an app has ended the worker writes from the place where this left off.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._task import metrics
from airflow_provider_launch.triggers.feed import TURN_BYTES

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import JsonValue
    from airflow_provider_launch.triggers.feed import Feed

log = logging.getLogger(__name__)

_READERS, _MOST_READERS = 4, 32
_STALLED_S = 2.0
"""After so long a reader does not count as one: a log source that hangs must not silence those of others."""
_UNREAD_BYTES = 64 * 1024
"""The supervisor's buffer holds more; a writer that finds it full waits, and on the event loop all would."""
_HELD_BYTES, _HELD_MAX_BYTES = 32 * 1024 * 1024, 128 * 1024 * 1024
_IDLE_READS_PER_S = 40.0
_CHECKPOINT_S = 10.0
_APPS_PER_CHECKPOINT_S = 10
_SETTLE_S, _SETTLE_MAX_S, _AGAIN_S = 0.25, 1.0, 1.0
"""How long lines wait until the supervisor has read all, at first and at most; and the time until it is tried again."""
# The kernel counts far more bytes for a record than it has, so "unread" is reached after some eighty of them.
_NAP_S, _NAP_MAX_S = 0.002, 0.05
_CHECK_S = 0.5


@dataclass(slots=True)
class _Served:
    """Where a feed stands. No thread checks feeds which have nothing to do, however many there are."""

    busy: bool = False
    """It is being read."""
    waits_to_write: bool = False
    """It is in the queue of the writer."""
    last_turn: int = 0
    """Number of the turn in which it wrote last."""
    ticket: int = 0
    """Its entry in the queue of the readers; any other entry of it is out of date."""


class LogPump:
    """Serves the feeds of one process. Its threads live while there are feeds.

    Args:
        bytes_per_s: how much is written per second for all feeds together.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._feeds: dict[Feed, _Served] = {}
        self._lock = threading.Lock()
        self._to_write, self._to_read = threading.Condition(self._lock), threading.Condition(self._lock)
        self._writable: list[tuple[int, int, Feed]] = []
        """Heap of who has something to write: number of the last turn, a number, the feed."""
        self._readable: list[tuple[float, int, Feed]] = []
        """Heap of who is to be read: when (monotonic clock), ticket, the feed."""
        self._parked: list[tuple[float, int, Feed]] = []
        """Who is not read while much is held."""
        self._numbers = itertools.count(1)
        self._threads: list[threading.Thread] = []
        self._reading_since: dict[threading.Thread, float] = {}
        self._next_idle_read = 0.0

    def add(self, feed: Feed) -> None:
        """Begin to serve a feed."""
        feed.reader.on_items = lambda: self.wake(feed)
        with self._lock:
            self._feeds[feed] = _Served()
            if not self._threads:
                for job in (self._write, *[self._read] * _READERS):
                    self._start(job)
            self._enqueue(feed)

    def remove(self, feed: Feed) -> dict[str, JsonValue]:
        """Serve a feed no more, and return where to go on; waits for a turn that is being written."""
        with self._lock:
            self._feeds.pop(feed, None)
            if not self._feeds:
                self._to_write.notify()
        return feed.close()

    def wake(self, feed: Feed) -> None:
        """Check a feed: it has something to write or to read."""
        with self._lock:
            self._enqueue(feed)

    def _start(self, job: Callable[[], None]) -> None:
        thread = threading.Thread(target=job, name=f"launch-pump-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _enqueue(self, feed: Feed) -> None:
        """Put a feed into the queue in which it is to stand; the lock is held."""
        served = self._feeds.get(feed)
        if served is None:
            return
        if feed.has_more():
            # Nothing is read ahead of what is not written.
            served.ticket = 0
            if not served.waits_to_write:
                served.waits_to_write = True
                heapq.heappush(self._writable, (served.last_turn, next(self._numbers), feed))
                self._to_write.notify()
            return
        if served.busy:
            return
        served.ticket = 0
        if (due_in := feed.reader.due_in()) is not None:
            served.ticket = next(self._numbers)
            heapq.heappush(self._readable, (time.monotonic() + due_in, served.ticket, feed))
            if self._readable[0][2] is feed:
                self._to_read.notify()

    # ---- writing -----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        credit, refilled = float(TURN_BYTES), time.monotonic()
        checkpointed, turn, settle_s = time.monotonic(), 0, _SETTLE_S
        while self._wait_to_write():
            now = time.monotonic()
            if now - checkpointed >= (pause_s := max(_CHECKPOINT_S, len(self._feeds) / _APPS_PER_CHECKPOINT_S)):
                is_noted = self._checkpoint(settle_s)
                metrics.gauge("deferred_apps", len(self._feeds))
                metrics.gauge("log_bytes_held", sum(feed.held_bytes() for feed in list(self._feeds)))
                checkpointed = now = time.monotonic()
                if is_noted:
                    settle_s = _SETTLE_S
                else:
                    checkpointed += _AGAIN_S - pause_s
                    settle_s = min(settle_s * 2, _SETTLE_MAX_S)
            credit = min(credit + (now - refilled) * self._rate, self._rate / 4)
            refilled = now
            if credit <= 0:
                time.sleep(min(max(_NAP_S, -credit / self._rate), _NAP_MAX_S))
            elif (log_bytes_unread() or 0) > _UNREAD_BYTES:
                time.sleep(_NAP_S)
            elif (feed := self._next_to_write(turn + 1)) is not None:
                turn += 1
                size = self._take_turn(feed)
                credit -= size
                with self._lock:
                    if served := self._feeds.get(feed):
                        # Who wrote more than a turn waits as many turns: its debt is its own.
                        served.last_turn += size // TURN_BYTES
                    self._enqueue(feed)
        # Else the last values would stand for ever.
        metrics.gauge("deferred_apps", 0)
        metrics.gauge("log_bytes_held", 0)

    def _take_turn(self, feed: Feed) -> int:
        try:
            return feed.take_turn()
        except Exception as error:  # noqa: BLE001 - the thread is that of all apps
            self._drop(feed, error)
            return TURN_BYTES

    def _drop(self, feed: Feed, error: Exception) -> None:
        """Stop serving a feed whose app, scheduler or log has raised an error."""
        log.error(
            "the log of app %s is not shown live any more; its task writes the rest when it has ended",
            feed.app_id,
            exc_info=error,
        )
        with self._lock:
            self._feeds.pop(feed, None)

    def _wait_to_write(self) -> bool:
        """Wait a little for something to write; False: there are no feeds any more."""
        with self._lock:
            if not self._feeds:
                self._threads, self._writable, self._readable, self._parked = [], [], [], []
                self._to_read.notify_all()
                return False
            if len(self._threads) <= self._readers_wanted():
                self._start(self._read)
            if not self._writable:
                self._to_write.wait(_CHECK_S)
            return True

    def _next_to_write(self, turn: int) -> Feed | None:
        """Return the one that has waited longest, so that a quiet app comes at once and floods share the rest."""
        with self._lock:
            while self._writable:
                feed = heapq.heappop(self._writable)[2]
                served = self._feeds.get(feed)
                if served is not None:
                    served.waits_to_write, served.last_turn = False, turn
                    return feed
            return None

    def _checkpoint(self, settle_s: float) -> bool:
        """Note the places of all feeds at a moment at which the supervisor has read everything; False: none came.

        What is stored elsewhere overtakes the log records; a place ahead of them would lose lines when all is killed.
        """
        deadline = time.monotonic() + settle_s
        while (log_bytes_unread() or 0) > 0:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_NAP_S)
        with self._lock:
            feeds = list(self._feeds)
        for feed in feeds:
            positions = feed.positions
            if positions != feed.checkpoint:
                feed.checkpoint = positions
                try:
                    feed.on_checkpoint()
                except Exception as error:  # noqa: BLE001 - the same
                    self._drop(feed, error)
        return True

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        while (feed := self._next_to_read()) is not None:
            try:
                feed.reader.step()
            except Exception as error:  # noqa: BLE001 - the same
                self._drop(feed, error)
            finally:
                with self._lock:
                    self._reading_since.pop(threading.current_thread(), None)
                    if (served := self._feeds.get(feed)) is not None:
                        served.busy = False
                    if feed.has_more():
                        # Reads that bring something are limited by what may be written.
                        self._next_idle_read -= 1 / _IDLE_READS_PER_S
                    self._enqueue(feed)

    def _next_to_read(self) -> Feed | None:
        """Wait for a feed that is to be read; None: this thread is not needed any more."""
        with self._lock:
            mine = threading.current_thread()
            while mine in self._threads:
                # The writer is one of the threads, and no reader.
                if len(self._threads) - 1 > self._readers_wanted():
                    self._threads.remove(mine)
                    return None
                now = time.monotonic()
                pause = max(self._next_idle_read, self._due_at(now)) - now
                if pause <= 0:
                    feed = heapq.heappop(self._readable)[2]
                    served = self._feeds[feed]
                    served.busy, served.ticket = True, 0
                    self._reading_since[mine] = now
                    # Many quiet apps together are read only so often.
                    self._next_idle_read = max(self._next_idle_read, now) + 1 / _IDLE_READS_PER_S
                    return feed
                self._to_read.wait(min(pause, _CHECK_S))
            return None

    def _due_at(self, now: float) -> float:
        """Return when the first feed is to be read.

        While much is held that is not written, those that brought much wait: a few long lines silence no quiet app.
        """
        held = sum(feed.held_bytes() for _, _, feed in self._writable)
        if held <= _HELD_BYTES:
            for entry in self._parked:
                heapq.heappush(self._readable, entry)
            self._parked.clear()
        while self._readable and held <= _HELD_MAX_BYTES:
            due, ticket, feed = self._readable[0]
            served = self._feeds.get(feed)
            if served is None or served.ticket != ticket:
                heapq.heappop(self._readable)
            elif held > _HELD_BYTES and feed.is_heavy:
                self._parked.append(heapq.heappop(self._readable))
            else:
                return due
        return now + _CHECK_S

    def _readers_wanted(self) -> int:
        now = time.monotonic()
        stalled = sum(now - since > _STALLED_S for since in self._reading_since.values())
        return min(_READERS + stalled, _MOST_READERS)


def log_bytes_unread() -> int | None:
    """Return the bytes of log records on their way to the supervisor; None: not known here."""
    try:
        import structlog

        file = structlog.get_config()["logger_factory"].io
        return _unread(file.fileno())
    except Exception:  # noqa: BLE001 - private parts may change in any way
        return None


def comms_bytes_unread() -> int | None:
    """Return the bytes of requests on their way to the supervisor; None: not known here."""
    try:
        from airflow.sdk.execution_time import task_runner

        writer: Any = task_runner.SUPERVISOR_COMMS._async_writer  # type: ignore[attr-defined] # noqa: SLF001 - see above
        transport = writer.transport
        socket = transport.get_extra_info("socket")
        return int(transport.get_write_buffer_size()) + (_unread(socket.fileno()) or 0)
    except Exception:  # noqa: BLE001 - the same
        return None


def _unread(fd: int) -> int | None:
    import fcntl
    import stat
    import struct
    import termios
    from os import fstat

    if not stat.S_ISSOCK(fstat(fd).st_mode):
        return None
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0"))[0])
