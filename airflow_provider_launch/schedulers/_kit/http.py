"""Errors and texts of engines that are reached by HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_launch.specs.errors import LaunchError, SchedulerUnavailableError
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
