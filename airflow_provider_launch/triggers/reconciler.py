"""Cancels running apps of this Airflow whose tasks are over, for example because a worker died."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_launch._task import metrics
from airflow_provider_launch.hooks.task_states import ask_states, deployment_id
from airflow_provider_launch.runner.orphans import Findings, Orphan, OrphanFinder, SeenRuns
from airflow_provider_launch.specs.handles import make_app_handle
from airflow_provider_launch.specs.owner import DEPLOYMENT, task_of
from airflow_provider_launch.triggers.helpers import Helpers

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.responses import ListAppResponse
    from airflow_provider_launch.specs.owner import TaskKey
    from airflow_provider_launch.triggers.connections import Connections, Shared

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
SOON_S = 2.0
"""Seconds from the end of a trigger to an early round, because a task that ended then may never have had a trigger."""
PAUSE_S = 10.0
"""Shortest pause between early rounds in seconds, because a thousand triggers may end at once."""
USED_FOR_S = 3600.0
"""A connection is watched for this many seconds after the start of its last trigger."""
_ROUND_S = 10.0
"""Seconds that a round waits for a connection; later rounds skip a connection that hangs until it answers."""
_NAMED = 5


@dataclass
class _Watched:
    conn_id: str
    used_at: float
    due_at: float
    finder: OrphanFinder | None = None
    is_warned: bool = False
    """Whether a warning was logged that workers use another deployment id."""
    is_busy: bool = False
    """It is being checked."""


class Reconciler:
    """Compares the running apps of each connection with the states of their tasks, once a minute.

    Has one daemon thread for a process while connections are watched, and one for each connection while it is checked.
    A round costs a list of apps and a few requests to Airflow.

    Args:
        connections: the connections in use.
        interval_s: seconds between two rounds. 0: no rounds.
        ask: returns the states of tasks.
        deployment: returns the id of this Airflow.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        connections: Connections,
        interval_s: float = INTERVAL_S,
        *,
        ask: Callable[[Collection[TaskKey], Callable[[str, str], bool]], Mapping[TaskKey, str | None]] = ask_states,
        deployment: Callable[[], str] = deployment_id,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self._interval_s = interval_s
        self._ask = ask
        self._deployment = deployment
        self._clock = clock
        self._runs = SeenRuns()
        self._watched: dict[str, _Watched] = {}
        self._thread: threading.Thread | None = None
        self._helpers = Helpers("launch-reconciler-check", 1)
        self._asking = threading.Lock()
        """Limits requests to Airflow to one at a time."""
        self._changed = threading.Condition()
        self._early_at: float | None = None
        self._last_round_at = -float("inf")

    def see_run(self, dag_id: str, run_id: str) -> None:
        """Record that a run exists, because one of its triggers has started."""
        self._runs.add(dag_id, run_id)

    def use(self, conn_id: str) -> None:
        """Watch the apps of a connection from now on."""
        if self._interval_s <= 0:
            return
        now = self._clock()
        with self._changed:
            watched = self._watched.get(conn_id)
            if watched is None:
                watched = self._watched[conn_id] = _Watched(conn_id, now, now + self._interval_s)
            watched.used_at = now
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="launch-reconciler", daemon=True)
                self._thread.start()
            else:
                self._changed.notify()

    def check_soon(self, conn_id: str | None) -> None:
        """Start the next round early, because Airflow ended a trigger of this connection."""
        if conn_id is not None:
            self.use(conn_id)
        now = self._clock()
        with self._changed:
            self._early_at = self._early_at or max(now + SOON_S, self._last_round_at + PAUSE_S)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._watched:
                    self._thread = None
                    return
                while (wait_s := self._wait_s()) > 0:
                    self._changed.wait(min(wait_s, self._interval_s))
            # If a round fails, the next one checks again.
            with contextlib.suppress(Exception):
                self.run_round()

    def _wait_s(self) -> float:
        due = [watched.due_at for watched in self._watched.values() if not watched.is_busy]
        if self._early_at is not None and self._watched:
            due.append(self._early_at)
        return min(due, default=self._clock() + self._interval_s) - self._clock()

    def run_round(self) -> None:
        """Check each connection that is due."""
        now = self._clock()
        with self._changed:
            is_early = self._early_at is not None and self._early_at <= now
            if is_early:
                self._early_at = None
            self._last_round_at = now
            left = [conn_id for conn_id, each in self._watched.items() if now - each.used_at >= USED_FOR_S]
            for conn_id in left:
                del self._watched[conn_id]
            due = [
                watched
                for watched in self._watched.values()
                if not watched.is_busy and (is_early or watched.due_at <= now)
            ]
        for conn_id in left:
            # Otherwise the last value would stay in the metrics.
            metrics.gauge("orphans_unseen", 0, conn_id=conn_id)
        started = {self._start(watched): watched.conn_id for watched in due}
        for future in wait(started, _ROUND_S).not_done:
            # Rounds skip it until it has answered, and nothing else reports that.
            log.warning(
                "connection %r has not answered for %.0f s: its apps will be compared with their tasks once it does",
                started[future], _ROUND_S,
            )  # fmt: skip

    def _start(self, watched: _Watched) -> Future[None]:
        done: Future[None] = Future()
        watched.is_busy = True

        def work() -> None:
            found = Findings()
            try:
                found = self._check(watched)
            except Exception as error:  # noqa: BLE001 - without an answer the apps are kept
                log.warning("the apps of connection %r were not compared with their tasks: %s", watched.conn_id, error)
            next_s = self._interval_s if found.due_in_s is None else min(self._interval_s, found.due_in_s)
            with self._changed:
                # At least `SOON_S`, so that undecided apps do not make rounds too frequent.
                watched.due_at = self._clock() + max(next_s, SOON_S)
                watched.is_busy = False
                self._changed.notify()
            done.set_result(None)

        self._helpers.submit(work, watched.conn_id)
        return done

    def _check(self, watched: _Watched) -> Findings:
        shared = self._connections.join(watched.conn_id)
        try:
            finder = watched.finder
            if finder is None:
                with self._asking:
                    deployment = self._deployment()
                if not deployment:
                    return Findings()
                finder = watched.finder = OrphanFinder(deployment, self._runs)
            scheduler = shared.for_kills()
            rows = scheduler.list()
            self._warn_of_another_id(watched, finder.deployment, rows, shared.poller.followed())
            apps = finder.wanted(rows)
            found = finder.check(apps, self._states({*apps.values()}), self._clock())
            ended = [orphan.app_id for orphan in found.orphans if self._end(shared, watched.conn_id, orphan)]
            finder.forget(ended)
            self._report_unseen(watched.conn_id, found.unseen)
        finally:
            self._connections.leave(shared)
        return found

    def _states(self, tasks: Collection[TaskKey]) -> Mapping[TaskKey, str | None]:
        if not tasks:
            return {}
        with self._asking:
            return self._ask(tasks, self._runs.has)

    def _warn_of_another_id(
        self, watched: _Watched, deployment: str, rows: Collection[ListAppResponse], followed: Collection[str]
    ) -> None:
        """Warn once if an app that a trigger of this process follows has another deployment id.

        Its task is in the database of this triggerer, so a worker has launched it under another id. Such apps are never
        cancelled, because they might belong to the original of a copied database.
        """
        for row in rows:
            task, other = task_of(row.owner), row.owner.get(DEPLOYMENT, "")
            if watched.is_warned or not other or other == deployment or row.app_id not in followed:
                continue
            if task is not None and self._runs.has(task.dag_id, task.run_id):
                watched.is_warned = True
                log.warning(
                    "app %s of connection %r was launched for deployment %r, but this triggerer, which follows it, "
                    "belongs to deployment %r: apps of this connection that lose their tasks are not cancelled; give "
                    "workers and triggerers the same [launch] deployment_id, or the same [api] base_url",
                    row.app_id, watched.conn_id, other, deployment,
                )  # fmt: skip

    def _end(self, shared: Shared, conn_id: str, orphan: Orphan) -> bool:
        handle = make_app_handle(shared.options.backend, conn_id, orphan.app_id)
        try:
            shared.for_kills().cancel(orphan.app_id)
        except Exception as error:  # noqa: BLE001 - logged, and tried again in the next round
            log.error("%s has lost its task (%s) and could not be cancelled: %s", handle, _why(orphan), error)  # noqa: TRY400 - the text is enough
            return False
        log.warning("%s has lost its task and is cancelled: %s", handle, _why(orphan))
        metrics.count("orphans", backend=shared.options.backend, reason=orphan.state)
        metrics.count_cancelled(shared.options.backend)
        return True

    @staticmethod
    def _report_unseen(conn_id: str, unseen: list[Orphan]) -> None:
        metrics.gauge("orphans_unseen", len(unseen), conn_id=conn_id)
        if unseen:
            names = ", ".join(orphan.app_id for orphan in unseen[:_NAMED])
            more = f" and {len(unseen) - _NAMED} more" if len(unseen) > _NAMED else ""
            log.error(
                "%d running app(s) of connection %r name tasks that this Airflow does not know, in runs that it has "
                "not seen; they are kept, because they may belong to the original of a copied database: %s%s",
                len(unseen), conn_id, names, more,
            )  # fmt: skip


def _why(orphan: Orphan) -> str:
    task = orphan.task
    index = "" if task.map_index < 0 else f"[{task.map_index}]"
    state = "the run was deleted" if orphan.state == "gone" else f"task {task.task_id}{index} is {orphan.state}"
    return f"{state} for {orphan.since_s:.0f} s or more (DAG {task.dag_id}, run {task.run_id})"
