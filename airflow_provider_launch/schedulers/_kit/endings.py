"""Messages about the end of a replica, the same on every backend, without I/O.

Imports only the standard library, because the local supervisor uses it too; `dataclasses` would double its start.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from airflow_provider_launch.util.untrusted import one_line

_BY_SIGNAL = range(129, 193)
"""Exit codes with which shells and container runtimes report a signal."""


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`; a real-time signal has no name and is shown by its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_in(exit_code: int | None) -> str | None:
    """Return the name of the signal that an exit code stands for; None if it does not stand for a signal."""
    return signal_name(exit_code - 128) if exit_code is not None and exit_code in _BY_SIGNAL else None


_INCIDENTS = 3


class ReplicaEnd(NamedTuple):
    """The end of one attempt of a replica, as the engine reports it."""

    exit_code: int | None = None
    signal: str | None = None
    """Name of the signal that ended it, where the engine reports signals separately; otherwise None."""
    out_of_memory: bool = False
    outside: str = ""
    """The cause of an outside stop that the exit code alone does not show."""
    start_error: str = ""
    """Why it could not be started."""
    preempted: str = ""
    """Why the engine preempted it."""
    other_failure: str = ""
    """The failure of another container of the replica: `init container 'fetch' exit code 3`."""
    last_lines: str = ""
    """The last output of that container, on one line."""
    note: str = ""
    """Further details from the engine."""

    @property
    def signal_name(self) -> str | None:
        """The signal that ended it; None if it ended by itself."""
        return self.signal or signal_in(self.exit_code)


def ending_text(end: ReplicaEnd) -> str:
    """Return how it ended, as the text after `failed: ` in the message of an app: one line of limited length."""
    return one_line(_ending_text(end))


def _ending_text(end: ReplicaEnd) -> str:
    if end.other_failure:
        return f"{end.other_failure}; its last lines: {end.last_lines}" if end.last_lines else end.other_failure
    code = "" if end.exit_code is None else f", exit code {end.exit_code}"
    causes = (
        (end.start_error, f"it could not be started: {end.start_error}"),
        (end.preempted, f"preempted ({end.preempted})"),
        (end.out_of_memory, f"out of memory (exit code {end.exit_code})"),
        (end.outside, f"stopped from outside ({end.outside}) before its program was done{code}"),
        (end.exit_code is None, end.note or "no reason is known"),
    )
    for applies, text in causes:
        if applies:
            return text
    text = f"ended by {end.signal_name}" if end.signal_name else f"exit code {end.exit_code}"
    return f"{text}; {end.note}" if end.note else text


def ending_reason(end: ReplicaEnd, otherwise: str | None = None) -> str | None:
    """Return the `reason` of a replica in addition to its exit code; `otherwise` if no signal ended it."""
    preempted = f"preempted ({end.preempted})" if end.preempted else ""
    outside = f"stopped from outside ({end.outside})" if end.outside else ""
    memory = "out of memory" if end.out_of_memory else ""
    if cause := end.start_error or end.other_failure or preempted or memory or outside:
        return cause
    return "; ".join(filter(None, [end.signal_name or otherwise, end.note])) or None


def incidents_text(texts: Sequence[str]) -> str:
    """Return the message of a running app about incidents of its replicas: the first ones and the number of others."""
    shown = "; ".join(texts[:_INCIDENTS])
    return f"{shown}; and {len(texts) - _INCIDENTS} more" if len(texts) > _INCIDENTS else shown


def services_message(succeeded: Mapping[str, int], services: Iterable[str], *, is_over: bool = False) -> str:
    """Return the message of an app whose services are stopped, because all replicas of other roles have succeeded."""
    done = ", ".join(f"{role}: {count} of {count} succeeded" for role, count in succeeded.items())
    return f"{done}; {'stopped' if is_over else 'stopping'} {', '.join(services)}"


def failure_message(role: str, replica: int, text: str, attempt: int) -> str:
    """Return the message of an app that failed because of this replica; `attempt` is shown if it is not 0."""
    message = f"{role}/{replica} failed: {text}"
    return f"{message} (attempt {attempt})" if attempt else message
