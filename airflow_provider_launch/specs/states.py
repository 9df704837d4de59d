"""The states of an app and of its replicas."""

from __future__ import annotations

from enum import Enum


class AppState(int, Enum):
    """The state of an app or of one replica. SUCCEEDED, FAILED and CANCELLED are final."""

    UNSUBMITTED = 0
    """Described, but not yet given to a scheduler."""
    SUBMITTED = 1
    """Accepted by the scheduler, which has not decided anything yet."""
    PENDING = 2
    """Waiting for resources; a preempted app returns to this state from RUNNING."""
    RUNNING = 3
    """At least one replica runs, or the scheduler is starting or stopping it."""
    SUCCEEDED = 4
    """All replicas ended successfully."""
    FAILED = 5
    """It ended with an error and was not cancelled."""
    CANCELLED = 6
    """It ended because a user or the task cancelled it."""
    UNKNOWN = 7
    """Its end cannot be known, because the engine lost it, or the scheduler answered with a state that this package
    does not know. The app has not necessarily ended."""

    @property
    def mask(self) -> int:
        """Return the bit of this state, for filters that take several states."""
        return 1 << self.value

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{self.name} ({self.value})"


ReplicaState = AppState

_TERMINAL = frozenset({AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED})


def is_terminal(state: AppState) -> bool:
    """Return whether the state is final: it never changes again."""
    return state in _TERMINAL


def is_started(state: AppState) -> bool:
    """Return whether the app runs, or has run and ended."""
    return state is AppState.RUNNING or state in _TERMINAL
