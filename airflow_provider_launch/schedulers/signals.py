"""Names of signals. Imports only the standard library, because the local supervisor uses it too."""

from __future__ import annotations

import signal

_BY_SIGNAL = range(129, 193)
"""Exit codes with which shells and container runtimes report a signal."""


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`; a real-time signal has no name and is shown by its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_in(exit_code: int | None) -> str | None:
    """Return the name of the signal that an exit code stands for; None: it stands for no signal."""
    return signal_name(exit_code - 128) if exit_code is not None and exit_code in _BY_SIGNAL else None
