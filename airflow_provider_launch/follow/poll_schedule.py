"""Decides when each of many apps is polled next; without a thread, on the clock of the caller."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from airflow_provider_launch.follow.state_tracker import is_waiting
from airflow_provider_launch.schedulers.responses import Answer
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.util.backoff import backoff

OnAnswer = Callable[[Answer], None]

_BACKOFF_MAX_S = 15.0
_FIRST_STEP_S = 0.02
_STEPS_PER_INTERVAL = 40
_AFTER_END_S = (0.0, 0.15, 0.5, 1.2)
"""Delays of the polls after the log has shown an end: the state follows after milliseconds or up to a second."""
_END_PAUSE_S = 0.25
"""Minimum seconds between polls of one app after reported ends, because many of its replicas may end together."""
_RARE_FACTOR, _RARE_MAX_S = 10, 5.0
_WAIT_SHARE, _WAIT_MAX_S = 0.1, 15.0
"""If all apps wait to start, the pause between rounds is a tenth of their wait, at most this many seconds."""
_AGE_PER_STEP, _WAIT_PER_STEP = 8, 3
"""Recently changed apps are polled after 1/8 of their age (1/3 while they wait to start), so that short apps are
noticed quickly. The age restarts with each change of state, because changes often follow each other.

Measured with eight apps that ran for 0.3 to 8.3 s at an interval of 5 s: the end was noticed 0.18 s late on average,
0.74 s at most. With doubling pauses it was 1.18 s and 3.92 s; with the interval alone, 2.9 s and 4.7 s."""
_NOW, _NEVER = -math.inf, math.inf


@dataclass(slots=True, eq=False)
class PolledApp:
    """One app, and its reasons to be polled between the rounds. Times are in seconds of the caller's clock."""

    app_id: str
    callbacks: dict[OnAnswer, float | None] = field(default_factory=dict)
    """The callbacks of the followers, each with the interval that its follower wants."""
    ask_at: float = _NEVER
    is_wanted: bool = False
    """Whether to poll it now."""
    rechecks: list[float] = field(default_factory=list)
    """When to poll after an end that the log has shown, in order."""
    first_recheck: float = _NOW
    """The first poll after the last such end."""
    act_at: float | None = None
    """When an observer must poll the app, even if rounds are rare."""
    changed_at: float | None = None
    waiting_since: float | None = None
    ends_are_reported: bool = False
    """Whether the log reports its end, so that rounds may be rare."""
    seen: tuple[AppState, bool] | None = None
    """The last state, and whether all replicas had ended."""


