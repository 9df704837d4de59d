"""Reading the logs of all replicas of one app beside the status path."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.follow.events import LogGap, LogLines
from airflow_provider_launch.specs.errors import SchedulerUnavailableError, UnknownAppException

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_launch.schedulers.api import JsonValue, LogChunk, LogLine, Scheduler, Stream

__all__ = ["LogItem", "LogReader", "pieces_in", "place_after", "replica_key", "with_pieces"]

# Less than one read of a busy log: whoever reads waits until whoever writes has written. Two busy threads of one
# interpreter pass its lock to and fro at each record, which costs more than the work of both.
_QUEUE_LINES = 256
_QUEUE_CHARS = 64 * 1024
_BUSY_S = 0.1
_IDLE_S = 1.0
_RETRY_MAX_S = 5.0
_GAPS_PER_REPLICA = 5
_SKIP_MAX_S = 30.0
_FROM, _SKIP, _PIECES = "launch_from", "launch_skip", "launch_pieces"


@lru_cache(maxsize=4096)
def replica_key(role: str, replica: int) -> str:
    """Return the name of a replica among the cursors."""
    return f"{role}/{replica}"


def place_after(cursor: JsonValue, lines: int, pieces: int = 0) -> JsonValue:
    """Return the place so many lines after a cursor of the scheduler, which knows only the ends of its chunks.

    Args:
        cursor: of the scheduler.
        lines: after it.
        pieces: of the line that follows them, which were written already.
    """
    if pieces:
        return {_FROM: cursor, _SKIP: lines, _PIECES: pieces}
    return {_FROM: cursor, _SKIP: lines} if lines else cursor


def with_pieces(place: JsonValue, pieces: int) -> JsonValue:
    """Return the place with the pieces of the line there that were written already."""
    return place_after(*_cursor_in(place), pieces)


def pieces_in(place: JsonValue) -> int:
    """Return how many pieces of the line at a place were written already."""
    found = place.get(_PIECES) if isinstance(place, Mapping) and _FROM in place else None
    return found if isinstance(found, int) else 0


def _cursor_in(place: JsonValue) -> tuple[JsonValue, int]:
    if isinstance(place, Mapping) and set(place) - {_PIECES} == {_FROM, _SKIP}:
        skip = place[_SKIP]
        return place[_FROM], skip if isinstance(skip, int) else 0
    return place, 0


@dataclass(slots=True)
class LogItem:
    """One step of the log: what to tell, and the cursor once it was told."""

    event: LogLines | LogGap | None
    key: str | None = None
    cursor: JsonValue = None
    size: int = 0
    start: JsonValue = None
    """Cursor from which the lines were read; the first `start_skip` after it are not among them."""
    start_skip: int = 0


@dataclass(slots=True)
class _Replica:
    role: str
    k: int
    cursor: JsonValue
    skipping: bool
    drop: int = 0
    """Lines after the cursor that were told before."""
    due: float = 0.0
    quiet_since: float = field(default_factory=time.monotonic)
    failures: int = 0
    complete: bool = False
    told: tuple[str, ...] = ()
    last_error: str = ""


class LogReader:
    """One thread that reads the replicas in turn into a bounded queue; without one, somebody calls `step`.

    `changed` is the condition on which the consumer waits; it guards everything here. The thread stops reading
    while the queue is full, so memory does not grow with the log.
    """

    __slots__ = (
        "_app_id",
        "_busy_s",
        "_changed",
        "_chars",
        "_cursors",
        "_finishing",
        "_from_now",
        "_idle_s",
        "_items",
        "_lines",
        "_outage_told",
        "_own_thread",
        "_replicas",
        "_scheduler",
        "_started",
        "_started_at",
        "_stopped",
        "_streams",
        "_thread",
        "progress",
    )

    def __init__(
        self,
        scheduler: Scheduler[Any],
        app_id: str,
        changed: threading.Condition,
        *,
        cursors: Mapping[str, JsonValue],
        streams: Stream | None,
        from_now: bool,
        own_thread: bool = True,
    ) -> None:
        self._scheduler = scheduler
        self._app_id = app_id
        self._changed = changed
        self._cursors = cursors
        self._streams = streams
        self._from_now = from_now
        self._own_thread = own_thread
        # An engine that is looked at every 10 s is not asked for logs every 0.1 s.
        self._busy_s = min(max(_BUSY_S, scheduler.poll_interval_s / 5), 2.0)
        self._idle_s = max(_IDLE_S, self._busy_s * 5)
        self._replicas: dict[str, _Replica] = {}
        self._items: list[LogItem] = []
        self._lines = 0
        self._chars = 0
        self._outage_told = False
        self._started_at = time.time()
        self._started = self.progress = time.monotonic()
        self._finishing = False
        self._stopped = False
        self._thread: threading.Thread | None = None

    # ---- called by the consumer's thread ---------------------------------------------------------------------

    def want(self, replicas: Iterable[tuple[str, int]], *, existing: bool) -> bool:
        """Read these replicas too, and tell whether one is new.

        `existing`: they may have written before the follower came.
        """
        with self._changed:
            if self._stopped:
                return False
            known = len(self._replicas)
            for role, k in replicas:
                key = replica_key(role, k)
                if key not in self._replicas:
                    cursor, told = _cursor_in(self._cursors.get(key))
                    skipping = self._from_now and existing and cursor is None and not told
                    self._replicas[key] = _Replica(role, k, cursor, skipping, told)
            if self._replicas and self._thread is None and self._own_thread:
                name = f"launch-logs-{self._scheduler.backend}-{self._app_id}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            if len(self._replicas) == known:
                return False
            self._changed.notify_all()
            return True

    def hurry(self) -> None:
        """Look at all replicas soon: something happened to the app."""
        with self._changed:
            now = time.monotonic()
            for replica in self._replicas.values():
                replica.quiet_since = now
                if not replica.failures:
                    replica.due = now
            self._changed.notify_all()

    def finish(self) -> None:
        """Say that the app has ended: what a read begun from now on does not bring will never come."""
        with self._changed:
            self._finishing = True
            self.progress = time.monotonic()
            for replica in self._replicas.values():
                replica.due = 0.0
            self._changed.notify_all()

    def pop(self) -> LogItem | None:
        """Return the next step, None if there is none now."""
        with self._changed:
            if not self._items:
                return None
            item = self._items.pop(0)
            self.progress = time.monotonic()
            return item

    def told(self, item: LogItem) -> None:
        """Say that an item is told, which makes room for the next."""
        with self._changed:
            full = self._full()
            self._lines -= len(item.event.lines) if isinstance(item.event, LogLines) else 0
            self._chars -= item.size
            if full:
                self._changed.notify_all()

    def held_chars(self) -> int:
        """Return how much text is read and not told."""
        return self._chars

    def __bool__(self) -> bool:
        return bool(self._items)

    def is_skipping(self) -> bool:
        """Whether the last read of a replica brought lines, of which none was new enough."""
        with self._changed:
            return any(r.skipping and r.due == r.quiet_since and not r.complete for r in self._replicas.values())

    def incomplete(self) -> list[tuple[str, int, str]]:
        """Return role, replica and last error of each replica whose log may have more lines."""
        with self._changed:
            return [(r.role, r.k, r.last_error) for r in self._replicas.values() if not r.complete]

    def done(self) -> bool:
        """Tell whether everything was read and handed out."""
        with self._changed:
            return not self._items and all(replica.complete for replica in self._replicas.values())

    def leave(self, key: str) -> None:
        """Read this replica no more."""
        with self._changed:
            if (replica := self._replicas.get(key)) is not None:
                replica.complete = True
                self._changed.notify_all()

    def stop(self) -> None:
        """Let the thread end as soon as the read under way returns; what is queued can still be popped."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, which may hang in a read."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    # ---- the thread ------------------------------------------------------------------------------------------

    def _full(self) -> bool:
        return self._lines >= _QUEUE_LINES or self._chars >= _QUEUE_CHARS

    def _run(self) -> None:
        while (picked := self._next()) is not None:
            self._read(*picked)

    def _read(self, replica: _Replica, finishing: bool) -> None:
        try:
            chunk = self._scheduler.read_logs(
                self._app_id, replica.role, replica.k, replica.cursor, streams=self._streams
            )
            self._took(replica, chunk, finishing=finishing)
        except Exception as error:  # noqa: BLE001 - the log path never changes the outcome, whatever a plug-in answers
            self._failed(replica, error, finishing=finishing)

    def due_in(self) -> float | None:
        """Return the seconds until a replica is to be read; None: not before something changes."""
        with self._changed:
            waiting = [replica.due for replica in self._replicas.values() if not replica.complete]
            if self._stopped or self._full() or not waiting:
                return None
            return min(waiting) - time.monotonic()

    def step(self) -> None:
        """Read the replica that is due first. Not to be called by two threads at once."""
        with self._changed:
            waiting = [replica for replica in self._replicas.values() if not replica.complete]
            if self._stopped or not waiting:
                return
            picked = min(waiting, key=lambda item: item.due), self._finishing
        self._read(*picked)

    def _next(self) -> tuple[_Replica, bool] | None:
        """Wait for room and for a replica that is due; None: stop."""
        with self._changed:
            while not self._stopped:
                waiting = [replica for replica in self._replicas.values() if not replica.complete]
                if self._full() or not waiting:
                    if not waiting and self._finishing:
                        return None
                    self._changed.wait()
                    continue
                replica = min(waiting, key=lambda item: item.due)
                left = replica.due - time.monotonic()
                if left <= 0:
                    return replica, self._finishing
                self._changed.wait(left)
            return None

    def _took(self, replica: _Replica, chunk: LogChunk, *, finishing: bool) -> None:
        now = time.monotonic()
        with self._changed:
            replica.failures = 0
            replica.last_error = ""
            self._outage_told = False
            start = replica.cursor
            moved = chunk.cursor != start
            if moved:
                # Not each time: the same place is kept once.
                replica.cursor = chunk.cursor
            lines = self._skip(replica, chunk.lines, now) if replica.skipping else chunk.lines[replica.drop :]
            replica.drop = max(0, replica.drop - len(chunk.lines))
            if chunk.lines:
                replica.quiet_since = replica.due = now
                self.progress = now
            elif finishing:
                replica.complete = True
                self.progress = now
            elif self._finishing:
                replica.due = now  # the end came in the middle of this read, which tells nothing about it
            else:
                quiet = now - replica.quiet_since
                replica.due = now + min(max(self._busy_s, quiet / 10), self._idle_s)
            if lines or moved or replica.complete:
                self._push(replica, lines, start, len(chunk.lines) - len(lines))

    def _skip(self, replica: _Replica, lines: list[LogLine], now: float) -> list[LogLine]:
        """Drop what was written before the follower came; a writer that never pauses is not skipped for ever."""
        if not lines or now - self._started > _SKIP_MAX_S:
            replica.skipping = False
            return lines
        for number, line in enumerate(lines):
            if line.time is not None and line.time >= self._started_at:
                replica.skipping = False
                return lines[number:]
        return []

    def _push(self, replica: _Replica, lines: list[LogLine], start: JsonValue, start_skip: int) -> None:
        event = LogLines(replica.role, replica.k, lines) if lines else None
        size = sum(len(line.text) for line in lines)
        place = place_after(replica.cursor, replica.drop)
        self._items.append(LogItem(event, replica_key(replica.role, replica.k), place, size, start, start_skip))
        self._lines += len(lines)
        self._chars += size
        self._changed.notify_all()

    def _failed(self, replica: _Replica, error: Exception, *, finishing: bool) -> None:
        with self._changed:
            replica.failures += 1
            replica.last_error = f"{type(error).__name__}: {error}"
            replica.due = time.monotonic() + min(self._busy_s * 2 ** min(replica.failures, 10), _RETRY_MAX_S)
            lasting = isinstance(error, (UnknownAppException, ValueError)) and finishing
            if lasting or isinstance(error, NotImplementedError):
                replica.complete = True
                self.progress = time.monotonic()
                action = "given up"
            else:
                action = "trying again"
            self._tell(replica, error, action)
            self._changed.notify_all()

    def _tell(self, replica: _Replica, error: Exception, action: str) -> None:
        if isinstance(error, SchedulerUnavailableError):
            # An outage hits all replicas; a thousand of them say it once.
            if not self._outage_told:
                self._outage_told = True
                self._items.append(LogItem(LogGap(None, None, f"logs are not readable now, {action}: {error}")))
            return
        message = f"log is not readable, {action}: {replica.last_error}"
        if message not in replica.told and len(replica.told) < _GAPS_PER_REPLICA:
            replica.told += (message,)
            self._items.append(LogItem(LogGap(replica.role, replica.k, message)))
