"""Errors, messages and retries of requests to engines with an HTTP API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from airflow_provider_launch.specs.errors import LaunchError, SchedulerUnavailableError
from airflow_provider_launch.util.backoff import backoff
from airflow_provider_launch.util.untrusted import parse_json

_TEXT, _MAX_ANSWER = 1000, 1024 * 1024
_LATEST = 100_000_000_000
"""Epoch seconds beyond which a date cannot be shown."""


class NotFoundError(LaunchError):
    """The engine has no such object."""


class TakenError(LaunchError):
    """The name belongs to another object, whose `labels` are there if they were read."""

    def __init__(self, text: str, labels: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.labels = labels or {}


def server_message(data: bytes) -> str:
    """Return the `message` of a JSON response, or the response itself if it has none; one line."""
    try:
        text = parse_json(data, _MAX_ANSWER)["message"]
    except (ValueError, KeyError, TypeError, IndexError):
        text = data.decode("utf-8", "replace")
    return " ".join(str(text).split())[:_TEXT]


def epoch_of(date: str) -> float:
    """Return the epoch seconds of the header `Date`; a ValueError means that another server has answered."""
    try:
        found = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        raise ValueError(f"its header Date is {date[:40]!r}") from error
    if not 0 <= found <= _LATEST:
        raise ValueError(f"its header Date is {date[:40]!r}")
    return found


def unreachable(engine: str, cause: str) -> SchedulerUnavailableError:
    """Return the error for an engine that does not answer, such as `the Docker engine at tcp://host:2375`."""
    return SchedulerUnavailableError(
        f"{engine} does not answer: {cause}; check that it is running and that this host may use it"
    )


class BusyRetry:
    """Exponential backoff for one request to a busy server."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._started = time.monotonic()
        self._pauses = backoff(first_s, longest_s)

    def pause(self, limit_s: float, wanted_s: float | None = None) -> bool:
        """Wait until the request may be repeated; return False at once if that would exceed the limit.

        `limit_s` is for the request and all its repeats; `wanted_s` is the pause that the server asks for, if it does.
        """
        pause_s = next(self._pauses) if wanted_s is None else wanted_s
        if not time.monotonic() + pause_s <= self._started + limit_s:  # also False for NaN
            return False
        time.sleep(pause_s)
        return True
