"""Writes the logs of many apps into the logs of their triggers: few threads, a budget, and a fair share for each.

A triggerer's supervisor takes only a few hundred kilobytes of log per second from all its triggers together, and blocks
a writer that sends more. So one thread writes, in small turns and only while little is unread; others read ahead by one
chunk for each app. If lines are left when an app has ended, the worker continues at the position of this pump.
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
"""A reader that hangs for this many seconds is replaced, so that one log source does not block the others."""
_UNREAD_BYTES = 64 * 1024
"""Below the size of the supervisor's buffer: a full buffer blocks writers, and so the event loop."""
_BUFFERED_BYTES, _BUFFERED_MAX_BYTES = 32 * 1024 * 1024, 128 * 1024 * 1024
_IDLE_READS_PER_S = 40.0
_CHECKPOINT_S = 10.0
_APPS_PER_CHECKPOINT_S = 10
_SETTLE_S, _SETTLE_MAX_S, _AGAIN_S = 0.25, 1.0, 1.0
"""Seconds that writing pauses until the supervisor has read everything, at first and at most; seconds to a retry."""
# The kernel counts far more bytes for a record than it has, so the limit is reached after about eighty records.
_NAP_S, _NAP_MAX_S = 0.002, 0.05
_CHECK_S = 0.5


@dataclass(slots=True)
class _Served:
    """Queue state of a feed. Idle feeds are in no queue, so that no thread checks them."""

    busy: bool = False
    """It is being read."""
    waits_to_write: bool = False
    """It is in the queue of the writer."""
    last_turn: int = 0
    """Number of its last turn."""
    ticket: int = 0
    """Its current entry in the queue of the readers; other entries are outdated."""


