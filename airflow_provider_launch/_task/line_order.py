"""Lines of several replicas that were read at the same time, in the order in which they were written."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from airflow_provider_launch.follow.events import Event, LogLines
from airflow_provider_launch.schedulers.api import LogLine

_MOST_LINES, _MOST_CHARS = 20_000, 16 * 1024 * 1024
"""Lines that are kept, and their characters; a longer log is not sorted as a whole."""
_Key = tuple[str, int]


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
        keys = {(event.role, event.replica) for event in kept}
        if len(keys) < 2 or any(line.time is None for event in kept for line in event.lines):  # noqa: PLR2004 - several
            return kept
        lines: dict[_Key, list[LogLine]] = {}
        for event in kept:
            lines.setdefault((event.role, event.replica), []).extend(event.lines)
        return [*_merged(lines.items())]


def _merged(logs: Iterable[tuple[_Key, list[LogLine]]]) -> Iterator[LogLines]:
    """Yield all lines by time, with neighbours of one replica together; each log keeps its own order."""
    # A clock may be set back within a log: a line is not earlier than those before it.
    merged = heapq.merge(*(_rising(key, lines) for key, lines in logs), key=lambda item: item[0])
    current: LogLines | None = None
    for _, (role, replica), line in merged:
        if current is not None and (current.role, current.replica) == (role, replica):
            current.lines.append(line)
            continue
        if current is not None:
            yield current
        current = LogLines(role, replica, [line])
    if current is not None:
        yield current


def _rising(key: _Key, lines: Iterable[LogLine]) -> Iterator[tuple[float, _Key, LogLine]]:
    last = 0.0
    for line in lines:
        last = max(last, line.time or 0.0)
        yield last, key, line
