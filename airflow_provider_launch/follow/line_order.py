"""Lines of several replicas in the order in which they were written: pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from airflow_provider_launch.follow.events import Event, LogLines
from airflow_provider_launch.follow.log_positions import LogItem, position_after, replica_key
from airflow_provider_launch.schedulers.api import LogLine
from airflow_provider_launch.schedulers.logs import LINE_BYTES

_MOST_LINES, _MOST_CHARS = 20_000, 16 * 1024 * 1024
"""Lines that are kept, and their characters; a longer log is not sorted as a whole."""

_Place = tuple[float, int, LogItem, int]
"""Time, number of the log, item, and number of the line in it."""


def in_order(items: Sequence[LogItem]) -> list[LogItem]:
    """Return the items by the time of their lines; an item is divided where lines of another replica follow.

    The log of each replica keeps its own order, and the items are returned unchanged if a line has no time.
    """
    logs: dict[str, list[LogItem]] = {}
    for item in items:
        logs.setdefault(_log_of(item), []).append(item)
    if len(logs) < 2 or any(line.time is None for item in items for line in _lines(item)):  # noqa: PLR2004 - several
        return [*items]
    merged = heapq.merge(
        *(_rising(number, log) for number, log in enumerate(logs.values())), key=lambda place: place[:2]
    )
    return [*_divided(merged)]


def _log_of(item: LogItem) -> str:
    event = item.event
    return item.key or ("" if event is None or event.role is None else f"{event.role}/{event.replica}")


def _lines(item: LogItem) -> Sequence[LogLine]:
    return item.event.lines if isinstance(item.event, LogLines) else ()


def _rising(number: int, items: Iterable[LogItem]) -> Iterator[_Place]:
    # A clock may be set back within a log: a line is not earlier than those before it.
    last = 0.0
    for item in items:
        if not (lines := _lines(item)):
            yield last, number, item, 0
        for at, line in enumerate(lines):
            last = max(last, line.time or 0.0)
            yield last, number, item, at


def _divided(places: Iterable[_Place]) -> Iterator[LogItem]:
    current: LogItem | None = None
    first = end = 0
    for _, _, item, at in places:
        if item is not current:
            if current is not None:
                yield _part(current, first, end)
            current, first = item, at
        end = at + 1
    if current is not None:
        yield _part(current, first, end)


def _part(item: LogItem, first: int, end: int) -> LogItem:
    """Return the lines of an item from one number to another, with the positions before and after them."""
    if not isinstance(item.event, LogLines) or (first == 0 and end == len(item.event.lines)):
        return item
    lines = item.event.lines[first:end]
    is_last = end == len(item.event.lines)
    return LogItem(
        LogLines(item.event.role, item.event.replica, lines),
        item.key,
        item.cursor if is_last else position_after(item.start, item.start_skip + end),
        sum(len(line.text) for line in lines) + LINE_BYTES * len(lines),
        item.is_streamed,
        item.start,
        item.start_skip + first,
    )


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
