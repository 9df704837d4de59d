"""The log of one app on its way into the log of one trigger: small turns, and a place that is always exact."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._task.log_limit import NO_LIMIT
from airflow_provider_launch.follow.events import LogLines
from airflow_provider_launch.follow.log_reader import LogItem, LogReader, place_after

if TYPE_CHECKING:
    import contextvars

    from airflow_provider_launch._task.log_limit import LogLimit
    from airflow_provider_launch._task.task_log import TaskLog
    from airflow_provider_launch.follow.events import Event
    from airflow_provider_launch.schedulers.api import JsonValue, Scheduler, Stream

__all__ = ["RECORD_BYTES", "TURN_BYTES", "Feed"]

TURN_BYTES = 8 * 1024
RECORD_BYTES = 150
"""What a log record adds to the text of its line."""

# One for all: nobody waits on it, and in a thousand feeds they would be a megabyte.
_CHANGED = threading.Condition()
# Each call of frozenset makes another one.
_NOTHING: frozenset[str] = frozenset()
_NOWHERE: Mapping[str, JsonValue] = {}


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
        limit: how much of each replica is shown here.
    """

    __slots__ = (
        "_closed",
        "_context",
        "_events",
        "_item",
        "_left",
        "_limit",
        "_places",
        "_task_log",
        "_told",
        "_turn",
        "checkpoint",
        "on_checkpoint",
        "reader",
    )

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
        limit: LogLimit = NO_LIMIT,
    ) -> None:
        begin = dict(cursors) if cursors else _NOWHERE
        self.reader = LogReader(
            scheduler,
            app_id,
            _CHANGED,
            cursors=begin,
            streams=streams,
            from_now=from_now,
            own_thread=False,
        )
        self.checkpoint: Mapping[str, JsonValue] = begin
        """Places up to which the supervisor has everything."""
        self.on_checkpoint: Callable[[], object] = lambda: None
        """Called when `checkpoint` has changed, on the pump's thread."""
        self._task_log = task_log
        self._context = context
        self._limit = limit
        self._left = _NOTHING
        self._places = dict(begin)
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
                return RECORD_BYTES
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
            return RECORD_BYTES
        if not isinstance(item.event, LogLines):
            if item.event is not None:
                self._write(item.event)
            self._finish(item)
            return RECORD_BYTES
        lines = item.event.lines
        first, size = self._told, 0
        while self._told < len(lines) and size < TURN_BYTES:
            size += len(lines[self._told].text) + RECORD_BYTES
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
        self._left |= {key}
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
