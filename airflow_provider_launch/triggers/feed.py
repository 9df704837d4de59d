"""The log of one app on its way into the log of one trigger: small turns, and a place that is always exact."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._task.log_limit import NO_LIMIT
from airflow_provider_launch._task.task_log import pieces
from airflow_provider_launch.follow.events import LogLines
from airflow_provider_launch.follow.log_positions import LogItem, pieces_in, position_after, with_pieces
from airflow_provider_launch.follow.log_reader import LogReader
from airflow_provider_launch.schedulers.logs import last_refresh

if TYPE_CHECKING:
    import contextvars

    from airflow_provider_launch._task.log_limit import LogLimit
    from airflow_provider_launch._task.task_log import TaskLog
    from airflow_provider_launch.follow.events import Event
    from airflow_provider_launch.schedulers.api import JsonValue, LogLine, Scheduler, Stream

TURN_BYTES = 8 * 1024
LONG_CHARS = 16 * 1024
"""A line of more is written in pieces, each in a turn of its own."""
HEAVY_CHARS = 512 * 1024
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
        context: in which it writes; it shows the supervisor which trigger's log is meant.
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
        "_parts",
        "_parts_written",
        "_places",
        "_task_log",
        "_turn",
        "_written",
        "app_id",
        "checkpoint",
        "is_heavy",
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
        self.app_id = app_id
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
        self._written = 0
        self._parts: list[str] = []
        """The pieces of a long line that is being written."""
        self._parts_written = 0
        self._closed = False
        self.is_heavy = False
        """Whether the latest read brought much."""
        # Held while a turn is written, so that a place is never taken in the middle of one.
        self._turn = threading.Lock()

    @property
    def places(self) -> dict[str, JsonValue]:
        """Where to go on, over all lines that were handed to the log."""
        with self._turn:
            return self._places_now()

    def add_event(self, event: Event) -> None:
        """Write an event before the next lines."""
        self._events.append(event)

    def has_more(self) -> bool:
        """Return whether there is something to write."""
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
                self._item, self._written = self.reader.pop(), 0
                self.is_heavy = self._item is not None and self._item.size > HEAVY_CHARS
            return 0 if self._item is None else self._write_part(self._item)

    def close(self) -> dict[str, JsonValue]:
        """Write nothing more but what was reported, and return where to go on."""
        self.reader.stop()
        with self._turn:
            while self._events and not self._closed:
                self._write(self._events.pop(0))
            self._closed = True
            # Again and again the same, also without the current lines.
            self._places = self._places_now()
            if self._item is not None:
                self._drop(self._item)
            return dict(self._places)

    def _places_now(self) -> dict[str, JsonValue]:
        places = dict(self._places)
        if self._item is not None and (self._written or self._parts_written) and self._item.key is not None:
            skip = self._item.start_skip + self._written
            places[self._item.key] = position_after(self._item.start, skip, self._parts_written)
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
        key = item.key or ""
        if len(lines[self._written].text) > LONG_CHARS:
            return self._write_piece(item, key, lines)
        first, size = self._written, 0
        while self._written < len(lines) and size < TURN_BYTES and len(lines[self._written].text) <= LONG_CHARS:
            size += len(lines[self._written].text) + RECORD_BYTES
            self._written += 1
        part = lines[first : self._written]
        shown, is_cut = self._limit.first_lines(key, part)
        self._write(LogLines(item.event.role, item.event.replica, part[:shown]))
        if shown < len(part):
            self._written = first + shown
            self._leave(item, is_cut=is_cut)
        elif self._written == len(lines):
            self._finish(item)
        return size

    def _write_piece(self, item: LogItem, key: str, lines: Sequence[LogLine]) -> int:
        """Write one piece of a long line: all of it at once would silence the other apps for as long."""
        line = lines[self._written]
        if not self._parts:
            shown, is_cut = self._limit.first_lines(key, [line])
            if not shown:
                self._leave(item, is_cut=is_cut)
                return RECORD_BYTES
            self._parts = pieces(last_refresh(line.text.removesuffix("\n")))
            # An earlier trigger has written some, if this is the line at which it was ended.
            written = pieces_in(self._places.get(key)) if self._written == 0 else 0
            self._parts_written = written if written < len(self._parts) else 0
        part = self._parts[self._parts_written]
        try:
            self._context.run(self._task_log.write_piece, key, line, self._parts, self._parts_written)
        except Exception:  # noqa: BLE001 - a log that fails must not stop the logs of the others
            self._task_log.has_gap = True
        self._parts_written += 1
        if self._parts_written == len(self._parts):
            self._parts, self._parts_written = [], 0
            self._written += 1
            if self._written == len(lines):
                self._finish(item)
        return len(part) + RECORD_BYTES

    def _leave(self, item: LogItem, *, is_cut: bool) -> None:
        """Read a replica no further whose first lines are shown; the worker shows its last ones."""
        key = item.key or ""
        self._places[key] = position_after(item.start, item.start_skip + self._written)
        self._left |= {key}
        self.reader.leave(key)
        if is_cut:
            with contextlib.suppress(Exception):
                self._context.run(self._task_log.report_cut, key, self._limit.max_bytes)
        self._drop(item)

    def _drop(self, item: LogItem) -> None:
        self._item = None
        self.reader.release(item)

    def _finish(self, item: LogItem) -> None:
        if item.key is not None:
            written = pieces_in(self._places.get(item.key)) if item.event is None else 0
            self._places[item.key] = with_pieces(item.cursor, written) if written else item.cursor
        self._drop(item)

    def _write(self, event: Event) -> None:
        try:
            self._context.run(self._task_log.write_event, event)
        except Exception:  # noqa: BLE001 - a log that fails must not stop the logs of the others
            self._task_log.has_gap = True
