"""Shared backoff for an unreachable scheduler: one reader probes it while the others wait."""

from __future__ import annotations

import random
import threading
import time
from typing import Any
from weakref import WeakKeyDictionary

from airflow_provider_launch.schedulers.api import Scheduler

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.2, 5.0
_PROBE_S = 2.0
"""Seconds until another reader may probe, because a probe may hang for one replica only."""


class HostGate:
    """Decides whether logs of one scheduler may be requested now. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._next_at = 0.0

    def wait_s(self) -> float:
        """Return seconds until the caller may ask again; 0: it may make a request now and must report its result."""
        with self._lock:
            now = time.monotonic()
            if not self._failures:
                return 0.0
            if now >= self._next_at:
                self._next_at = now + _PROBE_S
                return 0.0
            # Spread the readers; during a probe they ask again soon after it.
            return min(self._next_at - now, _MAX_PAUSE_S) + random.uniform(0.0, _FIRST_PAUSE_S)  # noqa: S311 - no secret

    def report(self, *, is_reached: bool) -> None:
        """Report how a request ended."""
        with self._lock:
            if is_reached:
                self._failures = 0
                return
            self._failures = min(self._failures + 1, 10)
            self._next_at = time.monotonic() + min(_FIRST_PAUSE_S * 2**self._failures, _MAX_PAUSE_S)


_gates: WeakKeyDictionary[Scheduler[Any], HostGate] = WeakKeyDictionary()
_lock = threading.Lock()


def gate_of(scheduler: Scheduler[Any]) -> HostGate:
    """Return the gate that all readers of this scheduler share."""
    with _lock:
        try:
            return _gates.setdefault(scheduler, HostGate())
        except TypeError:
            return HostGate()  # this plug-in's scheduler is not hashable
