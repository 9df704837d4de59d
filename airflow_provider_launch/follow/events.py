"""Events that a follower reports to its consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_launch.util.untrusted import MOST_CHARS, one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider_launch.schedulers.api import DescribeAppResponse, JsonValue, LogLine
    from airflow_provider_launch.specs.errors import SchedulerRejectedError, SchedulerUnavailableError
    from airflow_provider_launch.specs.states import AppState


@dataclass(frozen=True)
class StateChanged:
    """The app has another state, or waits for another reason while PENDING."""

    old: AppState | None
    """None if this is the first state seen."""
    new: AppState
    response: DescribeAppResponse


@dataclass(frozen=True)
class Progress:
    """Nothing has changed for a while; sent so that the task log shows that the app is still followed."""

    response: DescribeAppResponse


@dataclass(frozen=True)
class LogLines:
    """Lines of one replica, in the order in which they were written."""

    role: str
    replica: int
    lines: list[LogLine]


@dataclass(frozen=True)
class Unfinished:
    """The incomplete last line of a replica, such as a progress bar; the whole line follows when it ends."""

    role: str
    replica: int
    line: LogLine


@dataclass(frozen=True)
class AttemptEnded:
    """An attempt of a replica ended and another followed; reported between the lines of the two."""

    role: str
    replica: int
    attempt: int
    """From 0."""
    ending: str
    """How it ended, such as `exit code 3`; empty if unknown."""


@dataclass(frozen=True)
class LogGap:
    """Log lines may be late or missing; the app itself is not affected."""

    role: str | None
    """None if the gap concerns several roles or replicas."""
    replica: int | None
    message: str


def gap_of_unknown_roles(wanted: Collection[str] | None, response: DescribeAppResponse) -> LogGap | None:
    """Return a gap that names the wanted roles which the app does not have; None if it has them all.

    Args:
        wanted: names of roles. None: all.
        response: names the roles, if the scheduler knows them.
    """
    known = {role.name: None for role in response.roles} | {status.role: None for status in response.roles_statuses}
    unknown = sorted(set(wanted or ()) - known.keys())
    if not unknown or not known:
        return None
    names = ", ".join(map(repr, unknown))
    # A plug-in may report names that a program has written.
    there = one_line(", ".join(map(repr, known)), MOST_CHARS)
    return LogGap(None, None, f"log_roles names {names}; the roles of the app are {there}")


@dataclass(frozen=True)
class Unreachable:
    """The scheduler does not answer or refuses access; reported once, while the follower keeps polling."""

    since_s: float
    """Seconds since it started."""
    error: SchedulerUnavailableError | SchedulerRejectedError


@dataclass(frozen=True)
class Reached:
    """The scheduler answers again."""

    after_s: float
    """Length of the outage in seconds."""


@dataclass(frozen=True)
class Tick:
    """Nothing happened; sent regularly so that the consumer can check its own flags."""


@dataclass(frozen=True)
class Ended:
    """The app has ended and its readable log was reported; this is the last event."""

    response: DescribeAppResponse
    cursors: Mapping[str, JsonValue]


Event = StateChanged | Progress | LogLines | Unfinished | AttemptEnded | LogGap | Unreachable | Reached | Tick | Ended
