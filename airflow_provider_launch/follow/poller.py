"""Asking for the states of many apps at the price of one."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.follow.start_limit import is_waiting
from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.util.backoff import backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

log = logging.getLogger(__name__)

__all__ = ["Answer", "Poller", "poll_many"]

_BACKOFF_MAX_S = 15.0
_FIRST_STEP_S = 0.02
_STEPS_PER_INTERVAL = 40
_AFTER_END_S = (0.0, 0.15, 0.5, 1.2)
"""When the state is asked for after an end that was heard of elsewhere: it is late by milliseconds, or by a second."""
_HURRY_S = 0.25
"""The ends of many replicas of one app come together, and need not be asked for one by one."""
_EASED_FACTOR, _EASED_MAX_S = 10, 5.0
_WAIT_SHARE, _WAIT_MAX_S = 0.1, 15.0
"""Apps that all wait to start are asked for each tenth of their wait, at most so rarely: a queue may take days."""
_AGE_PER_STEP = 8
"""A young app is asked for again after an eighth of its age: one that ends at once is not waited for. Its age begins
anew with each change of its state, for one change rarely comes alone.

Of eight apps that ran for 0.3 to 8.3 s at an interval of 5 s, the end was known 0.18 s late on average and 0.74 s at
most. With pauses that double it was 1.18 s and 3.92 s; with the interval alone, 2.9 s and 4.7 s."""

Answer = DescribeAppResponse | None | Exception
"""What is known of an app: its description, None for "no such app", or why nothing is known."""


def poll_many(scheduler: Scheduler[Any], app_ids: Iterable[str]) -> dict[str, Answer]:
    """Ask once for all apps; what went wrong is an answer too, and never raised.

    One app that cannot be described does not hide the others: after an error that is not an outage each half of them
    is asked for alone, so that it is found among many by a few questions; one that the error names is left out at once.
    """
    ids = list(app_ids)
    try:
        found = scheduler.describe_many(ids)
        return {app_id: _sound(found.get(app_id), scheduler) for app_id in ids}
    except Exception as error:  # noqa: BLE001 - handed to the consumer, whose thread it belongs to
        if len(ids) <= 1 or _is_outage(error):
            return dict.fromkeys(ids, error)
        texts = error.texts if isinstance(error, AppUnavailableError) else {}
        if named := [app_id for app_id in ids if app_id in texts]:
            answers: dict[str, Answer] = {app_id: AppUnavailableError(texts[app_id]) for app_id in named}
            return answers | poll_many(scheduler, [app_id for app_id in ids if app_id not in texts])
    half = len(ids) // 2
    return poll_many(scheduler, ids[:half]) | poll_many(scheduler, ids[half:])


def _is_outage(answer: Answer) -> bool:
    """Return whether it concerns all apps of the scheduler."""
    return isinstance(answer, SchedulerUnavailableError) and not isinstance(answer, AppUnavailableError)


def _sound(answer: DescribeAppResponse | None, scheduler: Scheduler[Any]) -> DescribeAppResponse | None:
    """Return the answer; a plug-in may leave out what all that follows reads, which must not end the polling."""
    if answer is not None:
        lists: tuple[object, ...] = answer.roles, answer.roles_statuses
        if None in lists:
            raise TypeError(
                f"the scheduler {scheduler.backend!r} describes app {answer.app_id!r} with None for its roles or their "
                f"states; its plug-in must give a list, which may be empty"
            )
    return answer


class Poller:
    """Serves any number of followers of one scheduler with one `describe_many` per interval.

    Its one thread lives while somebody is subscribed. Inboxes are called on that thread and must not block.

    Args:
        scheduler: who is asked.
        interval_s: seconds between two rounds. None: the scheduler's hint, and more often where a change is likely.
        is_hurried: somebody calls `hurry` when an app ends, so a new one need not be asked for often.
    """

    def __init__(self, scheduler: Scheduler[Any], interval_s: float | None = None, *, is_hurried: bool = False) -> None:
        self._scheduler = scheduler
        self.interval_s = max(0.01, scheduler.poll_interval_s if interval_s is None else interval_s)
        """Seconds between two rounds, if no subscriber wants fewer."""
        self._intervals: dict[Callable[[Answer], None], float] = {}
        self._changed = threading.Condition()
        self._inboxes: dict[str, list[Callable[[Answer], None]]] = {}
        self._fresh: set[str] = set()
        self._young: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        self._eased: set[str] = set()
        self._later: set[tuple[float, str]] = set()
        """When an app is asked for beside the rounds."""
        self._act_at: dict[str, float] = {}
        """When (monotonic clock) an app needs an observer: rounds that are rare must not keep it waiting."""
        self._waiting: dict[str, float] = {}
        """Since when (monotonic clock) an app is seen to wait for its start."""
        self._seen: dict[str, tuple[AppState, bool]] = {}
        self._sees_changes = interval_s is None
        self._is_hurried = is_hurried
        self._took = 0.0
        self._thread: threading.Thread | None = None
        self._asking_since: float | None = None

    @property
    def asking_since(self) -> float | None:
        """Since when (monotonic clock) the scheduler owes an answer; None: no request is under way."""
        return self._asking_since

    def followed(self) -> set[str]:
        """Return the apps that somebody is subscribed to."""
        with self._changed:
            return {*self._inboxes}

    def subscribe(self, app_id: str, inbox: Callable[[Answer], None], interval_s: float | None = None) -> None:
        """Give `inbox` each answer about the app from now on; the first is asked for at once.

        Args:
            app_id: the app.
            inbox: takes the answers.
            interval_s: at least so often; all subscribers share the rounds of the most impatient one.
        """
        with self._changed:
            if interval_s is not None:
                self._intervals[inbox] = max(0.01, interval_s)
            self._inboxes.setdefault(app_id, []).append(inbox)
            self._fresh.add(app_id)
            if interval_s is None and not self._is_hurried:
                self._young[app_id] = time.monotonic()
            if self._thread is None:
                name = f"launch-status-{self._scheduler.backend}-{app_id}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def hurry(self, app_id: str) -> None:
        """Ask for this app now; no-op if nobody is subscribed to it."""
        with self._changed:
            if app_id in self._inboxes:
                self._fresh.add(app_id)
                self._changed.notify_all()

    def hear_end(self, app_id: str) -> None:
        """Ask for this app soon, and some times more: something of it has ended, which the state may show late."""
        with self._changed:
            if app_id in self._inboxes:
                now = time.monotonic()
                first = max(now, self._heard.get(app_id, float("-inf")) + _HURRY_S)
                self._heard[app_id] = first
                self._later = {item for item in self._later if item[1] != app_id or item[0] <= first}
                self._later |= {(first + after_s, app_id) for after_s in _AFTER_END_S}
                self._changed.notify_all()

    def ease(self, app_id: str, is_eased: bool) -> None:
        """Ask less often, as far as all apps are eased: the ends of this one are heard of elsewhere."""
        with self._changed:
            if is_eased and app_id in self._inboxes:
                self._eased.add(app_id)
                self._young.pop(app_id, None)
            else:
                self._eased.discard(app_id)

    def unsubscribe(self, app_id: str, inbox: Callable[[Answer], None]) -> None:
        """Stop giving answers to `inbox`; no-op if it gets none. The last one to leave ends the thread."""
        with self._changed:
            inboxes = self._inboxes.get(app_id, [])
            if inbox in inboxes:
                inboxes.remove(inbox)
            self._intervals.pop(inbox, None)
            if not inboxes:
                self._inboxes.pop(app_id, None)
                self._fresh.discard(app_id)
                for known in (self._young, self._seen, self._heard, self._act_at, self._waiting):
                    known.pop(app_id, None)
                self._later = {item for item in self._later if item[1] != app_id}
                self._eased.discard(app_id)
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, which may hang in a request; no-op while somebody is subscribed."""
        thread = self._thread
        if thread is not None and not self._inboxes and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _interval(self) -> float:
        with self._changed:
            wanted = [self._intervals.get(inbox, self.interval_s) for each in self._inboxes.values() for inbox in each]
            may_slow = self._sees_changes and not self._intervals
            is_eased = may_slow and len(self._eased) == len(self._inboxes)
            all_wait = may_slow and 0 < len(self._waiting) == len(self._inboxes)
            since = max(self._waiting.values()) if all_wait else float("inf")
        interval_s = min(wanted, default=self.interval_s)
        eased_s = min(interval_s * _EASED_FACTOR, _EASED_MAX_S) if is_eased else 0.0
        wait_s = min((time.monotonic() - since) * _WAIT_SHARE, _WAIT_MAX_S) if all_wait else 0.0
        return max(interval_s, eased_s, wait_s)

    def _first_step(self) -> float:
        """Return seconds until an app that has just come, or changed, is asked for alone."""
        # The more apps, the less a single one is worth a question of its own: in a triggerer some app is always young.
        return max(_FIRST_STEP_S, self.interval_s / _STEPS_PER_INTERVAL, self._took) * len(self._inboxes)

    def _step(self) -> float:
        """Return seconds until young apps are asked for alone; forget those that are not young any more."""
        now, first = time.monotonic(), self._first_step()
        steps = {app_id: max(first, (now - since) / _AGE_PER_STEP) for app_id, since in self._young.items()}
        self._young = {app_id: self._young[app_id] for app_id, step in steps.items() if step < self.interval_s}
        return min((steps[app_id] for app_id in self._young), default=self.interval_s)

    def _due_in(self) -> float:
        """Return seconds until an app is asked for of which something has ended, or that needs an observer."""
        moments = [*(moment for moment, _ in self._later), *self._act_at.values()]
        return max(0.0, min(moments) - time.monotonic()) if moments else _EASED_MAX_S

    def _due(self) -> set[str]:
        now = time.monotonic()
        due = {item for item in self._later if item[0] <= now}
        self._later -= due
        acting = {app_id for app_id, moment in self._act_at.items() if moment <= now}
        for app_id in acting:
            # The answer shows when it is due again.
            del self._act_at[app_id]
        return acting.union(app_id for _, app_id in due)

    def _note_acts(self, answers: dict[str, Answer]) -> None:
        now = time.monotonic()
        for app_id, answer in answers.items():
            if isinstance(answer, DescribeAppResponse) and answer.act_in_s is not None and app_id in self._inboxes:
                self._act_at[app_id] = now + answer.act_in_s
            else:
                self._act_at.pop(app_id, None)
            if isinstance(answer, DescribeAppResponse) and is_waiting(answer.state) and app_id in self._inboxes:
                self._waiting.setdefault(app_id, now)
            elif not isinstance(answer, Exception):
                self._waiting.pop(app_id, None)

    def _compare(self, answers: dict[str, Answer]) -> None:
        """Take apps for young ones whose state has changed, or whose last replica has ended."""
        # Who wants another interval gets that one.
        if not self._sees_changes or self._first_step() >= self.interval_s:
            self._seen.clear()
            return
        for app_id, answer in answers.items():
            wanted = any(inbox not in self._intervals for inbox in self._inboxes.get(app_id, ()))
            if not wanted or not isinstance(answer, DescribeAppResponse):
                continue
            # Not each replica's: of a thousand one changes at each poll.
            states = [replica.state for role in answer.roles_statuses for replica in role.replicas]
            seen = answer.state, bool(states) and all(map(is_terminal, states))
            if self._seen.setdefault(app_id, seen) != seen:
                self._seen[app_id] = seen
                if app_id not in self._eased:
                    self._young[app_id] = time.monotonic()

    def _run(self) -> None:
        pauses: Iterator[float] | None = None
        next_round = time.monotonic()
        while True:
            with self._changed:
                while self._inboxes and not self._fresh and (left := next_round - time.monotonic()) > 0:
                    self._changed.wait(min(left, self._step(), self._due_in()))
                    self._fresh |= self._due() or self._young.keys()
                if not self._inboxes:
                    self._thread = None
                    return
                # Who comes between two rounds is asked for alone, and joins the next round.
                full_round = time.monotonic() >= next_round
                asked = list(self._inboxes if full_round else self._fresh)
                self._fresh.clear()
                self._asking_since = began = time.monotonic()
            answers = poll_many(self._scheduler, asked)
            self._asking_since, self._took = None, time.monotonic() - began
            down = any(map(_is_outage, answers.values())) or all(
                isinstance(answer, SchedulerRejectedError | AppUnavailableError) for answer in answers.values()
            )
            if full_round:
                interval_s = self._interval()
                if not down:
                    pauses = None
                elif pauses is None:
                    pauses = backoff(max(2 * interval_s, 0.5), max(interval_s, _BACKOFF_MAX_S))
                pause = next(pauses) if pauses else interval_s
                # From start to start, but with a pause also for a scheduler which needs as long as the interval.
                next_round = max(began + pause, time.monotonic() + pause / 5)
            with self._changed:
                for app_id in asked if down else ():
                    # Who does not answer is asked less often, also for an app that is new.
                    self._young.pop(app_id, None)
                self._compare(answers)
                self._note_acts(answers)
                calls = [(inbox, answers[app_id]) for app_id in asked for inbox in self._inboxes.get(app_id, ())]
            for inbox, answer in calls:
                try:
                    inbox(answer)
                except Exception:
                    # The others of the scheduler still want their answers.
                    log.exception("a follower failed at the state of its app")
