"""Outside stops and restarts of containers, found in events and uptimes, without I/O."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cachetools import LRUCache

_DEADLY = {str(one.value): one.name for one in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM)}
"""Signals that ask a program to end; others, such as SIGHUP, have other meanings for many programs."""


@dataclass
class OutsideStop:
    """How a container was ended by another user or process."""

    by: str = ""
    """Name of the signal; empty if it ended by itself."""
    restarts: int = 0
    """Number of restarts before."""
    ended_at: int | None = None
    """Time of its latest end, in epoch seconds by the engine's clock; None if the engine has forgotten it."""
    signals: set[str] = field(default_factory=set)
    """Numbers of the other signals that were sent to it."""


def add_event(found: dict[str, OutsideStop], event: Mapping[str, Any]) -> str:
    """Add an event to `found`; return the id of the container if it has ended by itself, else an empty text.

    The end of a killed container is not certain yet, because a restart also starts with a kill.
    """
    # Newer engines have the id only there.
    actor = event.get("Actor") or {}
    container, action = str(actor.get("ID") or ""), event.get("Action")
    stop = found.setdefault(container, OutsideStop())
    if action == "kill":
        number = str((actor.get("Attributes") or {}).get("signal") or "")
        if number in _DEADLY:
            stop.by = _DEADLY[number]
        elif number:
            stop.signals.add(number)
    elif action == "die":
        at = event.get("time")
        stop.ended_at = at if isinstance(at, int) else None
    elif action == "restart":
        stop.by, stop.restarts = "", stop.restarts + 1
        stop.signals.clear()
    return container if action == "die" and not stop.by else ""


_SIGNAL = re.compile(r"(?:SIG)?(?P<name>[A-Z][A-Z0-9]*)(?:\+(?P<more>[0-9]{1,2}))?")


def signal_number(text: str) -> str:
    """Return the number of a signal as an image names it: `SIGUSR1`, `USR1`, `SIGRTMIN+3`, `10`; empty if unknown."""
    if text.isascii() and text.isdecimal():
        return text
    found = _SIGNAL.fullmatch(text.upper())
    number = getattr(signal, f"SIG{found['name']}", None) if found else None
    return "" if found is None or number is None else str(int(number) + int(found["more"] or 0))


_KEPT_CONTAINERS = 50_000
_UP = re.compile(r"Up (?:(?P<number>\d{1,9})|Less than a|About an?) (?P<unit>[a-z]+?)s?(?: \(|$)")
_SECONDS = {
    "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 2_592_000, "year": 31_536_000,
}  # fmt: skip


class Uptimes:
    """Compares the uptimes of two lists; may be used from several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: LRUCache[str, tuple[float, int, int]] = LRUCache(_KEPT_CONTAINERS)

    def restarts(self, row: Mapping[str, Any], at: float) -> int:
        """Return how many restarts of a container were seen: its uptime is shorter than before.

        `at` is the engine's time of the list in epoch seconds; other threads may pass older lists later.
        """
        up_s = _up_s(row.get("Status") or "")
        with self._lock:
            seen_at, before_s, restarts = self._seen.get(row["Id"], (0.0, up_s or 0, 0))
            if up_s is None or at <= seen_at:
                return restarts
            restarts += up_s < before_s
            self._seen[row["Id"]] = at, up_s, restarts
            return restarts


def _up_s(status: str) -> int | None:
    found = _UP.match(status)
    if found is None or found["unit"] not in _SECONDS:
        return None
    if found["unit"] == "second" and found["number"] is None:
        return 0
    return int(found["number"] or 1) * _SECONDS[found["unit"]]
