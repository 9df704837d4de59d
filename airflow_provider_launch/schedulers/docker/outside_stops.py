"""What somebody else did to a container, as the events of the engine show it: pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_DEADLY = {str(one.value): one.name for one in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM)}
"""Signals that ask a program to end; others, as SIGHUP, mean something else to many programs."""


@dataclass
class OutsideStop:
    """How a container was ended that nobody here has ended."""

    by: str = ""
    """Name of the signal. Empty: it has ended by itself."""
    restarts: int = 0
    """How often it was restarted before."""
    ended_at: int | None = None
    """When it ended last, in epoch seconds by the engine's clock. None: the engine does not remember it."""


def learn(found: dict[str, OutsideStop], event: Mapping[str, Any]) -> str:
    """Add what an event shows; return the id of the container if it has ended by itself, else nothing.

    Of one that was killed it is not certain yet: a restart begins with a kill, too.
    """
    # Newer engines name it only there.
    actor = event.get("Actor") or {}
    container, action = str(actor.get("ID") or ""), event.get("Action")
    stop = found.setdefault(container, OutsideStop())
    if action == "kill":
        number = str((actor.get("Attributes") or {}).get("signal") or "")
        if number in _DEADLY:
            stop.by = _DEADLY[number]
    elif action == "die":
        at = event.get("time")
        stop.ended_at = at if isinstance(at, int) else None
    elif action == "restart":
        stop.by, stop.restarts = "", stop.restarts + 1
    return container if action == "die" and not stop.by else ""
