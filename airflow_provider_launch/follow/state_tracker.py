"""Turns the answers of a scheduler into events: changes of state, outages, the end of the app."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_launch.follow.events import Event, Reached, StateChanged, Unreachable
from airflow_provider_launch.specs.errors import (
    AppNotStartedError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
    UnknownAppException,
    UnknownOutcomeError,
)
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState, is_terminal

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import DescribeAppResponse
    from airflow_provider_launch.schedulers.responses import Answer


STUCK_S = 60.0
"""Seconds that an app may wait for a missing object, such as a secret, which a user may be about to create."""
_WAITING = frozenset({AppState.UNSUBMITTED, AppState.SUBMITTED, AppState.PENDING})


def is_waiting(state: AppState) -> bool:
    """Return whether the state is that of an app that has not started yet."""
    return state in _WAITING


class StartLimit:
    """Decides whether an app starts in time. Not thread-safe; makes no requests.

    Args:
        name: name of the app in errors.
        start_by: epoch seconds by which it must have started; later attempts may wait longer. None: no limit.
            With and without a limit, a stuck app or replica waits only `STUCK_S`.
    """

    __slots__ = ("_has_started", "_name", "_start_by", "_stuck_since")

    def __init__(self, name: str, start_by: float | None = None) -> None:
        self._name = name
        self._start_by = start_by
        self._has_started = False
        self._stuck_since: float | None = None

    def check(self, answer: DescribeAppResponse) -> AppNotStartedError | None:
        """Return the error of an app that cannot start or is too late; None if it may continue to wait."""
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


_SILENCE_S, _ANSWER_S = 30.0, 5.0
"""Seconds without an answer after which the scheduler counts as unreachable: the default, and the minimum for a short
`unavailable_for_s`."""
UNKNOWN_S = 15.0
"""Seconds that a scheduler may report UNKNOWN before it is an error."""


@dataclass(slots=True)
class StateUpdate:
    """The events and the error that result from an answer."""

    events: list[Event] = field(default_factory=list)
    error: Exception | None = None
    """The error that ends the follower before the app has ended; raised after the events."""


class StateTracker:
    """Tracks the state of one app from one answer to the next. Not thread-safe; makes no requests.

    Args:
        name: name of the app in errors.
        unavailable_for_s: seconds to retry while the scheduler is unreachable, before it is an error.
        known: whether the app was seen before; if the scheduler no longer finds it, it has vanished.
        watches_start: whether it is an error after a minute if the app cannot start.
        start_by: epoch seconds by which it must have started. None: no limit.
    """

    __slots__ = (
        "_down_since",
        "_known",
        "_missing",
        "_name",
        "_outage_reported",
        "_start",
        "_unavailable_for_s",
        "_unknown_since",
        "response",
    )

    def __init__(
        self,
        name: str,
        *,
        unavailable_for_s: float,
        known: bool,
        watches_start: bool = False,
        start_by: float | None = None,
    ) -> None:
        self.response: DescribeAppResponse | None = None
        """The last description of the app."""
        self._name = name
        self._unavailable_for_s = unavailable_for_s
        self._known = known
        self._missing = False
        self._unknown_since: float | None = None
        self._down_since: float | None = None
        self._outage_reported = False
        self._start = StartLimit(name, start_by) if watches_start else None

    def has_ended(self) -> bool:
        """Whether the app was seen in a final state."""
        return self.response is not None and is_terminal(self.response.state)

    def learn(self, answer: Answer) -> StateUpdate:
        """Take the next answer; no effect after the end."""
        learned = StateUpdate()
        if self.has_ended():
            return learned
        # A refusal, such as one of expired credentials, counts as an outage if the app was seen before.
        is_known = self._known or self.response is not None
        if isinstance(answer, SchedulerUnavailableError) or (is_known and isinstance(answer, SchedulerRejectedError)):
            if self._down_since is None:
                self._down_since = time.monotonic()
            self._outage(learned, answer)
            return learned
        if self._down_since is not None:
            if self._outage_reported:
                learned.events.append(Reached(time.monotonic() - self._down_since))
            self._down_since, self._outage_reported = None, False
        if isinstance(answer, Exception):
            learned.error = answer
        elif answer is None:
            learned.error = self._gone()
        else:
            self._missing = False
            self._compare(learned, answer)
        return learned

    def silence(self, request_started_at: float | None) -> StateUpdate:
        """Report an outage if an answer is missing for too long.

        Args:
            request_started_at: when the current request started (monotonic clock); None if no request is running.
        """
        learned = StateUpdate()
        if self.has_ended():
            return learned
        now = time.monotonic()
        limit_s = min(_SILENCE_S, max(_ANSWER_S, self._unavailable_for_s))
        silent = request_started_at is not None and now - request_started_at > limit_s
        if silent and self._down_since is None:
            self._down_since = request_started_at
        if self._down_since is not None and (silent or now - self._down_since > self._unavailable_for_s):
            seconds = now - self._down_since
            error = SchedulerUnavailableError(f"the state of {self._name!r} has been unknown for {seconds:.0f} s")
            self._outage(learned, error)
        return learned

    def _compare(self, learned: StateUpdate, answer: DescribeAppResponse) -> None:
        before, self.response = self.response, answer
        changed = before is None or before.state != answer.state
        # The message is the reason why an app waits, or the last incident of a running app.
        is_shown = answer.state in {AppState.PENDING, AppState.RUNNING}
        another_reason = is_shown and before is not None and before.msg != answer.msg
        if changed or another_reason:
            learned.events.append(StateChanged(None if before is None else before.state, answer.state, answer))
        if self._start is not None:
            learned.error = self._start.check(answer)
        learned.error = learned.error or self._check_unknown(answer)

    def _check_unknown(self, answer: DescribeAppResponse) -> Exception | None:
        """Return the error of an app whose state stays UNKNOWN."""
        if answer.state != AppState.UNKNOWN:
            self._unknown_since = None
            return None
        # Wait only `UNKNOWN_S`, because a scheduler that lost the app does not find it again.
        now = time.monotonic()
        if self._unknown_since is None:
            self._unknown_since = now
        if now - self._unknown_since < min(UNKNOWN_S, self._unavailable_for_s):
            return None
        return UnknownOutcomeError(f"how {self._name!r} ended is unknown: {answer.msg}")

    def _gone(self) -> Exception | None:
        # Poll twice: an engine may list an app late, or omit it for a moment.
        if not self._missing:
            self._missing = True
            return None
        if self._known or self.response is not None:
            return UnknownOutcomeError(
                f"{self._name!r} was launched, and the scheduler does not know it any more: how it ended is unknown"
            )
        return UnknownAppException(self._name)

    def _outage(self, learned: StateUpdate, error: SchedulerUnavailableError | SchedulerRejectedError) -> None:
        since_s = time.monotonic() - (self._down_since or time.monotonic())
        if not self._outage_reported:
            self._outage_reported = True
            learned.events.append(Unreachable(since_s, error))
        if since_s >= self._unavailable_for_s:
            learned.error = self._given_up(error, since_s)

    def _given_up(self, error: Exception, since_s: float) -> SchedulerUnavailableError:
        act = "renew the access of this connection" if isinstance(error, SchedulerRejectedError) else "bring it back"
        given_up = SchedulerUnavailableError(
            f"{error}. This has lasted for {since_s:.0f} s: ask the administrator of the scheduler to {act}; "
            f"{self._name!r} may be running, and was not cancelled"
        )
        given_up.__cause__ = error
        return given_up
