"""Waiting in a program for the end of an app: polls, with growing pauses while they fail."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_provider_launch.specs.errors import AppNotStartedError
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.util.backoff import backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_launch.specs.handles import AppHandle
    from airflow_provider_launch.specs.statuses import AppStatus

__all__ = ["wait_for_end"]

_ERROR_PAUSE_MAX_S = 60.0


def wait_for_end(
    poll: Callable[[], AppStatus | None],
    app_handle: AppHandle,
    interval_s: float,
    *,
    timeout: float | None,
    max_errors: int,
) -> AppStatus | None:
    """Return the status with which the app has ended; None: it is gone.

    Args:
        poll: asks for the status.
        app_handle: the app, for messages.
        interval_s: seconds between two polls.
        timeout: seconds after which to give up. None: never.
        max_errors: how many errors or UNKNOWN states in a row are tolerated.

    Raises:
        TimeoutError: the app has not ended in time; it goes on.
        AppNotStartedError: `poll` has found that it does not begin in time.
        Exception: the last error, when there were too many in a row.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    longest_s = max(interval_s, _ERROR_PAUSE_MAX_S)
    errors, pauses = 0, backoff(2 * interval_s, longest_s)
    state = "not known"
    while True:
        try:
            status = poll()
            if status is None or is_terminal(status.state):
                return status
            state = str(status.state)
            if status.state == AppState.UNKNOWN:
                status.raise_for_status()
            errors, pauses = 0, backoff(2 * interval_s, longest_s)
        except Exception as error:
            errors += 1
            if errors > max_errors or isinstance(error, AppNotStartedError):
                raise
        pause = next(pauses) if errors else interval_s
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{app_handle} has not ended within {timeout} s; its state is {state}")
            pause = min(pause, left)
        time.sleep(pause)
