"""The logs of many apps into the logs of their triggers: few threads, a budget, and a fair share for each.

A triggerer's supervisor takes only a few hundred kilobytes of log per second for all its triggers together, and blocks
whoever writes more. So one thread writes, in small turns and only while little is unread; some others read ahead by one
chunk for each app. What was not written when an app has ended the worker writes from the place where this left off.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.follow.events import LogLines
from airflow_provider_launch.follow.log_reader import LogItem, LogReader, place_after
from airflow_provider_launch.hooks.log_limit import LogLimit
from airflow_provider_launch.triggers.pipe import log_bytes_unread

if TYPE_CHECKING:
    import contextvars

    from airflow_provider_launch.follow.events import Event
    from airflow_provider_launch.hooks.task_log import TaskLog
    from airflow_provider_launch.schedulers.api import JsonValue, Scheduler, Stream

__all__ = ["Feed", "LogPump"]

_READERS, _MOST_READERS = 4, 32
_STALLED_S = 2.0
"""After so long a reader does not count as one: a log source that hangs must not silence those of others."""
_TURN_BYTES = 8 * 1024
_UNREAD_BYTES = 32 * 1024
"""The supervisor's buffer holds more; whoever meets it full waits, and on the event loop that would be everybody."""
_HELD_BYTES = 32 * 1024 * 1024
_IDLE_READS_PER_S = 40.0
_RECORD_BYTES = 150
"""What a log record adds to the text of its line."""
_CHECKPOINT_S = 10.0
_APPS_PER_CHECKPOINT_S = 10
_SETTLE_S = 1.0
# The kernel counts far more bytes for a record than it has, so "unread" is reached after some forty of them.
_NAP_S = 0.002


# One for all: nobody waits on it, and in a thousand feeds they would be a megabyte.
_CHANGED = threading.Condition()


class Feed:
    """The log of one app on its way into the log of one trigger.

    Args:
        scheduler: where the app runs.
        app_id: the app.
        task_log: writes the lines.
        context: in which it writes; it tells the supervisor which trigger's log is meant.
        cursors: where another feed or follower left off.
        streams: which stream is read. None: what the backend has.
        from_now: without what was written before; replicas with a cursor go on from there.
        limit: how much of each replica is shown here. None: all.
    """

    def __init__(
        self,
        scheduler: Scheduler[Any],
        app_id: str,
        task_log: TaskLog,
        context: contextvars.Context,
        *,
        cursors: Mapping[str, JsonValue],
        streams: Stream | None,
        from_now: bool,
        limit: LogLimit | None = None,
    ) -> None:
        self.reader = LogReader(
            scheduler,
            app_id,
            _CHANGED,
            cursors=dict(cursors),
            streams=streams,
            from_now=from_now,
            own_thread=False,
        )
        self.checkpoint: dict[str, JsonValue] = dict(cursors)
        """Places up to which the supervisor has everything."""
        self.on_checkpoint: Callable[[], object] = lambda: None
        """Called when `checkpoint` has changed, on the pump's thread."""
        self.busy = False
        self.last_turn = 0
        """Number of the pump's turn in which it wrote last."""
        self._task_log = task_log
        self._context = context
        self._limit = limit or LogLimit(None)
        self._left: set[str] = set()
        self._places: dict[str, JsonValue] = dict(cursors)
        self._events: list[Event] = []
        self._item: LogItem | None = None
        self._told = 0
        self._closed = False
        # Held while a turn is written, so that a place is never taken in the middle of one.
        self._turn = threading.Lock()

    @property
    def places(self) -> dict[str, JsonValue]:
        """Where to go on, over all lines that were handed to the log."""
        with self._turn:
            return self._places_now()

    def say(self, event: Event) -> None:
        """Write an event before the next lines."""
        self._events.append(event)

    def has_more(self) -> bool:
        """Tell whether there is something to write."""
        return not self._closed and (bool(self._events) or self._item is not None or bool(self.reader))

    def held_bytes(self) -> int:
        """Return about how much was read and not written."""
        return self.reader.held_chars()

    def take_turn(self) -> int:
        """Write some lines, and return their bytes."""
        with self._turn:
            if self._closed:
                return 0
            if self._events:
                self._write(self._events.pop(0))
                return _RECORD_BYTES
            if self._item is None:
                self._item, self._told = self.reader.pop(), 0
            return 0 if self._item is None else self._write_part(self._item)

    def close(self) -> dict[str, JsonValue]:
        """Write nothing more but what was said, and return where to go on."""
        self.reader.stop()
        with self._turn:
            while self._events and not self._closed:
                self._write(self._events.pop(0))
            self._closed = True
            return self._places_now()

    def _places_now(self) -> dict[str, JsonValue]:
        places = dict(self._places)
        if self._item is not None and self._told and self._item.key is not None:
            places[self._item.key] = place_after(self._item.start, self._item.start_skip + self._told)
        return places

    def _write_part(self, item: LogItem) -> int:
        if item.key is not None and item.key in self._left:
            self._drop(item)
            return _RECORD_BYTES
        if not isinstance(item.event, LogLines):
            if item.event is not None:
                self._write(item.event)
            self._finish(item)
            return _RECORD_BYTES
        lines = item.event.lines
        first, size = self._told, 0
        while self._told < len(lines) and size < _TURN_BYTES:
            size += len(lines[self._told].text) + _RECORD_BYTES
            self._told += 1
        part = lines[first : self._told]
        key = item.key or ""
        was_full = self._limit.is_full(key)
        shown = self._limit.admit(key, part)
        self._write(LogLines(item.event.role, item.event.replica, part[:shown]))
        if shown < len(part):
            self._told = first + shown
            self._leave(item, told=was_full)
        elif self._told == len(lines):
            self._finish(item)
        return size

    def _leave(self, item: LogItem, *, told: bool) -> None:
        """Read a replica no further whose first lines are shown; the worker shows its last ones."""
        key = item.key or ""
        self._places[key] = place_after(item.start, item.start_skip + self._told)
        self._left.add(key)
        self.reader.leave(key)
        if not told:
            with contextlib.suppress(Exception):
                self._context.run(self._task_log.say_cut, key, self._limit.max_bytes)
        self._drop(item)

    def _drop(self, item: LogItem) -> None:
        self._item = None
        self.reader.told(item)

    def _finish(self, item: LogItem) -> None:
        if item.key is not None:
            self._places[item.key] = item.cursor
        self._drop(item)

    def _write(self, event: Event) -> None:
        # A log that fails must not stop the logs of the others.
        with contextlib.suppress(Exception):
            self._context.run(self._task_log.tell, event)


