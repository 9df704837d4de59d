"""Wait in a program for the end of an app: the follower without logs, limited by a number of errors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.follow.events import Ended, StateChanged
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.follow.state_tracker import StateTracker, StateUpdate
from airflow_provider_launch.specs.errors import UnknownAppException
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.util.backoff import backoff

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler
    from airflow_provider_launch.schedulers.responses import Answer

_ERROR_PAUSE_MAX_S = 60.0
_FIRST_ANSWER_S = 5.0
"""Seconds to wait for the first answer, whatever the timeout is."""


class _CountingTracker(StateTracker):
    """Gives up after a number of consecutive errors or UNKNOWN states, and treats a deleted app as finished."""

    __slots__ = ("_errors", "_interval_s", "_max_errors", "_next_at", "_pauses", "has_answer")

    def __init__(self, name: str, interval_s: float, max_errors: int, start_by: float | None) -> None:
        super().__init__(name, unavailable_for_s=float("inf"), known=False, watches_start=True, start_by=start_by)
        self._interval_s = interval_s
        self._max_errors = max_errors
        self.has_answer = False
        self._reset()

    def _reset(self) -> None:
        self._errors = 0
        self._next_at = 0.0
        self._pauses = backoff(2 * self._interval_s, max(self._interval_s, _ERROR_PAUSE_MAX_S))

    def learn(self, answer: Answer) -> StateUpdate:
        self.has_answer = True
        if isinstance(answer, Exception):
            return StateUpdate(error=self._count(answer))
        learned = super().learn(answer)
        if answer is not None and answer.state != AppState.UNKNOWN:
            self._reset()
        return learned

    def silence(self, request_started_at: float | None) -> StateUpdate:
        """Ignore a missing answer; the timeout of the wait decides."""
        del request_started_at
        return StateUpdate()

    def _check_unknown(self, answer: DescribeAppResponse) -> Exception | None:
        if answer.state != AppState.UNKNOWN:
            return None
        try:
            answer.to_status().raise_for_status()
        except Exception as error:  # noqa: BLE001 - counted like an error of the scheduler
            return self._count(error)
        return None

    def _gone(self) -> Exception | None:
        return UnknownAppException(self._name) if super()._gone() else None

    def _count(self, error: Exception) -> Exception | None:
        # The poller may ask more often: count one error per pause, however many answers come in between.
        if time.monotonic() >= self._next_at:
            self._errors += 1
            self._next_at = time.monotonic() + next(self._pauses)
        return error if self._errors > self._max_errors else None


def wait_for_end(
    scheduler: Scheduler[Any],
    app_id: str,
    app_handle: str,
    interval_s: float,
    *,
    timeout: float | None,
    max_errors: int,
    start_limit_s: float | None,
) -> DescribeAppResponse | None:
    """Return the last description of the app, when it has ended; None if its record is gone.

    The limits and errors are those of `Runner.wait`.
    """
    began = time.monotonic()
    start_by = None if start_limit_s is None else time.time() + start_limit_s
    tracker = _CountingTracker(app_handle, interval_s, max_errors, start_by)
    state = "not known"
    with Follower(scheduler, app_id, poll_interval_s=interval_s, logs=False, tracker=tracker) as events:
        try:
            for event in events:
                if isinstance(event, Ended):
                    return event.response
                if isinstance(event, StateChanged):
                    state = str(event.new)
                waited = time.monotonic() - began
                if timeout is not None and waited >= (timeout if tracker.has_answer else timeout + _FIRST_ANSWER_S):
                    raise TimeoutError(f"{app_handle} has not ended within {timeout} s; its state is {state}")
        except UnknownAppException:
            return None
    return None