class LogPump:
    """Serves the feeds of one process. Its threads live while there are feeds.

    Args:
        bytes_per_s: bytes written per second for all feeds together.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._feeds: dict[Feed, _Served] = {}
        self._lock = threading.Lock()
        self._to_write, self._to_read = threading.Condition(self._lock), threading.Condition(self._lock)
        self._writable: list[tuple[int, int, Feed]] = []
        """Heap of feeds to write: last turn, entry number, feed."""
        self._readable: list[tuple[float, int, Feed]] = []
        """Heap of feeds to read: due time (monotonic clock), ticket, feed."""
        self._parked: list[tuple[float, int, Feed]] = []
        """Feeds that are not read while much text is buffered."""
        self._numbers = itertools.count(1)
        self._threads: list[threading.Thread] = []
        self._reading_since: dict[threading.Thread, float] = {}
        self._next_idle_read = 0.0

    def add(self, feed: Feed) -> None:
        """Start to serve a feed."""
        feed.reader.on_items = lambda: self.wake(feed)
        with self._lock:
            self._feeds[feed] = _Served()
            if not self._threads:
                for job in (self._write, *[self._read] * _READERS):
                    self._start(job)
            self._enqueue(feed)

    def remove(self, feed: Feed) -> dict[str, JsonValue]:
        """Stop serving a feed, and return where to continue; waits for a turn that is being written."""
        with self._lock:
            self._feeds.pop(feed, None)
            if not self._feeds:
                self._to_write.notify()
        return feed.close()

    def wake(self, feed: Feed) -> None:
        """Queue a feed that has something to write or to read."""
        with self._lock:
            self._enqueue(feed)

    def _start(self, job: Callable[[], None]) -> None:
        thread = threading.Thread(target=job, name=f"launch-pump-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _enqueue(self, feed: Feed) -> None:
        """Put a feed into the right queue; the caller has the lock."""
        served = self._feeds.get(feed)
        if served is None:
            return
        if feed.has_more():
            # Do not read further before this is written.
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
                metrics.gauge("log_bytes_held", sum(feed.buffered_bytes() for feed in list(self._feeds)))
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
                        # A feed that wrote more than a turn waits accordingly longer.
                        served.last_turn += size // TURN_BYTES
                    self._enqueue(feed)
        # Otherwise the last values would stay in the metrics.
        metrics.gauge("deferred_apps", 0)
        metrics.gauge("log_bytes_held", 0)

    def _take_turn(self, feed: Feed) -> int:
        try:
            return feed.take_turn()
        except Exception as error:  # noqa: BLE001 - all apps share this thread
            self._drop(feed, error)
            return TURN_BYTES

    def _drop(self, feed: Feed, error: Exception) -> None:
        """Stop serving a feed whose app, scheduler or log has raised an error."""
        log.error(
            "the log of app %s is no longer shown live; its task writes the rest after the app has ended",
            feed.app_id,
            exc_info=error,
        )
        with self._lock:
            self._feeds.pop(feed, None)

    def _wait_to_write(self) -> bool:
        """Wait briefly for something to write; return False if no feeds are left."""
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
        """Return the feed that has waited longest, so that quiet apps write at once and floods share the rest."""
        with self._lock:
            while self._writable:
                feed = heapq.heappop(self._writable)[2]
                served = self._feeds.get(feed)
                if served is not None:
                    served.waits_to_write, served.last_turn = False, turn
                    return feed
            return None

    def _checkpoint(self, settle_s: float) -> bool:
        """Record the positions of all feeds when the supervisor has read everything; return False at the timeout.

        Positions are stored faster than log records arrive; a position ahead of them would lose lines after a kill.
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
                except Exception as error:  # noqa: BLE001 - all apps share this thread
                    self._drop(feed, error)
        return True

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        while (feed := self._next_to_read()) is not None:
            try:
                feed.reader.step()
            except Exception as error:  # noqa: BLE001 - all apps share these threads
                self._drop(feed, error)
            finally:
                with self._lock:
                    self._reading_since.pop(threading.current_thread(), None)
                    if (served := self._feeds.get(feed)) is not None:
                        served.busy = False
                    if feed.buffered_bytes() or feed.has_more():
                        # Only idle reads count; other reads are limited by the writer.
                        self._next_idle_read -= 1 / _IDLE_READS_PER_S
                    self._enqueue(feed)

    def _next_to_read(self) -> Feed | None:
        """Wait for a feed that is due, and return it; None if this thread is no longer needed."""
        with self._lock:
            mine = threading.current_thread()
            while mine in self._threads:
                # Minus one, because the writer is one of the threads.
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
                    # Limit the rate of reads of quiet apps.
                    self._next_idle_read = max(self._next_idle_read, now) + 1 / _IDLE_READS_PER_S
                    return feed
                self._to_read.wait(min(pause, _CHECK_S))
            return None

    def _due_at(self, now: float) -> float:
        """Return when the first feed is due.

        While much text is unwritten, heavy feeds are parked, so that they do not block quiet apps.
        """
        buffered = sum(feed.buffered_bytes() for _, _, feed in self._writable)
        if buffered <= _BUFFERED_BYTES:
            for entry in self._parked:
                heapq.heappush(self._readable, entry)
            self._parked.clear()
        while self._readable and buffered <= _BUFFERED_MAX_BYTES:
            due, ticket, feed = self._readable[0]
            served = self._feeds.get(feed)
            if served is None or served.ticket != ticket:
                heapq.heappop(self._readable)
            elif buffered > _BUFFERED_BYTES and feed.is_heavy:
                self._parked.append(heapq.heappop(self._readable))
            else:
                return due
        return now + _CHECK_S

    def _readers_wanted(self) -> int:
        now = time.monotonic()
        stalled = sum(now - since > _STALLED_S for since in self._reading_since.values())
        return min(_READERS + stalled, _MOST_READERS)


def log_bytes_unread() -> int | None:
    """Return the bytes of log records on their way to the supervisor; None if the system does not report them."""
    try:
        import structlog

        file = structlog.get_config()["logger_factory"].io
        return _unread(file.fileno())
    except Exception:  # noqa: BLE001 - private parts of Airflow may change
        return None


def comms_bytes_unread() -> int | None:
    """Return the bytes of requests on their way to the supervisor; None if the system does not report them."""
    try:
        from airflow.sdk.execution_time import task_runner

        writer: Any = task_runner.SUPERVISOR_COMMS._async_writer  # type: ignore[attr-defined] # noqa: SLF001 - see above
        transport = writer.transport
        socket = transport.get_extra_info("socket")
        return int(transport.get_write_buffer_size()) + (_unread(socket.fileno()) or 0)
    except Exception:  # noqa: BLE001 - private parts of Airflow may change
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
