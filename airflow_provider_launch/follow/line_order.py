"""Lines of several replicas in the order in which they were written: pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from airflow_provider_launch.follow.events import Event, LogLines
from airflow_provider_launch.follow.log_positions import Counts, LogItem, count_lines, position_after, replica_key
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
    if len(logs) < 2 or any(line.time is None for item in items for line in item.lines):  # noqa: PLR2004 - several
        return [*items]
    merged = heapq.merge(
        *(_rising(number, log) for number, log in enumerate(logs.values())), key=lambda place: place[:2]
    )
    return [*_divided(merged)]


def _log_of(item: LogItem) -> str:
    event = item.event
    return item.key or ("" if event is None or event.role is None else f"{event.role}/{event.replica}")


def _rising(number: int, items: Iterable[LogItem]) -> Iterator[_Place]:
    # A clock may be set back within a log: a line is not earlier than those before it.
    last = 0.0
    for item in items:
        if not item.lines:
            yield last, number, item, 0
        for at, line in enumerate(item.lines):
            last = max(last, line.time or 0.0)
            yield last, number, item, at


def _divided(places: Iterable[_Place]) -> Iterator[LogItem]:
    current: LogItem | None = None
    first = end = 0
    skips: dict[int, Counts] = {}
    for _, _, item, at in places:
        if item is not current:
            if current is not None:
                yield _part(current, first, end, skips)
            current, first = item, at
        end = at + 1
    if current is not None:
        yield _part(current, first, end, skips)


def _part(item: LogItem, first: int, end: int, skips: dict[int, Counts]) -> LogItem:
    """Return the lines of an item from one number to another, with the positions before and after them.

    Args:
        item: the item.
        first: number of its first line.
        end: number of the line after its last one.
        skips: by the id of an item, the lines that its parts so far have counted.
    """
    if not isinstance(item.event, LogLines) or (first == 0 and end == len(item.event.lines)):
        return item
    lines = item.event.lines[first:end]
    skip = after = skips.get(id(item), item.start_skip)
    if skip is not None:
        after = skips[id(item)] = count_lines(lines, skip)
    return LogItem(
        LogLines(item.event.role, item.event.replica, lines),
        item.key,
        item.cursor if end == len(item.event.lines) else position_after(item.start, after or {}),
        sum(len(line.text) for line in lines) + LINE_BYTES * len(lines),
        item.is_streamed,
        item.start,
        skip,
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
