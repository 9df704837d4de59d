"""Shared backoff for an unreachable scheduler: a few readers probe it while the others wait.

An error of a log may concern only its app, because a program or a damaged file can cause any error. So each app has its
own pause, and the apps without an error wait only if no log of the scheduler could be read for a while.
"""

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
_PROVEN_S = 10.0
"""For this many seconds after a successful read the scheduler counts as reachable, so that errors are those of apps."""
_FIRST_PROBES_S = 2.0
"""Seconds between the reads of apps without an error during an outage."""


class HostGate:
    """State that all apps of one scheduler share; guarded by `lock`. Times are of the monotonic clock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_down = False
        self.reached_at = float("-inf")
        self.recoveries = 0
        self.next_probe_at = self.next_first_at = 0.0

    def of_app(self) -> AppGate:
        """Return the gate of one app."""
        return AppGate(self)


class AppGate:
    """Decides whether the logs of one app may be requested now. Thread-safe.

    Args:
        host: the part that all apps of the scheduler share.
    """

    __slots__ = ("_failures", "_host", "_next_at", "_recoveries")

    def __init__(self, host: HostGate) -> None:
        self._host = host
        self._failures = 0
        self._next_at = 0.0
        self._recoveries = host.recoveries

    def wait_s(self) -> float:
        """Return seconds until the caller may ask again; 0: it may make a request now and must report its result."""
        host = self._host
        with host.lock:
            now = time.monotonic()
            if self._recoveries != host.recoveries:
                self._recoveries, self._failures = host.recoveries, 0
            if not self._failures:
                next_at = host.next_first_at if host.is_down else now
            else:
                next_at = max(self._next_at, host.next_probe_at)
            if now < next_at:
                # Spread the readers; during a probe they ask again soon after it.
                return min(next_at - now, _MAX_PAUSE_S) + random.uniform(0.0, _FIRST_PAUSE_S)  # noqa: S311 - no secret
            if self._failures:
                self._next_at = host.next_probe_at = now + _PROBE_S
            elif host.is_down:
                host.next_first_at = now + _FIRST_PROBES_S
            return 0.0

    def report(self, *, is_reached: bool) -> None:
        """Report how a request ended."""
        host = self._host
        with host.lock:
            now = time.monotonic()
            if self._failures:
                host.next_probe_at = now
            if is_reached:
                self._failures = 0
                host.reached_at = now
                if host.is_down:
                    host.is_down = False
                    host.recoveries += 1  # all apps ask again
                return
            self._failures = min(self._failures + 1, 10)
            self._next_at = now + min(_FIRST_PAUSE_S * 2**self._failures, _MAX_PAUSE_S)
            host.is_down = now - host.reached_at > _PROVEN_S


_gates: WeakKeyDictionary[Scheduler[Any], HostGate] = WeakKeyDictionary()
_lock = threading.Lock()


def gate_of(scheduler: Scheduler[Any]) -> HostGate:
    """Return the gate that all readers of this scheduler share."""
    with _lock:
        try:
            return _gates.setdefault(scheduler, HostGate())
        except TypeError:
            return HostGate()  # this plug-in's scheduler is not hashable
