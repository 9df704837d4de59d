"""The replicas of an app, and whether each has a log to read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_launch.specs.roles import MAX_REPLICAS, MAX_ROLE_NAME
from airflow_provider_launch.specs.states import AppState, is_terminal

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import DescribeAppResponse
    from airflow_provider_launch.specs.roles import Role


class Phase(Enum):
    """Phase of a replica, as far as its log is concerned."""

    WAITING = "waiting"
    """It has not started, so there is nothing to read."""
    RUNNING = "running"
    ENDED = "ended"
    """Its newest attempt has ended, or the next one has not started: no lines are added."""


class Standing(NamedTuple):
    """Phase of a replica, and its attempt."""

    phase: Phase
    attempt: int = 0


def waiting(roles: Sequence[Role], shown: Collection[str] | None) -> dict[tuple[str, int], Standing]:
    """Return the replicas of these roles as waiting, before their states are known; `shown` limits the roles.

    No more than an app can have, and no longer names, because a plug-in may report what a program has written into its
    record.
    """
    keys = ((role.name, k) for role in roles if _is_shown(role.name, shown) for k in range(role.num_replicas))
    return dict.fromkeys(islice(keys, MAX_REPLICAS), Standing(Phase.WAITING))


def standings_of(
    response: DescribeAppResponse, shown: Collection[str] | None, roles: Sequence[Role] = ()
) -> dict[tuple[str, int], Standing]:
    """Return the phase and attempt of each replica of an app.

    Args:
        response: the answer of the scheduler.
        shown: names of roles. None: all.
        roles: roles of the app, for plug-ins that do not report them.
    """
    found = waiting(response.roles or roles, shown)
    with_replicas = {status.role for status in response.roles_statuses if status.replicas}
    for key in found:
        if is_terminal(response.state):
            found[key] = Standing(Phase.ENDED)
        elif key[0] not in with_replicas and response.state in {AppState.RUNNING, AppState.UNKNOWN}:
            # A plug-in need not report the states of replicas.
            found[key] = Standing(Phase.RUNNING)
    for status in response.roles_statuses:
        if _is_shown(status.role, shown):
            for replica in status.replicas:
                attempt = replica.num_restarts or 0
                phase = _phase(replica.state, attempt, response.state)
                if phase is Phase.WAITING and (status.role, replica.id) in response.early_logs:
                    phase = Phase.RUNNING
                found[status.role, replica.id] = Standing(phase, attempt)
    return found


def _is_shown(role: str, shown: Collection[str] | None) -> bool:
    return (shown is None or role in shown) and len(role) <= MAX_ROLE_NAME


def _phase(state: AppState, attempt: int, of_app: AppState) -> Phase:
    if is_terminal(state) or is_terminal(of_app):
        return Phase.ENDED
    if state in {AppState.RUNNING, AppState.UNKNOWN}:
        return Phase.RUNNING
    return Phase.ENDED if attempt else Phase.WAITING
