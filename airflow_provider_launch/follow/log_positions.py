"""Positions in the logs of replicas, which may lie between two cursors of the scheduler."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from airflow_provider_launch.follow.events import LogLines
from airflow_provider_launch.follow.replicas import Phase

if TYPE_CHECKING:
    from airflow_provider_launch.follow.events import AttemptEnded, LogGap, Unfinished
    from airflow_provider_launch.schedulers.api import JsonValue
    from airflow_provider_launch.schedulers.log_streams import LogStream

_FROM, _SKIP, _PIECES = "launch_from", "launch_skip", "launch_pieces"


@lru_cache(maxsize=4096)
def replica_key(role: str, replica: int) -> str:
    """Return the key of a replica in a mapping of cursors."""
    return f"{role}/{replica}"


def position_after(cursor: JsonValue, lines: int, pieces: int = 0) -> JsonValue:
    """Return the position `lines` lines after a cursor of the scheduler, which has cursors only for ends of chunks.

    Args:
        cursor: the cursor that the scheduler returned.
        lines: number of lines after it.
        pieces: number of pieces of the next line that were already written.
    """
    if pieces:
        return {_FROM: cursor, _SKIP: lines, _PIECES: pieces}
    return {_FROM: cursor, _SKIP: lines} if lines else cursor


def with_pieces(position: JsonValue, pieces: int) -> JsonValue:
    """Return the position with the number of pieces of its line that were already written."""
    return position_after(*cursor_in(position), pieces)


def pieces_in(position: JsonValue) -> int:
    """Return how many pieces of the line at a position were already written."""
    found = position.get(_PIECES) if isinstance(position, Mapping) and _FROM in position else None
    return found if isinstance(found, int) else 0


def cursor_in(position: JsonValue) -> tuple[JsonValue, int]:
    """Return the scheduler's cursor before a position, and the number of lines between the two."""
    if isinstance(position, Mapping) and set(position) - {_PIECES} == {_FROM, _SKIP}:
        skip = position[_SKIP]
        return position[_FROM], skip if isinstance(skip, int) else 0
    return position, 0


@dataclass(slots=True)
class LogItem:
    """One event of the log, and the cursor after it."""

    event: LogLines | Unfinished | AttemptEnded | LogGap | None
    key: str | None = None
    cursor: JsonValue = None
    size: int = 0
    """Approximate memory of its lines, in bytes."""
    is_streamed: bool = False
    start: JsonValue = None
    """Cursor from which the lines were read, without the first `start_skip` lines after it."""
    start_skip: int = 0


@dataclass(slots=True)
class ReplicaLog:
    """Reading state of one replica; `LogReader` changes it under its lock."""

    role: str
    k: int
    cursor: JsonValue
    skipping: bool
    phase: Phase
    attempt: int
    drop: int = 0
    """Number of lines after the cursor that were already reported."""
    due: float = 0.0
    quiet_since: float = field(default_factory=time.monotonic)
    failures: int = 0
    complete: bool = False
    reported: tuple[str, ...] = ()
    last_error: str = ""
    stream: LogStream | None = None
    streamed_at: float = 0.0
    no_stream_until: float = 0.0
    cuts: int = 0
    """Number of streams in a row that were cut early or could not be opened."""
    is_behind: bool = False
    reported_attempt: int = 0
    """The endings of all attempts before this one were reported."""
    unfinished: str = ""
    """The last shown text of a line that has not ended."""
    unfinished_at: float = 0.0
    """When it may be shown again."""
    refreshes: int = 0
    """How often it was shown."""
    was_read: bool = False
    """Whether its log was read, or could not be."""
    unreliable_host: str = ""
    """Host of a stream that was closed for silence: if a read now finds lines, the stream was dead."""

    @property
    def is_waiting(self) -> bool:
        """Whether its log will be read."""
        return not self.complete and self.phase is not Phase.WAITING


# Less than one read of a busy log, so that the reader waits for the writer. Two busy threads would pass the GIL to
# each other at each record, which costs more than the work of both.
QUEUE_LINES = 256
QUEUE_BYTES = 64 * 1024
_STREAM_LINES = 4096
_STREAM_BYTES = 256 * 1024
"""Streams read this far ahead, because a paused stream may lose lines that its engine rotates away."""


class LogQueue:
    """Queue of items between reader and writer. Not thread-safe: guarded by the lock of its reader."""

    __slots__ = ("_items", "_lines", "_taken", "bytes", "since")

    def __init__(self) -> None:
        self._items: deque[LogItem] = deque()
        self._taken: LogItem | None = None
        self._lines = 0
        self.bytes = 0
        """Approximate memory of lines read and not yet shown."""
        self.since = 0.0
        """When its oldest item was added, by the monotonic clock."""

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def items(self) -> Sequence[LogItem]:
        """The items, the next one first."""
        return self._items

    def reorder(self, items: Iterable[LogItem]) -> None:
        """Replace the items by the same lines in another order."""
        self._items = deque(items)

    def put(self, item: LogItem) -> None:
        """Add an item."""
        if not self._items:
            self.since = time.monotonic()
        self._items.append(item)
        self._lines += len(item.event.lines) if isinstance(item.event, LogLines) else 0
        self.bytes += item.size

    def take(self) -> LogItem | None:
        """Return the oldest item or None; it counts as queued until it is released."""
        self._taken = self._items.popleft() if self._items else None
        return self._taken

    def release(self, item: LogItem) -> None:
        """Make room for the next item, because this one was shown."""
        self._taken = None
        self._lines -= len(item.event.lines) if isinstance(item.event, LogLines) else 0
        self.bytes -= item.size

    @property
    def is_full(self) -> bool:
        """Whether plain reads must wait."""
        return self._lines >= QUEUE_LINES or self.bytes >= QUEUE_BYTES

    @property
    def is_full_for_streams(self) -> bool:
        """Whether streams must wait."""
        return self._lines >= _STREAM_LINES or self.bytes >= _STREAM_BYTES

    @property
    def has_room_for_streams(self) -> bool:
        """Whether paused streams may resume."""
        return self._lines < _STREAM_LINES / 2 and self.bytes < _STREAM_BYTES / 2

    def unmark_streamed(self) -> int:
        """Unmark all items of streams, and return their size."""
        # Also the item that was taken: a consumer that stops in the middle of it may never release it.
        streamed = [item for item in (self._taken, *self._items) if item is not None and item.is_streamed]
        for item in streamed:
            item.is_streamed = False
        return sum(item.size for item in streamed)
