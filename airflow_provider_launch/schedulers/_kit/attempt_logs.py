"""The log of a replica: the logs of all its attempts, one after the other, with one cursor.

The cursor is the cursor within one attempt plus the `key` of that attempt; `"done"` means that its log is complete.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from airflow_provider_launch.schedulers.logs import LogChunk, LogLine

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Attempt(Generic[A]):
    """One attempt of a replica."""

    source: A
    """The container or pod that ran it."""
    key: dict[str, Any]
    """The part of a cursor that identifies the attempt: `"at"`, a list by which attempts are ordered, and other
    fields."""
    number: int
    """The number shown to users, from 0."""
    has_log: bool
    """Whether the program was started."""
    is_over: bool
    """Whether the program has ended, or will never start."""

    def has(self, state: Mapping[str, Any]) -> bool:
        """Return whether a cursor belongs to this attempt."""
        return all(state.get(name) == value for name, value in self.key.items())


@dataclass(slots=True)
class AttemptRead:
    """The result of a read of one attempt."""

    lines: list[LogLine]
    cursor: Mapping[str, Any]
    """Position for the next read of this attempt; empty at its first line."""
    continues: bool | None = None
    """Whether to continue with the next attempt if there are no lines; None means only if this one has ended."""


def unread_attempts(attempts: Iterable[Attempt[A]], state: Mapping[str, Any]) -> Iterator[Attempt[A]]:
    """Yield the attempt of a cursor, unless it was read to its end, and all later attempts."""
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
    """Return the next lines of a replica from the first of its attempts that has any; `state` is a cursor, or empty."""
    lines: list[LogLine] = []
    for attempt in unread_attempts(attempts, state):
        if not attempt.has(state):
            if not attempt.has_log:
                if attempt.is_over:
                    continue  # its program was never started; the next attempt may have a log
                break
            state = attempt.key
        found = read(attempt, state)
        state = {**attempt.key, **found.cursor} if found.cursor else attempt.key
        lines = found.lines
        if attempt.number:
            lines = [line._replace(attempt=attempt.number) for line in lines]
        if lines or not (attempt.is_over if found.continues is None else found.continues):
            break
    return LogChunk(lines, state or None)


class _Response(Protocol):
    def close(self) -> None: ...


class _Answer(Protocol):
    @property
    def response(self) -> _Response: ...


AnswerT = TypeVar("AnswerT", bound=_Answer)


class OpenAnswers(Generic[AnswerT]):
    """Up to `max_number` open responses by source and cursor, with which the next reads of long logs continue."""

    def __init__(self, max_number: int = 16) -> None:
        self._max_number = max_number
        # Not cachetools, because a dropped response must be closed outside of the lock.
        self._answers: OrderedDict[tuple[str, str], AnswerT] = OrderedDict()
        self._mutex = threading.Lock()

    def take(self, source: str, cursor: Mapping[str, Any]) -> AnswerT | None:
        """Remove and return the response that continues at this cursor."""
        with self._mutex:
            return self._answers.pop((source, json.dumps(cursor)), None)

    def keep(self, source: str, cursor: Mapping[str, Any], answer: AnswerT) -> None:
        """Keep a response for the read that starts at this cursor."""
        key = (source, json.dumps(cursor))
        with self._mutex:
            # If two readers have the same cursor, only the later response is kept.
            dropped = [self._answers.pop(key)] if key in self._answers else []
            self._answers[key] = answer
            if len(self._answers) > self._max_number:
                dropped.append(self._answers.popitem(last=False)[1])
        for old in dropped:
            old.response.close()

    def close(self) -> None:
        """Close all responses."""
        with self._mutex:
            answers = list(self._answers.values())
            self._answers.clear()
        for answer in answers:
            answer.response.close()
