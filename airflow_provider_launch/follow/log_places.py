"""How far the logs of replicas are read: positions, as cursors between the chunks of a scheduler."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
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
    return place_after(*cursor_in(place), pieces)


def pieces_in(place: JsonValue) -> int:
    """Return how many pieces of the line at a place were written already."""
    found = place.get(_PIECES) if isinstance(place, Mapping) and _FROM in place else None
    return found if isinstance(found, int) else 0


def cursor_in(place: JsonValue) -> tuple[JsonValue, int]:
    """Return the cursor of the scheduler before a place, and how many lines after it the place is."""
    if isinstance(place, Mapping) and set(place) - {_PIECES} == {_FROM, _SKIP}:
        skip = place[_SKIP]
        return place[_FROM], skip if isinstance(skip, int) else 0
    return place, 0


@dataclass(slots=True)
class LogItem:
    """One step of the log: what to report, and the cursor once it was reported."""

    event: LogLines | Unfinished | AttemptEnded | LogGap | None
    key: str | None = None
    cursor: JsonValue = None
    size: int = 0
    is_streamed: bool = False
    start: JsonValue = None
    """Cursor from which the lines were read; the first `start_skip` after it are not among them."""
    start_skip: int = 0


@dataclass(slots=True)
class ReplicaLog:
    """State of one replica; `LogReader` changes it under its lock."""

    role: str
    k: int
    cursor: JsonValue
    skipping: bool
    phase: Phase
    attempt: int
    drop: int = 0
    """Lines after the cursor that were reported before."""
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
    """Streams in a row that did not last, or could not be opened."""
    is_behind: bool = False
    reported_attempt: int = 0
    """The latest attempt of which is reported how those before it ended."""
    unfinished: str = ""
    """What was shown last of a line that has not ended."""
    unfinished_at: float = 0.0
    """From when on more of it is shown."""
    refreshes: int = 0
    """How often it was shown."""
    distrusts: str = ""
    """Host of a stream that was silent for long: if there are lines now, it was dead."""

    @property
    def is_waiting(self) -> bool:
        """Whether its log is to be read some time."""
        return not self.complete and self.phase is not Phase.WAITING


# Less than one read of a busy log: the reader waits until the writer has written. Two busy threads of one
# interpreter pass its lock to and fro at each record, which costs more than the work of both.
QUEUE_LINES = 256
QUEUE_CHARS = 64 * 1024
_STREAM_LINES = 4096
_STREAM_CHARS = 256 * 1024
"""So much is read ahead by streams: a stream that waits may lose what its engine rotates away meanwhile."""


class LogQueue:
    """Items in the order in which they were read. Not thread-safe: guarded by the lock of its reader."""

    __slots__ = ("_items", "_lines", "_taken", "chars")

    def __init__(self) -> None:
        self._items: deque[LogItem] = deque()
        self._taken: LogItem | None = None
        self._lines = 0
        self.chars = 0
        """How much text is read and not shown."""

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, item: LogItem) -> None:
        """Add what was read."""
        self._items.append(item)
        self._lines += len(item.event.lines) if isinstance(item.event, LogLines) else 0
        self.chars += item.size

    def take(self) -> LogItem | None:
        """Return the oldest item, None if there is none; it counts until it is released."""
        self._taken = self._items.popleft() if self._items else None
        return self._taken

    def release(self, item: LogItem) -> None:
        """Note that an item is shown, which makes room for the next."""
        self._taken = None
        self._lines -= len(item.event.lines) if isinstance(item.event, LogLines) else 0
        self.chars -= item.size

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be read in turns."""
        return self._lines >= QUEUE_LINES or self.chars >= QUEUE_CHARS

    @property
    def is_full_for_streams(self) -> bool:
        """Whether streams are to wait."""
        return self._lines >= _STREAM_LINES or self.chars >= _STREAM_CHARS

    @property
    def has_room_for_streams(self) -> bool:
        """Whether streams that wait may go on."""
        return self._lines < _STREAM_LINES / 2 and self.chars < _STREAM_CHARS / 2

    def forget_streamed(self) -> int:
        """Count no item as one of a stream any more, and return how much text they had."""
        # The one that was taken, too: who stops in the middle of it may never come back to release it.
        streamed = [item for item in (self._taken, *self._items) if item is not None and item.is_streamed]
        for item in streamed:
            item.is_streamed = False
        return sum(item.size for item in streamed)
