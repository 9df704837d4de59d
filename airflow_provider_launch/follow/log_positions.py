"""Positions in the logs of replicas, which may lie between two cursors of the scheduler.

A position counts the lines of each writer after a cursor. A later read from the same cursor may return the lines of
stdout and stderr, or of two containers, in another order, because new lines of one may come before those of the other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from airflow_provider_launch.follow.events import LogLines
from airflow_provider_launch.follow.replicas import Phase

if TYPE_CHECKING:
    from airflow_provider_launch.follow.events import AttemptEnded, LogGap, Unfinished
    from airflow_provider_launch.schedulers.api import JsonValue, LogLine
    from airflow_provider_launch.schedulers.log_streams import LogStream

_FROM, _SKIP, _PIECES = "launch_from", "launch_skip", "launch_pieces"
_ANY = ""
"""Stands for each writer: an earlier version counted their lines together, and a plug-in may name no stream."""
_MOST_WRITERS = 200
"""Maximum writers of a stored position, which users can edit: each item that waits has its own counts."""

Counts = Mapping[str, int]
"""Numbers of lines, or of pieces of the next line, by the writer of the line."""


@lru_cache(maxsize=4096)
def replica_key(role: str, replica: int) -> str:
    """Return the key of a replica in a mapping of cursors."""
    return f"{role}/{replica}"


def writer_of(line: LogLine) -> str:
    """Return the stream of a line, and its container if that is not the main one."""
    stream = line.stream.value if line.stream else _ANY
    return f"{line.container}/{stream}" if line.container else stream


def count_lines(lines: Iterable[LogLine], before: Counts) -> Counts:
    """Return how many lines each writer has written, with those of `before`."""
    counts = dict(before)
    for line in lines:
        writer = writer_of(line)
        counts[writer] = counts.get(writer, 0) + 1
    return counts


def divide(lines: list[LogLine], counts: Counts) -> tuple[list[LogLine], list[LogLine], Counts]:
    """Return the counted first lines of each writer, the other lines, and the counts of lines that are not there."""
    if not counts:
        return [], lines, counts
    left = dict(counts)
    counted: list[LogLine] = []
    others: list[LogLine] = []
    for line in lines:
        writer = next((name for name in (writer_of(line), _ANY) if left.get(name)), None)
        if writer is None:
            others.append(line)
        else:
            left[writer] -= 1
            counted.append(line)
    return counted, others, {writer: count for writer, count in left.items() if count}


def position_after(cursor: JsonValue, lines: Counts, pieces: Counts | None = None) -> JsonValue:
    """Return the position after some lines that follow a cursor of the scheduler.

    Args:
        cursor: the cursor that the scheduler returned; it has cursors only for ends of chunks.
        lines: numbers of lines after it.
        pieces: how many pieces of the next line of a writer were already written.
    """
    if pieces:
        return {_FROM: cursor, _SKIP: lines, _PIECES: pieces}
    return {_FROM: cursor, _SKIP: lines} if lines else cursor


def pieces_in(position: JsonValue) -> Counts:
    """Return how many pieces of the next line of a writer were already written."""
    return _counts(position.get(_PIECES)) if isinstance(position, Mapping) and _FROM in position else {}


def pieces_of(line: LogLine, pieces: Counts) -> int:
    """Return how many pieces of a line were already written, if it is the next one of its writer."""
    return pieces.get(writer_of(line)) or pieces.get(_ANY, 0)


def pieces_after(lines: Sequence[LogLine], pieces: Counts) -> Counts:
    """Return the pieces that belong to lines after these."""
    if not (pieces and lines):
        return pieces
    written = {_ANY, *map(writer_of, lines)}
    return {writer: count for writer, count in pieces.items() if writer not in written}


def cursor_in(position: JsonValue) -> tuple[JsonValue, Counts]:
    """Return the scheduler's cursor before a position, and the numbers of lines between the two."""
    if isinstance(position, Mapping) and set(position) - {_PIECES} == {_FROM, _SKIP}:
        return position[_FROM], _counts(position[_SKIP])
    return position, {}


def _counts(stored: JsonValue) -> Counts:
    found = stored if isinstance(stored, Mapping) else {_ANY: stored}
    counts = ((writer, count) for writer, count in found.items() if isinstance(count, int) and count > 0)
    return dict(islice(counts, _MOST_WRITERS))


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
    """Cursor from which the lines were read, without the `start_skip` lines after it."""
    start_skip: Counts | None = None
    """None: no positions are needed."""

    @property
    def lines(self) -> Sequence[LogLine]:
        """Its lines; none if it is another event."""
        return self.event.lines if isinstance(self.event, LogLines) else ()

    def position(self, shown: int, before: JsonValue, pieces: int = 0) -> JsonValue:
        """Return the position within its lines.

        Args:
            shown: number of lines before it.
            before: the position before the item; it may have pieces of lines that follow.
            pieces: number of pieces of the next line that were already written.
        """
        left = pieces_after(self.lines[: shown + (pieces > 0)], pieces_in(before))
        if pieces:
            left = {**left, writer_of(self.lines[shown]): pieces}
        if shown < len(self.lines):
            return position_after(self.start, count_lines(self.lines[:shown], self.start_skip or {}), left)
        return position_after(*cursor_in(self.cursor), left) if left else self.cursor


@dataclass(slots=True)
class ReplicaLog:
    """Reading state of one replica; `LogReader` changes it under its lock."""

    role: str
    k: int
    cursor: JsonValue
    skipping: bool
    phase: Phase
    attempt: int
    drop: Counts
    """Numbers of lines after the cursor that were already reported."""
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
        self._lines += len(item.lines)
        self.bytes += item.size

    def take(self) -> LogItem | None:
        """Return the oldest item or None; it counts as queued until it is released."""
        self._taken = self._items.popleft() if self._items else None
        return self._taken

    def release(self, item: LogItem) -> None:
        """Make room for the next item, because this one was shown."""
        self._taken = None
        self._lines -= len(item.lines)
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
