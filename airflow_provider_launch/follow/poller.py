"""Polling the states of many apps with one request."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.follow.poll_schedule import OnAnswer, PollSchedule
from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler
from airflow_provider_launch.schedulers.responses import Answer, describe_each
from airflow_provider_launch.specs.errors import AppUnavailableError, SchedulerRejectedError, is_outage

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)


def poll_many(scheduler: Scheduler[Any], app_ids: Iterable[str]) -> dict[str, Answer]:
    """Poll all apps with one call; errors are returned as answers and never raised.

    A follower raises the error of its app on its own thread.
    """

    def describe(ids: list[str]) -> dict[str, DescribeAppResponse | None]:
        found = scheduler.describe_many(ids)
        return {app_id: _checked(found.get(app_id), scheduler) for app_id in ids}

    return describe_each(describe, app_ids)


def _checked(answer: DescribeAppResponse | None, scheduler: Scheduler[Any]) -> DescribeAppResponse | None:
    """Return the answer, or raise an error if a plug-in left out its lists."""
    if answer is not None:
        lists: tuple[object, ...] = answer.roles, answer.roles_statuses
        if None in lists:
            raise TypeError(
                f"the scheduler {scheduler.backend!r} describes app {answer.app_id!r} with None for its roles or their "
                f"states; fix the plug-in: `describe` must set roles and roles_statuses to lists, which may be empty"
            )
    return answer


class Poller:
    """Serves any number of followers of one scheduler with one `describe_many` per interval.

    A round polls all apps; between rounds single apps may be polled. The one thread of the poller lives while there are
    followers. It calls their callbacks, which must not block.

    Args:
        scheduler: where the apps run.
        interval_s: seconds between two rounds. None: the scheduler's `poll_interval_s`, with more frequent polls of
            recently changed apps.
        is_notified: whether the caller calls `poll_now` when an app ends, so that new apps need no frequent polls.
    """

    def __init__(
        self, scheduler: Scheduler[Any], interval_s: float | None = None, *, is_notified: bool = False
    ) -> None:
        self._scheduler = scheduler
        given_s = scheduler.poll_interval_s if interval_s is None else interval_s
        self._schedule = PollSchedule(given_s, adapts=interval_s is None)
        self._is_notified = is_notified
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._request_started_at: float | None = None

    @property
    def interval_s(self) -> float:
        """Seconds between two rounds, unless a follower wants a shorter interval."""
        return self._schedule.interval_s

    @property
    def request_started_at(self) -> float | None:
        """When the current request started (monotonic clock); None if no request is running."""
        return self._request_started_at

    def followed(self) -> set[str]:
        """Return the apps that have followers."""
        with self._changed:
            return {*self._schedule.apps}

    def subscribe(self, app_id: str, callback: OnAnswer, interval_s: float | None = None) -> None:
        """Call `callback` with each answer about the app from now on; the first poll starts now.

        Args:
            app_id: the app.
            callback: called with each answer.
            interval_s: maximum seconds between two polls; all followers share the shortest interval.
        """
        with self._changed:
            self._schedule.add(app_id, callback, interval_s, time.monotonic(), is_new=not self._is_notified)
            if self._thread is None:
                name = f"launch-status-{self._scheduler.backend}-{app_id}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def poll_now(self, app_id: str) -> None:
        """Poll this app now; no-op if it has no follower."""
        with self._changed:
            self._schedule.want(app_id, time.monotonic())
            self._changed.notify_all()

    def on_end_reported(self, app_id: str) -> None:
        """Poll this app soon and a few times more, because a replica has ended and the state may follow late."""
        with self._changed:
            self._schedule.recheck(app_id, time.monotonic())
            self._changed.notify_all()

    def set_ends_reported(self, app_id: str, is_reported: bool) -> None:
        """Set whether a log stream reports the end of this app. If this is so for all apps, rounds are rare."""
        with self._changed:
            self._schedule.set_ends_reported(app_id, is_reported, time.monotonic())

    def unsubscribe(self, app_id: str, callback: OnAnswer) -> None:
        """Remove a follower of the app; no-op if it is not one. The thread ends after the last follower."""
        with self._changed:
            self._schedule.remove(app_id, callback)
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, which may hang in a request; no-op while there are followers."""
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
                self._request_started_at = started_at = time.monotonic()
            answers = poll_many(self._scheduler, asked)
            self._request_started_at = None
            is_down = any(map(is_outage, answers.values())) or all(
                isinstance(answer, SchedulerRejectedError | AppUnavailableError) for answer in answers.values()
            )
            with self._changed:
                self._schedule.note(answers, started_at, time.monotonic(), is_round=is_round, is_down=is_down)
                apps = self._schedule.apps
                calls = [
                    (callback, answers[app_id])
                    for app_id in asked
                    if app_id in apps
                    for callback in apps[app_id].callbacks
                ]
            for callback, answer in calls:
                try:
                    callback(answer)
                except Exception:
                    # Continue with the other followers.
                    log.exception("a follower failed to process the state of its app")

    def _wait(self) -> tuple[list[str], bool]:
        """Wait until apps are due; return them, and whether this is a round. Empty if no follower is left."""
        while self._schedule.apps:
            now = time.monotonic()
            if (left_s := self._schedule.next_at() - now) > 0:
                self._changed.wait(left_s)
                continue
            asked, is_round = self._schedule.take(now)
            if asked:
                return asked, is_round
        return [], False
