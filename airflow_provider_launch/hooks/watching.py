"""The loop of a task that follows its app: events into the log, an eye on the kill flag."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_launch.follow.events import Ended
from airflow_provider_launch.specs.errors import SchedulerUnavailableError

if TYPE_CHECKING:
    from airflow_provider_launch.follow.follower import Follower
    from airflow_provider_launch.hooks.task_log import TaskLog
    from airflow_provider_launch.schedulers.api import DescribeAppResponse

__all__ = ["patiently", "watch"]

T = TypeVar("T")

_STEP_S = 0.1
_LOG_FAILURES = 5
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0


def watch(
    follower: Follower, task_log: TaskLog, check: Callable[[], None], *, until: float | None = None
) -> DescribeAppResponse | None:
    """Tell what happens until the app has ended, and return how; None: `until` came first.

    Args:
        follower: follows the app.
        task_log: where it is told.
        check: called after each event, and at least each 0.2 s; raises to leave.
        until: a time of `time.monotonic` at which to stop.
    """
    failed = 0
    for event in follower:
        check()
        if failed < _LOG_FAILURES:
            try:
                task_log.tell(event)
                failed = 0
            except Exception:  # noqa: BLE001 - a log that fails must not change how the task ends
                # Said nowhere, because the log is what is broken; given up after some in a row.
                failed += 1
        if isinstance(event, Ended):
            return event.response
        if until is not None and time.monotonic() >= until:
            return None
    return None


def patiently(
    call: Callable[[], T],
    check: Callable[[], None],
    *,
    unavailable_for_s: float,
    tell: Callable[[str], object] = lambda _text: None,
) -> T:
    """Return what `call` gives, and call again while the scheduler is out of reach.

    Args:
        call: asks the scheduler; must be harmless to repeat.
        check: called in short steps; raises to leave.
        unavailable_for_s: how long an outage is borne before its error is raised.
        tell: takes one line when an outage begins.
    """
    deadline = time.monotonic() + unavailable_for_s
    pause = _FIRST_PAUSE_S
    told = False
    while True:
        check()
        try:
            return call()
        except SchedulerUnavailableError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            if not told:
                told = True
                tell(f"the scheduler does not answer, asking again for up to {unavailable_for_s:.0f} s: {error}")
            _sleep(min(pause, left), check)
            pause = min(2 * pause, _MAX_PAUSE_S)


def _sleep(seconds: float, check: Callable[[], None]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        # A signal does not cut a sleep short.
        time.sleep(min(left, _STEP_S))
        check()
