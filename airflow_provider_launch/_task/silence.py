"""Notices an app that hangs: no replica writes a line for too long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_provider_launch.follow.events import LogGap, Reached, StateChanged, Unreachable
from airflow_provider_launch.specs.states import AppState

if TYPE_CHECKING:
    from airflow_provider_launch._task.task_log import TaskLog
    from airflow_provider_launch.follow.events import Event
    from airflow_provider_launch.schedulers.api import DescribeAppResponse

_NAMED = 20


class SilenceLimit:
    """The limit of one app. Time in which lines may be late does not count: before the start, and in an outage.

    Args:
        limit_s: seconds. None: no limit.
        log: knows when the last line came.
    """

    __slots__ = ("_is_down", "_limit_s", "_log", "_since")

    def __init__(self, limit_s: float | None, log: TaskLog) -> None:
        self._limit_s = limit_s
        self._log = log
        self._since = time.monotonic()
        self._is_down = False

    def exceeded(self, event: Event | None, response: DescribeAppResponse | None) -> str:
        """Return which replicas are silent and for how long, once the limit has passed; empty before.

        Args:
            event: the next event. None: only time has passed.
            response: the last answer of the scheduler.
        """
        if self._limit_s is None:
            return ""
        if isinstance(event, (Unreachable, Reached)):
            self._is_down = isinstance(event, Unreachable)
        is_running = response is not None and response.state is AppState.RUNNING
        if self._is_down or not is_running or isinstance(event, (StateChanged, Reached, LogGap)):
            self._since = time.monotonic()
            return ""
        assert response is not None
        if time.monotonic() - max(self._since, self._log.last_line_at) < self._limit_s:
            return ""
        return silence_text(self._limit_s, response)


def silence_text(limit_s: float, response: DescribeAppResponse) -> str:
    """Return the cause of the cancel, with the replicas that were still running."""
    replicas = [replica for role in response.roles_statuses for replica in role.replicas]
    running = [f"{one.role}/{one.id}" for one in replicas if one.state is AppState.RUNNING]
    more = f" and {len(running) - _NAMED} more" if len(running) > _NAMED else ""
    still = f"; still running: {', '.join(running[:_NAMED])}{more}" if running else ""
    return f"hangs: no replica has written a line for {limit_s:g} s (silence_limit_s){still}"
