"""Retries a call while the scheduler is unreachable, until the task is killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.util.backoff import backoff

T = TypeVar("T")

_STEP_S = 0.1
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0


def retry_while_unavailable(
    call: Callable[[], T],
    check: Callable[[], None],
    *,
    unavailable_for_s: float,
    warn: Callable[[str], object] = lambda _text: None,
) -> T:
    """Return the result of `call`, retrying while the scheduler is unreachable.

    Args:
        call: a request to the scheduler that is safe to repeat.
        check: called in short intervals; raises to stop.
        unavailable_for_s: seconds to retry while the scheduler is unreachable, before its error is raised.
        warn: takes one line when an outage starts.
    """
    deadline = time.monotonic() + unavailable_for_s
    pauses = backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
    has_warned = False
    while True:
        check()
        try:
            return call()
        except SchedulerUnavailableError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            if not has_warned:
                has_warned = True
                warn(f"the scheduler does not answer, asking again for up to {unavailable_for_s:.0f} s: {error}")
            _sleep(min(next(pauses), left), check)


def _sleep(seconds: float, check: Callable[[], None]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        # Short steps, because a signal does not interrupt a sleep.
        time.sleep(min(left, _STEP_S))
        check()
