"""Asking for the states of many apps at the price of one."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.follow.poll_schedule import Answer, Inbox, PollSchedule
from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)


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
        given_s = scheduler.poll_interval_s if interval_s is None else interval_s
        self._schedule = PollSchedule(given_s, adapts=interval_s is None)
        self._is_hurried = is_hurried
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asking_since: float | None = None

    @property
    def interval_s(self) -> float:
        """Seconds between two rounds, if no subscriber wants fewer."""
        return self._schedule.interval_s

    @property
    def asking_since(self) -> float | None:
        """Since when (monotonic clock) the scheduler owes an answer; None: no request is under way."""
        return self._asking_since

    def followed(self) -> set[str]:
        """Return the apps that somebody is subscribed to."""
        with self._changed:
            return {*self._schedule.apps}

    def subscribe(self, app_id: str, inbox: Inbox, interval_s: float | None = None) -> None:
        """Give `inbox` each answer about the app from now on; the first is asked for at once.

        Args:
            app_id: the app.
            inbox: takes the answers.
            interval_s: at least so often; all subscribers share the rounds of the most impatient one.
        """
        with self._changed:
            self._schedule.add(app_id, inbox, interval_s, time.monotonic(), is_young=not self._is_hurried)
            if self._thread is None:
                name = f"launch-status-{self._scheduler.backend}-{app_id}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def hurry(self, app_id: str) -> None:
        """Ask for this app now; no-op if nobody is subscribed to it."""
        with self._changed:
            self._schedule.want(app_id, time.monotonic())
            self._changed.notify_all()

    def hear_end(self, app_id: str) -> None:
        """Ask for this app soon, and some times more: something of it has ended, which the state may show late."""
        with self._changed:
            self._schedule.recheck(app_id, time.monotonic())
            self._changed.notify_all()

    def ease(self, app_id: str, is_eased: bool) -> None:
        """Ask less often, as far as all apps are eased: the ends of this one are heard of elsewhere."""
        with self._changed:
            self._schedule.hear_ends(app_id, is_eased, time.monotonic())

    def unsubscribe(self, app_id: str, inbox: Inbox) -> None:
        """Stop giving answers to `inbox`; no-op if it gets none. The last one to leave ends the thread."""
        with self._changed:
            self._schedule.remove(app_id, inbox)
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, which may hang in a request; no-op while somebody is subscribed."""
        thread = self._thread
        if thread is not None and not self._schedule.apps and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                asked, is_round = self._wait()
                if not self._schedule.apps:
                    self._thread = None
                    return
                self._asking_since = began = time.monotonic()
            answers = poll_many(self._scheduler, asked)
            self._asking_since = None
            is_down = any(map(_is_outage, answers.values())) or all(
                isinstance(answer, SchedulerRejectedError | AppUnavailableError) for answer in answers.values()
            )
            with self._changed:
                self._schedule.note(answers, began, time.monotonic(), is_round=is_round, is_down=is_down)
                apps = self._schedule.apps
                calls = [
                    (inbox, answers[app_id]) for app_id in asked if app_id in apps for inbox in apps[app_id].inboxes
                ]
            for inbox, answer in calls:
                try:
                    inbox(answer)
                except Exception:
                    # The others of the scheduler still want their answers.
                    log.exception("a follower failed at the state of its app")

    def _wait(self) -> tuple[list[str], bool]:
        """Return the apps to ask for, as soon as there are some, and whether they are all; none: nobody is left."""
        while self._schedule.apps:
            now = time.monotonic()
            if (left_s := self._schedule.next_at() - now) > 0:
                self._changed.wait(left_s)
                continue
            asked, is_round = self._schedule.take(now)
            if asked:
                return asked, is_round
        return [], False
