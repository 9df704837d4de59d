"""The loop of a task that follows its app: events into the log, an eye on the kill flag."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_launch.follow.events import Ended, LogLines, Progress, StateChanged, Tick
from airflow_provider_launch.specs.states import is_terminal

if TYPE_CHECKING:
    from airflow_provider_launch._task.log_limit import LogLimit
    from airflow_provider_launch._task.task_log import TaskLog
    from airflow_provider_launch.follow.follower import Follower
    from airflow_provider_launch.schedulers.api import DescribeAppResponse

__all__ = ["first_lines", "follow_app"]

_LOG_FAILURES = 5


def follow_app(
    follower: Follower,
    task_log: TaskLog,
    check: Callable[[], None],
    *,
    until: float | None = None,
    limit: LogLimit | None = None,
    on_end: Callable[[DescribeAppResponse], object] = lambda _response: None,
) -> DescribeAppResponse | None:
    """Tell what happens until the app has ended, and return how; None: `until` came first.

    Args:
        follower: follows the app.
        task_log: where it is told.
        check: called after each event, and at least each 0.2 s; raises to leave.
        until: a time of `time.monotonic` at which to stop.
        limit: only the first lines of each replica are shown, as far as it goes; the last ones are left to another.
        on_end: called when the app has ended, while the rest of its log is read.
    """
    failed = 0
    for event in follower:
        check()
        if failed < _LOG_FAILURES:
            try:
                if limit is not None and isinstance(event, LogLines):
                    task_log.tell(first_lines(event, limit, follower, task_log))
                else:
                    task_log.tell(event)
                failed = 0
            except Exception:  # noqa: BLE001 - a log that fails must not change how the task ends
                # Said nowhere, because the log is what is broken; given up after some in a row.
                failed += 1
        if isinstance(event, Tick) and task_log.is_quiet and follower.response is not None:
            task_log.tell(Progress(follower.response))
        if isinstance(event, StateChanged) and is_terminal(event.new):
            on_end(event.response)
        if isinstance(event, Ended):
            return event.response
        if until is not None and time.monotonic() >= until:
            return None
    return None


def first_lines(event: LogLines, limit: LogLimit, follower: Follower, task_log: TaskLog) -> LogLines:
    """Return the lines which are shown before the end; where there are others, their replica is read no further."""
    key = f"{event.role}/{event.replica}"
    was_full = limit.is_full(key)
    shown = limit.admit(key, event.lines)
    if shown == len(event.lines):
        return event
    follower.leave(shown)
    first = dataclasses.replace(event, lines=event.lines[:shown])
    if not was_full:
        task_log.tell(first)
        task_log.say_cut(key, limit.max_bytes)
        return dataclasses.replace(event, lines=[])
    return first
