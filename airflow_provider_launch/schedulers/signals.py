"""Names of signals. Needs nothing but the standard library: the local supervisor uses it too."""

from __future__ import annotations

import signal

_BY_SIGNAL = range(129, 193)
"""Exit codes by which a shell, and what runs containers, report a signal."""


def signal_name(number: int) -> str:
    """Return `SIGKILL` and the like; a real-time signal, which has no name, by its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_in(exit_code: int | None) -> str | None:
    """Return the name of the signal that an exit code stands for; None: it stands for none."""
    return signal_name(exit_code - 128) if exit_code is not None and exit_code in _BY_SIGNAL else None
