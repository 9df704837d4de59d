"""Services shared by the triggers of one process: connections, log pump, timer, kills, reconciler."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from typing import TYPE_CHECKING

from airflow_provider_launch.triggers.connections import Connections
from airflow_provider_launch.triggers.helpers import Helpers
from airflow_provider_launch.triggers.kills import Kills
from airflow_provider_launch.triggers.pump import LogPump
from airflow_provider_launch.triggers.reconciler import INTERVAL_S, Reconciler
from airflow_provider_launch.triggers.task_states import TaskStates

if TYPE_CHECKING:
    from airflow_provider_launch.triggers._run import TriggerRun

_BYTES_PER_S = 256 * 1024
_CHECK_S = 5.0
"""Seconds between checks of triggers for missing answers and the clock; other events wake them."""
_CANCELS = 16
"""Number of apps of ended tasks that are cancelled at a time for each connection."""
_QUESTIONS = 4
"""Number of other requests at a time for each connection."""


class Hub(Connections):
    """The connections in use, and the services that write, wake and cancel for their triggers.

    Args:
        log_bytes_per_s: bytes per second that the log pump may write for all triggers together.
        reconcile_interval_s: seconds between two checks for apps without a task. 0: no checks.
    """

    def __init__(self, log_bytes_per_s: float, reconcile_interval_s: float = INTERVAL_S) -> None:
        super().__init__()
        self.pump = LogPump(log_bytes_per_s)
        self.ticker = Ticker(_CHECK_S)
        self.cancels = Helpers("launch-kills", _CANCELS)
        self.questions = Helpers("launch-questions", _QUESTIONS)
        """Runs requests of triggers other than polls; they may wait while the scheduler is unreachable."""
        self.task_states = TaskStates(self.cancels)
        # One thread, because several would wait for the same pipe.
        self.kills = Kills(self, self.task_states, self.cancels, Helpers("launch-kills-log", 1))
        self.reconciler = Reconciler(self, reconcile_interval_s)


_hub: Hub | None = None
_making = threading.Lock()


def _forget() -> None:
    """Reset in a forked child, where the threads of the hub, and any holder of its lock, do not exist."""
    global _hub, _making
    _hub, _making = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def hub() -> Hub:
    """Return the hub of this process."""
    global _hub  # noqa: PLW0603 - one hub per process
    with _making:
        if _hub is None:
            from airflow_provider_launch._airflow import conf

            rate = conf.getfloat("launch", "trigger_log_bytes_per_s", fallback=float(_BYTES_PER_S))
            interval_s = conf.getfloat("launch", "reconcile_interval_s", fallback=INTERVAL_S)
            _hub = Hub(max(rate, 1024.0), interval_s)
        return _hub


log = logging.getLogger(__name__)


class Ticker:
    """Calls `tick` of its runs every few seconds; use it on the thread of their event loop.

    One timer for all, because a timer for each of a thousand triggers would take a quarter of a kilobyte each.

    Args:
        period_s: seconds between two checks.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._runs: dict[asyncio.AbstractEventLoop, set[TriggerRun]] = {}
        self._timers: dict[asyncio.AbstractEventLoop, asyncio.TimerHandle] = {}

    def add(self, run: TriggerRun, loop: asyncio.AbstractEventLoop) -> None:
        """Call this run from now on."""
        for ended in [other for other in self._runs if other.is_closed()]:
            del self._runs[ended], self._timers[ended]
        self._runs.setdefault(loop, set()).add(run)
        if loop not in self._timers:
            self._start(loop)

    def remove(self, run: TriggerRun, loop: asyncio.AbstractEventLoop) -> None:
        """Stop calling this run; the timer ends with the last one."""
        runs = self._runs.get(loop, set())
        runs.discard(run)
        if not runs and loop in self._timers:
            self._timers.pop(loop).cancel()
            del self._runs[loop]

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        # In an empty context, because a run's context selects its log.
        self._timers[loop] = contextvars.Context().run(loop.call_later, self._period_s, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._start(loop)
        for run in list(self._runs[loop]):
            try:
                run.tick()
            except Exception:
                # Continue with the other runs.
                log.exception("the check of a trigger failed")