class LogPump:
    """Serves the feeds of one process. Its threads live while there are feeds.

    Args:
        bytes_per_s: how much is written per second for all feeds together.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._feeds: list[Feed] = []
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._reading_since: dict[threading.Thread, float] = {}
        self._next_idle_read = 0.0

    def add(self, feed: Feed) -> None:
        """Begin to serve a feed."""
        with self._changed:
            self._feeds.append(feed)
            if not self._threads:
                for job in (self._write, *[self._read] * _READERS):
                    self._start(job)
            self._changed.notify_all()

    def remove(self, feed: Feed) -> dict[str, JsonValue]:
        """Serve a feed no more, and return where to go on; waits for a turn that is being written."""
        with self._changed:
            if feed in self._feeds:
                self._feeds.remove(feed)
            self._changed.notify_all()
        return feed.close()

    def _start(self, job: Callable[[], None]) -> None:
        thread = threading.Thread(target=job, name=f"launch-pump-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def wake(self) -> None:
        """Look at all feeds: one has something to say or to read."""
        with self._changed:
            self._changed.notify_all()

    # ---- writing -----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        credit, refilled = float(_TURN_BYTES), time.monotonic()
        checkpointed, turn = time.monotonic(), 0
        while True:
            with self._changed:
                if not self._feeds:
                    self._threads = []
                    self._changed.notify_all()
                    return
                if len(self._threads) <= self._readers_wanted():
                    self._start(self._read)
                feeds = list(self._feeds)
                ready = [feed for feed in feeds if feed.has_more()]
                if not ready:
                    self._changed.wait(0.2)
            now = time.monotonic()
            if now - checkpointed >= max(_CHECKPOINT_S, len(feeds) / _APPS_PER_CHECKPOINT_S):
                self._checkpoint(feeds)
                checkpointed = now = time.monotonic()
            credit = min(credit + (now - refilled) * self._rate, self._rate / 4)
            refilled = now
            if not ready:
                continue
            if credit <= 0 or (log_bytes_unread() or 0) > _UNREAD_BYTES:
                time.sleep(_NAP_S)
                continue
            turn += 1
            # The one that has waited longest, so that a quiet app comes at once and floods share the rest.
            feed = min(ready, key=lambda each: each.last_turn)
            feed.last_turn = turn
            credit -= feed.take_turn()
            with self._changed:
                self._changed.notify_all()

    def _checkpoint(self, feeds: Sequence[Feed]) -> None:
        """Note the places of all feeds at a moment at which the supervisor has read everything.

        What is stored elsewhere overtakes the log records; a place ahead of them would lose lines when all is killed.
        """
        deadline = time.monotonic() + _SETTLE_S
        while (log_bytes_unread() or 0) > 0:
            if time.monotonic() >= deadline:
                return
            time.sleep(_NAP_S)
        for feed in feeds:
            places = feed.places
            if places != feed.checkpoint:
                feed.checkpoint = places
                feed.on_checkpoint()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        while (feed := self._next()) is not None:
            try:
                feed.reader.step()
            finally:
                with self._changed:
                    self._reading_since.pop(threading.current_thread(), None)
                    feed.busy = False
                    if feed.has_more():
                        # Reads that bring something are limited by what may be written.
                        self._next_idle_read -= 1 / _IDLE_READS_PER_S
                    self._changed.notify_all()

    def _next(self) -> Feed | None:
        """Wait for a feed that is to be read; None: this thread is not needed any more."""
        with self._changed:
            mine = threading.current_thread()
            while mine in self._threads:
                # The writer is one of the threads, and no reader.
                if len(self._threads) - 1 > self._readers_wanted():
                    self._threads.remove(mine)
                    return None
                pause = max(0.0, self._next_idle_read - time.monotonic())
                if not pause:
                    feed, pause = self._due()
                    if feed is not None:
                        feed.busy = True
                        self._reading_since[mine] = time.monotonic()
                        # Many quiet apps together are read only so often.
                        self._next_idle_read = max(self._next_idle_read, time.monotonic()) + 1 / _IDLE_READS_PER_S
                        return feed
                self._changed.wait(pause)
            return None

    def _readers_wanted(self) -> int:
        now = time.monotonic()
        stalled = sum(now - since > _STALLED_S for since in self._reading_since.values())
        return min(_READERS + stalled, _MOST_READERS)

    def _due(self) -> tuple[Feed | None, float]:
        if sum(feed.held_bytes() for feed in self._feeds) > _HELD_BYTES:
            return None, 1.0
        soonest, found = 1.0, None
        for feed in self._feeds:
            if feed.busy or feed.has_more():
                continue
            due = feed.reader.due_in()
            if due is not None and due < soonest:
                soonest, found = due, feed
        return (found, 0.0) if found is not None and soonest <= 0 else (None, max(soonest, _NAP_S))
