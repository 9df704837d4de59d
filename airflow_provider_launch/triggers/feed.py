"""The log of one app, written into the log of one trigger in small turns, with an exact position at any time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._task.log_limit import NO_LIMIT
from airflow_provider_launch._task.task_log import Pieces
from airflow_provider_launch.follow.events import LogLines
from airflow_provider_launch.follow.log_positions import LogItem, pieces_after, pieces_in, pieces_of
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
"""Longer lines are written in pieces, each in a turn of its own."""
HEAVY_BYTES = 1536 * 1024
RECORD_BYTES = 150
"""Bytes that a log record adds to the text of its line."""

# Shared by all feeds, because no thread waits on it, and a thousand of them would take a megabyte.
_CHANGED = threading.Condition()
# Shared, because each call of frozenset creates another object.
_NOTHING: frozenset[str] = frozenset()
_NOWHERE: Mapping[str, JsonValue] = {}


class Feed:
    """Writes the log of one app into the log of one trigger.

    Args:
        scheduler: where the app runs.
        app_id: the app.
        task_log: writes the lines.
        context: context in which it writes; the supervisor finds the log of the trigger by it.
        cursors: where another feed or follower stopped.
        streams: which stream is read. None: all that the backend has.
        from_now: skip older lines; replicas with a cursor continue from there.
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
        "_positions",
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
        start = dict(cursors) if cursors else _NOWHERE
        self.reader = LogReader(
            scheduler,
            app_id,
            _CHANGED,
            cursors=start,
            streams=streams,
            from_now=from_now,
            own_thread=False,
        )
        self.checkpoint: Mapping[str, JsonValue] = start
        """Positions up to which the supervisor has received everything."""
        self.on_checkpoint: Callable[[], object] = lambda: None
        """Called when `checkpoint` has changed, on the pump's thread."""
        self._task_log = task_log
        self._context = context
        self._limit = limit
        self._left = _NOTHING
        self._positions = dict(start)
        self._events: list[Event] = []
        self._item: LogItem | None = None
        self._written = 0
        self._parts: Pieces | None = None
        """A long line that is being written."""
        self._parts_written = 0
        self._closed = False
        self.is_heavy = False
        """Whether the latest read returned much text."""
        # Held while a turn is written, so that positions are never read in the middle of one.
        self._turn = threading.Lock()

    @property
    def positions(self) -> dict[str, JsonValue]:
        """Where to continue, after all lines that were written to the log."""
        with self._turn:
            return self._positions_now()

    def add_event(self, event: Event) -> None:
        """Write an event before the next lines."""
        self._events.append(event)

    def has_more(self) -> bool:
        """Return whether there is something to write."""
        return not self._closed and (bool(self._events) or self._item is not None or bool(self.reader))

    def buffered_bytes(self) -> int:
        """Return the approximate memory of lines that were read and not yet written."""
        return self.reader.buffered_bytes()

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
                self.is_heavy = self._item is not None and self._item.size > HEAVY_BYTES
            return 0 if self._item is None else self._write_part(self._item)

    def close(self) -> dict[str, JsonValue]:
        """Write the pending events, stop, and return where to continue."""
        self.reader.stop()
        with self._turn:
            while self._events and not self._closed:
                self._write(self._events.pop(0))
            self._closed = True
            # Stored, so that repeated calls return the same after the current lines are dropped.
            self._positions = self._positions_now()
            if self._item is not None:
                self._drop(self._item)
            return dict(self._positions)

    def _positions_now(self) -> dict[str, JsonValue]:
        positions = dict(self._positions)
        if self._item is not None and (self._written or self._parts_written) and self._item.key is not None:
            positions[self._item.key] = self._position(self._item)
        return positions

    def _position(self, item: LogItem) -> JsonValue:
        return item.position(self._written, self._positions.get(item.key or ""), self._parts_written)

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
        """Write one piece of a long line, because the whole line would delay the other apps."""
        line = lines[self._written]
        if self._parts is None:
            shown, is_cut = self._limit.first_lines(key, [line])
            if not shown:
                self._leave(item, is_cut=is_cut)
                return RECORD_BYTES
            self._parts = Pieces(last_refresh(line.text.removesuffix("\n")))
            # An earlier trigger may have written some pieces of the line at which it was cancelled.
            written = pieces_of(line, pieces_after(lines[: self._written], pieces_in(self._positions.get(key))))
            self._parts_written = written if written < len(self._parts) else 0
        start, stop = self._parts.span(self._parts_written)
        try:
            self._context.run(self._task_log.write_piece, key, line, self._parts, self._parts_written)
        except Exception:  # noqa: BLE001 - a log that fails must not stop the logs of the others
            self._task_log.has_gap = True
        self._parts_written += 1
        if self._parts_written == len(self._parts):
            self._parts, self._parts_written = None, 0
            self._written += 1
            if self._written == len(lines):
                self._finish(item)
        return stop - start + RECORD_BYTES

    def _leave(self, item: LogItem, *, is_cut: bool) -> None:
        """Stop reading a replica whose first lines are shown; the worker shows its last ones."""
        key = item.key or ""
        self._positions[key] = self._position(item)
        self._left |= {key}
        self.reader.stop_replica(key)
        if is_cut:
            with contextlib.suppress(Exception):
                self._context.run(self._task_log.report_cut, key, self._limit.max_bytes)
        self._drop(item)

    def _drop(self, item: LogItem) -> None:
        self._item = None
        self.reader.release(item)

    def _finish(self, item: LogItem) -> None:
        if item.key is not None:
            self._positions[item.key] = self._position(item)
        self._drop(item)

    def _write(self, event: Event) -> None:
        try:
            self._context.run(self._task_log.write_event, event)
        except Exception:  # noqa: BLE001 - a log that fails must not stop the logs of the others
            self._task_log.has_gap = True
