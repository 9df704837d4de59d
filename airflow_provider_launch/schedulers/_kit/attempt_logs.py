"""The log of a replica: those of all its attempts, one after the other, behind one cursor.

The cursor is that of one attempt, with the `key` of the attempt in it; `"done"` means that nothing more can come of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from airflow_provider_launch.schedulers.logs import LogChunk, LogLine

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Attempt(Generic[A]):
    """One attempt of a replica."""

    source: A
    """The container or pod that ran it."""
    key: dict[str, Any]
    """What a cursor keeps of it: `"at"`, a list by which attempts are ordered, and what else identifies it."""
    number: int
    """As users count it, from 0."""
    has_log: bool
    """The program was started."""
    is_over: bool
    """The program has ended, or will never start."""

    def has(self, state: Mapping[str, Any]) -> bool:
        """Return whether a cursor stands in this attempt."""
        return all(state.get(name) == value for name, value in self.key.items())


@dataclass(slots=True)
class AttemptRead:
    """What a read of one attempt has brought."""

    lines: list[LogLine]
    cursor: Mapping[str, Any]
    """Where to go on in this attempt; empty: at its first line."""
    goes_on: bool | None = None
    """Whether the next attempt may be read, if there are no lines; None: if this one is over."""


def unread_attempts(attempts: Iterable[Attempt[A]], state: Mapping[str, Any]) -> Iterator[Attempt[A]]:
    """Yield the attempt in which a cursor stands, unless it was read to its end, and those after it."""
    at = state.get("at")
    for attempt in attempts:
        if at and attempt.key["at"] < list(at):
            continue
        if not (state.get("done") and attempt.has(state)):
            yield attempt


def read_attempts(
    attempts: Iterable[Attempt[A]],
    state: Mapping[str, Any],
    read: Callable[[Attempt[A], Mapping[str, Any]], AttemptRead],
) -> LogChunk:
    """Return the next lines of a replica: of the first attempt that has some.

    Args:
        attempts: in order.
        state: cursor of an earlier chunk; empty: from the first line on.
        read: reads on in one attempt, from a cursor of it.
    """
    lines: list[LogLine] = []
    for attempt in unread_attempts(attempts, state):
        if not attempt.has(state):
            if not attempt.has_log:
                if attempt.is_over:
                    continue  # refused before its program began; the next attempt may have a log
                break
            state = attempt.key
        found = read(attempt, state)
        state = {**attempt.key, **found.cursor} if found.cursor else attempt.key
        lines = found.lines
        if attempt.number:
            lines = [line._replace(attempt=attempt.number) for line in lines]
        if lines or not (attempt.is_over if found.goes_on is None else found.goes_on):
            break
    return LogChunk(lines, state or None)
