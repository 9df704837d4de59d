"""Decides the next step of an app after failures, for every backend that counts attempts itself; the reconcile loop.

Pure, and imports only the standard library, because the local supervisor uses it too.
`dataclasses` is not imported, because it takes as long as the start of the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple, TypeVar


class Phase(str, Enum):
    """The progress of the latest attempt of a replica."""

    WAITING = "waiting"
    """Not started yet."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """Ended by itself with an error, or was lost."""
    STOPPED = "stopped"
    """Stopped by the launcher: because another replica failed, or by a cancel or a limit."""


class RetryAction(str, Enum):
    """The next action for an app."""

    CONTINUE = "continue"
    """Start the attempts of `Decision.start`, then wait for a change."""
    RESTART_APP = "restart app"
    """Stop the running replicas; when all have ended, start the next attempt of the app."""
    FAIL = "fail"
    """Stop the running replicas; when all have ended, the app is FAILED."""
    SUCCEED = "succeed"
    """All replicas succeeded, except those of services: stop these; when they have ended, the app is SUCCEEDED."""


class RolePolicy(NamedTuple):
    """The retries of a role: `policy` is the value of a `RetryPolicy`, and attempts = max_retries + 1."""

    policy: str
    max_retries: int
    is_service: bool = False
    """Whether the role only serves the others: the app does not wait for it, and then its end does not matter."""


class ReplicaAttempt(NamedTuple):
    """The latest attempt of one replica within the current attempt of the app."""

    role: str
    replica: int
    attempt: int
    """From 0, counted again in each attempt of the app."""
    phase: Phase
    ended_at: float = 0.0
    """Used to order failures: the first one is the cause."""


class Decision(NamedTuple):
    """The next step and, for a failure, its cause."""

    next: RetryAction
    start: tuple[tuple[str, int, int], ...] = ()
    """(role, replica, attempt) of each attempt to start."""
    cause: ReplicaAttempt | None = None


def decide(policies: Mapping[str, RolePolicy], app_attempt: int, replicas: Iterable[ReplicaAttempt]) -> Decision:
    """Return the next step of an app, from its current state only.

    Once all replicas that are not services have succeeded, nothing else matters. A failure without a retry left ends
    the app, even if other roles have retries left. Otherwise an APPLICATION retry has priority over REPLICA retries,
    because it restarts those replicas too. `replicas` are the latest attempts of all replicas.
    """
    now = list(replicas)
    waited_for = [r for r in now if not policies[r.role].is_service]
    if waited_for and all(r.phase is Phase.SUCCEEDED for r in waited_for):
        return Decision(RetryAction.SUCCEED)
    failed = sorted((r for r in now if r.phase is Phase.FAILED), key=lambda r: (r.ended_at, r.role, r.replica))
    exhausted = [r for r in failed if not _retries_left(policies[r.role], app_attempt, r.attempt)]
    if exhausted:
        return Decision(RetryAction.FAIL, cause=exhausted[0])
    of_app = [r for r in failed if policies[r.role].policy == "APPLICATION"]
    if of_app:
        return Decision(RetryAction.RESTART_APP, cause=of_app[0])
    again = [(r.role, r.replica, r.attempt + 1) for r in failed]
    waiting = [(r.role, r.replica, r.attempt) for r in now if r.phase is Phase.WAITING]
    return Decision(RetryAction.CONTINUE, start=tuple(waiting + again), cause=failed[0] if failed else None)


def _retries_left(policy: RolePolicy, app_attempt: int, attempt: int) -> bool:
    used = app_attempt if policy.policy == "APPLICATION" else attempt
    return used < policy.max_retries


T = TypeVar("T")


def reconcile(read: Callable[[], T | None], act: Callable[[T], bool], *, rounds: int) -> T | None:
    """Return the app as it was read last; None if it no longer exists.

    `read` also decides the next step, independent of earlier rounds. `act` does it, and returns False if there is
    nothing to do now, or another process must do it. After `rounds` steps the rest is left to the next poll.
    """
    found: T | None = None
    for _ in range(rounds):
        found = read()
        if found is None or not act(found):
            break
    return found
