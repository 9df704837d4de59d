"""Errors, texts and repeats of requests to engines that are reached by HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping

from airflow_provider_launch.specs.errors import LaunchError, SchedulerUnavailableError
from airflow_provider_launch.util.backoff import backoff
from airflow_provider_launch.util.untrusted import parse_json

_TEXT, _MAX_ANSWER = 1000, 1024 * 1024


class NotFoundError(LaunchError):
    """The engine has no such object."""


class TakenError(LaunchError):
    """The name belongs to another object.

    Args:
        text: what the engine answered.
        labels: of the other object, where they were read.
    """

    def __init__(self, text: str, labels: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.labels = labels or {}


def server_message(data: bytes) -> str:
    """Return the `message` of a JSON answer, or the answer itself where it has none; one line."""
    try:
        text = parse_json(data, _MAX_ANSWER)["message"]
    except (ValueError, KeyError, TypeError, IndexError):
        text = data.decode("utf-8", "replace")
    return " ".join(str(text).split())[:_TEXT]


def unreachable(engine: str, cause: str) -> SchedulerUnavailableError:
    """Return the error for an engine that does not answer.

    Args:
        engine: its kind and address: `the Docker engine at tcp://host:2375`.
        cause: what the transport reported.
    """
    return SchedulerUnavailableError(
        f"{engine} does not answer: {cause}; check that it is running and that this host may use it"
    )


class BusyRetry:
    """The pauses of one request, each twice as long as the one before.

    Args:
        first_s: the first pause.
        longest_s: the longest one.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._began = time.monotonic()
        self._pauses = backoff(first_s, longest_s)

    def pause(self, limit_s: float, wanted_s: float | None = None) -> bool:
        """Wait until the request may be repeated; False, at once: that would be too late.

        Args:
            limit_s: how long the request is repeated, from its beginning.
            wanted_s: the pause that the server asks for. None: it does not.
        """
        pause_s = next(self._pauses) if wanted_s is None else wanted_s
        if time.monotonic() + pause_s > self._began + limit_s:
            return False
        time.sleep(pause_s)
        return True
