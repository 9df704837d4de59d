"""The states of an app and of its replicas."""

from __future__ import annotations

from enum import Enum


class AppState(int, Enum):
    """Where an app, or one replica of it, stands. SUCCEEDED, FAILED and CANCELLED are final."""

    UNSUBMITTED = 0
    """Described, not yet given to a scheduler."""
    SUBMITTED = 1
    """The scheduler has it, and has decided nothing yet."""
    PENDING = 2
    """Waits for resources; a preempted app comes back here from RUNNING."""
    RUNNING = 3
    """At least one replica runs, or is being started or stopped by the scheduler."""
    SUCCEEDED = 4
    """All of it ended well."""
    FAILED = 5
    """It ended with an error and was not cancelled."""
    CANCELLED = 6
    """It ended because somebody asked for that."""
    UNKNOWN = 7
    """The scheduler answered with a word that is new to us; it does not mean the end."""

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
    """Return whether the app runs or has run to an end."""
    return state is AppState.RUNNING or state in _TERMINAL
