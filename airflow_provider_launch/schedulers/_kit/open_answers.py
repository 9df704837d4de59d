"""Cache of open HTTP responses, so that the next read of a long log continues and need not start over."""

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
    """Up to `max_number` open responses by source and cursor; the oldest is closed first."""

    def __init__(self, max_number: int = 16) -> None:
        self._max_number = max_number
        # Not cachetools, because a dropped response must be closed outside of the lock.
        self._answers: OrderedDict[tuple[str, str], A] = OrderedDict()
        self._mutex = threading.Lock()

    def take(self, source: str, cursor: Mapping[str, Any]) -> A | None:
        """Remove and return the response that continues at this cursor."""
        with self._mutex:
            return self._answers.pop((source, json.dumps(cursor)), None)

    def keep(self, source: str, cursor: Mapping[str, Any], answer: A) -> None:
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
