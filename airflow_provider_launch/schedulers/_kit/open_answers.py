"""Answers of an engine that stay open between two reads, so that a long log is read once."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar


class _Response(Protocol):
    def close(self) -> None: ...


class _Answer(Protocol):
    @property
    def response(self) -> _Response: ...


A = TypeVar("A", bound=_Answer)


class OpenAnswers(Generic[A]):
    """At most `max_number` answers, by source and the cursor at which they go on; the oldest is closed first."""

    def __init__(self, max_number: int = 16) -> None:
        self._max_number = max_number
        # Not cachetools: what it drops must be closed, outside of the lock.
        self._answers: OrderedDict[tuple[str, str], A] = OrderedDict()
        self._mutex = threading.Lock()

    def take(self, source: str, cursor: Mapping[str, Any]) -> A | None:
        """Remove and return the answer that goes on at this place."""
        with self._mutex:
            return self._answers.pop((source, json.dumps(cursor)), None)

    def keep(self, source: str, cursor: Mapping[str, Any], answer: A) -> None:
        """Keep an answer for the read that begins at this place."""
        key = (source, json.dumps(cursor))
        with self._mutex:
            # Of two readers at one place the later answer serves both.
            dropped = [self._answers.pop(key)] if key in self._answers else []
            self._answers[key] = answer
            if len(self._answers) > self._max_number:
                dropped.append(self._answers.popitem(last=False)[1])
        for old in dropped:
            old.response.close()

    def close(self) -> None:
        """Close all answers."""
        with self._mutex:
            answers = list(self._answers.values())
            self._answers.clear()
        for answer in answers:
            answer.response.close()
