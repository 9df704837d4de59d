"""What to do next with an app: one rule for every backend that counts attempts itself.

Pure, and needs nothing but the standard library: it also runs in the bare interpreter of the local supervisor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Phase(str, Enum):
    """Where the latest attempt of a replica stands."""

    WAITING = "waiting"
    """Not started yet."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """Ended by itself with an error, or was lost."""
    STOPPED = "stopped"
    """Ended by us: because of a sibling, a cancel, a limit."""


class RetryAction(str, Enum):
    """What the app needs now."""

    GO_ON = "go on"
    """Start what `Decision.start` names, then wait for a change."""
    RESTART_APP = "restart app"
    """Stop what still runs; when all has ended start the next attempt of the app."""
    FAIL = "fail"
    """Stop what still runs; when all has ended the app is FAILED."""
    SUCCEED = "succeed"
    """All replicas succeeded."""


@dataclass(frozen=True)
class RolePolicy:
    """`policy` is the value of a `RetryPolicy`; `max_retries` counts retries, so attempts = max_retries + 1."""

    policy: str
    max_retries: int


@dataclass(frozen=True)
class ReplicaAttempt:
    """The latest attempt of one replica within the current attempt of the app."""

    role: str
    replica: int
    attempt: int
    """From 0, counted anew in each attempt of the app."""
    phase: Phase
    ended_at: float = 0.0
    """Orders failures: the first one is the cause."""


@dataclass(frozen=True)
class Decision:
    """The next step and, for a failure, its cause."""

    next: RetryAction
    start: tuple[tuple[str, int, int], ...] = field(default=())
    """(role, replica, attempt) of each attempt to start."""
    cause: ReplicaAttempt | None = None


def decide(policies: Mapping[str, RolePolicy], app_attempt: int, replicas: Iterable[ReplicaAttempt]) -> Decision:
    """Return the next step of an app from nothing but what is true now.

    A failure without a retry left ends the app, whatever the other roles would still be allowed: one failed role fails
    the gang. Otherwise an APPLICATION retry goes before REPLICA retries, since it restarts those replicas too.

    Args:
        policies: role name to policy.
        app_attempt: the current attempt of the app, from 0.
        replicas: the latest attempt of every replica of every role.
    """
    now = list(replicas)
    failed = sorted((r for r in now if r.phase is Phase.FAILED), key=lambda r: (r.ended_at, r.role, r.replica))
    exhausted = [r for r in failed if not _retries_left(policies[r.role], app_attempt, r.attempt)]
    if exhausted:
        return Decision(RetryAction.FAIL, cause=exhausted[0])
    of_app = [r for r in failed if policies[r.role].policy == "APPLICATION"]
    if of_app:
        return Decision(RetryAction.RESTART_APP, cause=of_app[0])
    if now and all(r.phase is Phase.SUCCEEDED for r in now):
        return Decision(RetryAction.SUCCEED)
    again = [(r.role, r.replica, r.attempt + 1) for r in failed]
    waiting = [(r.role, r.replica, r.attempt) for r in now if r.phase is Phase.WAITING]
    return Decision(RetryAction.GO_ON, start=tuple(waiting + again), cause=failed[0] if failed else None)


def _retries_left(policy: RolePolicy, app_attempt: int, attempt: int) -> bool:
    used = app_attempt if policy.policy == "APPLICATION" else attempt
    return used < policy.max_retries
