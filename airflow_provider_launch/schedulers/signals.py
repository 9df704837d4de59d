"""Names of signals. Needs nothing but the standard library: the local supervisor uses it too."""

from __future__ import annotations

import signal

__all__ = ["signal_name"]


def signal_name(number: int) -> str:
    """Return `SIGKILL` and the like; a real-time signal, which has no name, by its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
