"""What a follower shows its consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider_launch.schedulers.api import DescribeAppResponse, JsonValue, LogLine
    from airflow_provider_launch.specs.errors import SchedulerRejectedError, SchedulerUnavailableError
    from airflow_provider_launch.specs.states import AppState


@dataclass(frozen=True)
class StateChanged:
    """The app has another state; while it is PENDING, also: another message states why."""

    old: AppState | None
    """None: this is the first thing known of the app."""
    new: AppState
    response: DescribeAppResponse


@dataclass(frozen=True)
class Progress:
    """Nothing has changed for a while."""

    response: DescribeAppResponse


@dataclass(frozen=True)
class LogLines:
    """Lines of one replica, in the order in which they were written."""

    role: str
    replica: int
    lines: list[LogLine]


@dataclass(frozen=True)
class Unfinished:
    """What a replica has written after its last whole line, as a progress bar; the line itself comes when it ends."""

    role: str
    replica: int
    line: LogLine


@dataclass(frozen=True)
class AttemptEnded:
    """An attempt of a replica has ended, and another one followed; comes between the lines of the two."""

    role: str
    replica: int
    attempt: int
    """From 0."""
    ending: str
    """How it ended, as `exit code 3`; empty: not known."""


@dataclass(frozen=True)
class LogGap:
    """Lines may be late or missing, and why; the app itself is not concerned."""

    role: str | None
    """None: more than one role or replica is meant."""
    replica: int | None
    message: str


def gap_of_unknown_roles(wanted: Collection[str] | None, response: DescribeAppResponse) -> LogGap | None:
    """Return that roles whose lines are wanted are none of the app, which otherwise shows as silence; None: all are.

    Args:
        wanted: names of roles. None: all.
        response: names the roles, if the scheduler knows them.
    """
    known = {role.name: None for role in response.roles} | {status.role: None for status in response.roles_statuses}
    unknown = sorted(set(wanted or ()) - known.keys())
    if not unknown or not known:
        return None
    names = ", ".join(map(repr, unknown))
    return LogGap(None, None, f"log_roles names {names}; the roles of the app are {', '.join(map(repr, known))}")


@dataclass(frozen=True)
class Unreachable:
    """The scheduler does not answer, or refuses us; reported once, then the follower keeps asking."""

    since_s: float
    """Seconds for which it has been so."""
    error: SchedulerUnavailableError | SchedulerRejectedError


@dataclass(frozen=True)
class Reached:
    """The scheduler answers again."""

    after_s: float
    """Seconds that the outage took."""


@dataclass(frozen=True)
class Tick:
    """Nothing happened; comes so often that the consumer can check its own flags."""


@dataclass(frozen=True)
class Ended:
    """The app has ended, and its log was reported as far as it could be read; nothing follows."""

    response: DescribeAppResponse
    cursors: Mapping[str, JsonValue]


Event = StateChanged | Progress | LogLines | Unfinished | AttemptEnded | LogGap | Unreachable | Reached | Tick | Ended
