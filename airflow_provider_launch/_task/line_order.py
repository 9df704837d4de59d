"""Lines of several replicas that were read at the same time, in the order in which they were written."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_launch.follow.events import Event, LogLines
from airflow_provider_launch.follow.line_order import in_order
from airflow_provider_launch.follow.log_positions import LogItem, replica_key

_MOST_LINES, _MOST_CHARS = 20_000, 16 * 1024 * 1024
"""Lines that are kept, and their characters; a longer log is not sorted as a whole."""


class LineOrder:
    """Keeps lines until another event, and returns them by their time.

    A short app has ended before its first line is read: without order its log is one replica after the other.
    A follower reports another event each 0.2 s, so that lines of a long app are not held longer.

    Args:
        is_on: whether lines are kept at all.
    """

    def __init__(self, *, is_on: bool = True) -> None:
        self._is_on = is_on
        self._kept: list[LogLines] = []
        self._lines = self._chars = 0

    def add(self, event: Event) -> Iterator[Event]:
        """Return the events that are due now: none for lines, else the lines before this event, and the event."""
        if not self._is_on or not isinstance(event, LogLines):
            yield from self.rest()
            yield event
            return
        self._kept.append(event)
        self._lines += len(event.lines)
        self._chars += sum(len(line.text) for line in event.lines)
        if self._lines >= _MOST_LINES or self._chars >= _MOST_CHARS:
            yield from self.rest()

    def rest(self) -> list[LogLines]:
        """Return the lines that are left, in their order."""
        kept, self._kept = self._kept, []
        self._lines = self._chars = 0
        items = [LogItem(event, replica_key(event.role, event.replica)) for event in kept]
        return [item.event for item in in_order(items) if isinstance(item.event, LogLines)]
