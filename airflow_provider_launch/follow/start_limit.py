"""Limits how long an app may wait for its start, or for a replica that can never start."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_provider_launch.specs.errors import AppNotStartedError
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import DescribeAppResponse

STUCK_S = 60.0
"""Seconds that an app may wait for a missing object, such as a secret, which a user may be about to create."""
_WAITING = frozenset({AppState.UNSUBMITTED, AppState.SUBMITTED, AppState.PENDING})


def is_waiting(state: AppState) -> bool:
    """Return whether an app in this state has not started yet."""
    return state in _WAITING


class StartLimit:
    """Start limit of one app. Not thread-safe; makes no requests.

    Args:
        name: name of the app in errors.
        start_by: epoch seconds by which it must have started; its retries may wait longer. None: no limit.
            In both cases a stuck app or replica waits only `STUCK_S`.
    """

    __slots__ = ("_has_started", "_name", "_start_by", "_stuck_since")

    def __init__(self, name: str, start_by: float | None = None) -> None:
        self._name = name
        self._start_by = start_by
        self._has_started = False
        self._stuck_since: float | None = None

    def check(self, answer: DescribeAppResponse) -> AppNotStartedError | None:
        """Return the error of an app that cannot start or is too late; None: it may go on waiting."""
        self._has_started |= answer.state is AppState.RUNNING or answer.num_restarts > 0
        if not is_waiting(answer.state) and (answer.state is not AppState.RUNNING or not answer.is_stuck):
            self._stuck_since = None
            return None
        waited = f"it waited for: {answer.msg}" if answer.msg not in ("", NONE) else "the scheduler gives no reason"
        if not self._has_started and self._start_by is not None and time.time() >= self._start_by:
            return AppNotStartedError(f"the app has not started within its start_limit_s; {waited}; {self._name}")
        now = time.monotonic()
        self._stuck_since = (self._stuck_since or now) if answer.is_stuck else None
        if self._stuck_since is not None and now - self._stuck_since >= STUCK_S:
            what = "a replica of the app cannot start" if self._has_started else "the app cannot start"
            return AppNotStartedError(f"{what}; {waited}; {self._name}")
        return None