class PollSchedule:
    """Plans rounds in which all apps are polled together, and single polls between them. Not thread-safe.

    Args:
        interval_s: seconds between two rounds, unless a follower wants a shorter interval.
        adapts: whether rounds may become rarer, and changed apps are polled more often.
    """

    def __init__(self, interval_s: float, *, adapts: bool = True) -> None:
        self.interval_s = max(0.01, interval_s)
        self.apps: dict[str, PolledApp] = {}
        self._adapts = adapts
        self._took_s = 0.0
        self._next_round = 0.0
        self._pauses: Iterator[float] | None = None
        self._singles: list[tuple[float, int, PolledApp]] = []
        """A heap of `ask_at`; entries whose app has another `ask_at` by now are skipped."""
        self._numbers = itertools.count()

    # ---- apps ------------------------------------------------------------------------------------------------

    def add(self, app_id: str, callback: OnAnswer, interval_s: float | None, now: float, *, is_new: bool) -> None:
        """Poll an app from now on."""
        if not self.apps:
            self._next_round, self._pauses = now, None
        app = self.apps.setdefault(app_id, PolledApp(app_id))
        app.callbacks[callback] = None if interval_s is None else max(0.01, interval_s)
        if is_new and interval_s is None:
            app.changed_at = now
        self.want(app_id, now)

    def remove(self, app_id: str, callback: OnAnswer) -> None:
        """Remove a callback; an app without callbacks is not polled."""
        if (app := self.apps.get(app_id)) is not None:
            app.callbacks.pop(callback, None)
            if not app.callbacks:
                app.ask_at = _NEVER
                del self.apps[app_id]

    def want(self, app_id: str, now: float) -> None:
        """Poll this app now."""
        if (app := self.apps.get(app_id)) is not None:
            app.is_wanted = True
            self._plan(app, now)

    def recheck(self, app_id: str, now: float) -> None:
        """Poll this app soon and a few times more, because a replica has ended and the state may follow late."""
        if (app := self.apps.get(app_id)) is not None:
            if app.first_recheck > now:
                return  # the polls planned from then on also show this end
            first = app.first_recheck = max(now, app.first_recheck + _END_PAUSE_S)
            # Keep only the earlier polls that come before this one.
            app.rechecks = [*(moment for moment in app.rechecks if moment < first), *(first + s for s in _AFTER_END_S)]
            self._plan(app, now)

    def set_ends_reported(self, app_id: str, is_reported: bool, now: float) -> None:
        """Set whether a log stream reports the end of this app. If this is so for all apps, rounds are rare."""
        if (app := self.apps.get(app_id)) is not None:
            app.ends_are_reported = is_reported
            if is_reported:
                app.changed_at = None
                self._plan(app, now)

    # ---- polls -----------------------------------------------------------------------------------------------

    def next_at(self) -> float:
        """Return when to poll next."""
        while self._singles and self._singles[0][0] != self._singles[0][2].ask_at:
            heapq.heappop(self._singles)
        return min(self._next_round, self._singles[0][0]) if self._singles else self._next_round

    def take(self, now: float) -> tuple[list[str], bool]:
        """Return the apps to poll now, and whether this is a round of all of them."""
        is_round = now >= self._next_round
        if is_round:
            taken = list(self.apps.values())
        else:
            taken = []
            while self._singles and self._singles[0][0] <= now:
                moment, _, app = heapq.heappop(self._singles)
                if app.ask_at == moment:
                    taken.append(app)
                    app.ask_at = _NEVER
        for app in taken:
            app.ask_at, app.is_wanted = _NEVER, False
            app.rechecks = [moment for moment in app.rechecks if moment > now]
        return [app.app_id for app in taken], is_round

    def note(
        self, answers: Mapping[str, Answer], started_at: float, now: float, *, is_round: bool, is_down: bool
    ) -> None:
        """Take answers, and decide when to poll again.

        Args:
            answers: app id to answer, for all polled apps.
            started_at: when the poll started.
            now: when the answers arrived.
            is_round: whether all apps were polled.
            is_down: whether the scheduler does not answer, so that the pauses grow.
        """
        self._took_s = now - started_at
        for app_id, answer in answers.items():
            if (app := self.apps.get(app_id)) is not None:
                self._note(app, answer, now)
                if is_down:
                    app.changed_at = None
                self._plan(app, now)
        if is_round:
            pause_s = self.pause_s(now)
            if not is_down:
                self._pauses = None
            else:
                self._pauses = self._pauses or backoff(max(2 * pause_s, 0.5), max(pause_s, _BACKOFF_MAX_S))
                pause_s = next(self._pauses)
            # From start to start, but with a pause even if the scheduler needs the whole interval to answer.
            self._next_round = max(started_at + pause_s, now + pause_s / 5)

    def pause_s(self, now: float) -> float:
        """Return seconds between two rounds."""
        wanted = [each for app in self.apps.values() for each in app.callbacks.values()]
        pause_s = min((self.interval_s if each is None else each for each in wanted), default=self.interval_s)
        if not self._adapts or any(each is not None for each in wanted):
            return pause_s
        if all(app.ends_are_reported for app in self.apps.values()):
            pause_s = max(pause_s, min(pause_s * _RARE_FACTOR, _RARE_MAX_S))
        waiting = [app.waiting_since for app in self.apps.values() if app.waiting_since is not None]
        if len(waiting) < len(self.apps) or not waiting:
            return pause_s
        return max(pause_s, min((now - max(waiting)) * _WAIT_SHARE, _WAIT_MAX_S))

    def _note(self, app: PolledApp, answer: Answer, now: float) -> None:
        app.act_at = None
        if isinstance(answer, Exception):
            return
        if answer is None:
            app.waiting_since = None
            return
        if answer.act_in_s is not None:
            app.act_at = now + answer.act_in_s
        if not is_waiting(answer.state):
            app.waiting_since = None
        elif app.waiting_since is None:
            app.waiting_since = now
        # Followers with their own interval get that interval.
        if not self._adapts or self._first_step_s() >= self.interval_s or None not in app.callbacks.values():
            app.seen = None
            return
        # Not the state of each replica: with a thousand replicas one changes at each poll.
        states = [replica.state for role in answer.roles_statuses for replica in role.replicas]
        seen = answer.state, bool(states) and all(map(is_terminal, states))
        if app.seen is not None and app.seen != seen and not app.ends_are_reported:
            app.changed_at = now
        app.seen = seen

    def _first_step_s(self) -> float:
        """Return seconds until an app that was just added, or has changed, gets a poll of its own."""
        # The more apps, the rarer their single polls: in a triggerer some app has always just changed.
        return max(_FIRST_STEP_S, self.interval_s / _STEPS_PER_INTERVAL, self._took_s) * len(self.apps)

    def _plan(self, app: PolledApp, now: float) -> None:
        moments = [_NOW] if app.is_wanted else app.rechecks[:1]
        if app.act_at is not None:
            moments.append(app.act_at)
        if app.changed_at is not None:
            parts = _AGE_PER_STEP if app.waiting_since is None else _WAIT_PER_STEP
            step_s = max(self._first_step_s(), (now - app.changed_at) / parts)
            if step_s < self.interval_s:
                moments.append(now + step_s)
            else:
                app.changed_at = None
        if (ask_at := min(moments, default=_NEVER)) != app.ask_at:
            app.ask_at = ask_at
            if ask_at != _NEVER:
                heapq.heappush(self._singles, (ask_at, next(self._numbers), app))
