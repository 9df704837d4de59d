"""How the end of a replica is worded, the same on every backend: pure.

Needs nothing but the standard library: the local supervisor uses it too.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_launch.schedulers.signals import signal_in

__all__ = ["ReplicaEnd", "ending_reason", "ending_text", "failure_message"]


@dataclass(frozen=True)
class ReplicaEnd:
    """What an engine knows of the end of one attempt of a replica."""

    exit_code: int | None = None
    signal: str | None = None
    """Name of the signal that ended it, where the engine keeps signals apart. None: the exit code shows it."""
    out_of_memory: bool = False
    start_error: str = ""
    """Why it could not be started."""
    preempted: str = ""
    """Why the engine took it away."""
    note: str = ""
    """What else the engine reports of this end."""

    @property
    def signal_name(self) -> str | None:
        """The signal that ended it; None: it ended by itself."""
        return self.signal or signal_in(self.exit_code)


def ending_text(end: ReplicaEnd) -> str:
    """Return how it ended as it stands behind `failed: ` in the message of an app."""
    if end.start_error:
        return f"it could not be started: {end.start_error}"
    if end.preempted:
        return f"preempted ({end.preempted})"
    if end.out_of_memory:
        return f"out of memory (exit code {end.exit_code})"
    if end.exit_code is None:
        return end.note or "no reason is known"
    text = f"ended by {end.signal_name}" if end.signal_name else f"exit code {end.exit_code}"
    return f"{text}; {end.note}" if end.note else text


def ending_reason(end: ReplicaEnd, otherwise: str | None = None) -> str | None:
    """Return the `reason` of a replica, beside its exit code; None: the code is all there is.

    Args:
        end: how it ended.
        otherwise: the reason where no signal ended it.
    """
    if end.start_error:
        return end.start_error
    if end.preempted:
        return f"preempted ({end.preempted})"
    if end.out_of_memory:
        return "out of memory"
    return "; ".join(filter(None, [end.signal_name or otherwise, end.note])) or None


def failure_message(role: str, replica: int, text: str, attempt: int) -> str:
    """Return the message of an app that failed because of this replica.

    Args:
        role: its role.
        replica: its number.
        text: of `ending_text`.
        attempt: how many attempts came before; named where there were some.
    """
    message = f"{role}/{replica} failed: {text}"
    return f"{message} (attempt {attempt})" if attempt else message
