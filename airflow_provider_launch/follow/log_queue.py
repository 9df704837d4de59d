"""What was read of the logs of one app and is not shown yet: bounded, so that memory does not grow with the log."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from airflow_provider_launch.follow.events import LogLines

if TYPE_CHECKING:
    from airflow_provider_launch.follow.log_places import LogItem

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
