"""Find apps that have lost their task, from the states that Airflow reports for the owners of running apps.

Cancelling an app that is still needed is worse than an orphan. So an app is an orphan only if its owner is in this
deployment, its policy is not "leave", and Airflow has reported twice that its task is over, or that its run is gone.
In all other cases the app is kept: another state, no answer, an empty answer. A task leaves the states in `OVER` only
when it is cleared, and the try after a clear replaces the app, so a race between query and cancel does no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_launch.specs.owner import DEPLOYMENT, LEAVE, POLICY, TaskKey, task_of
from airflow_provider_launch.specs.states import is_terminal

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.responses import ListAppResponse

OVER = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
"""States of a task instance that no longer needs its app. `queued`, `scheduled` and None are not included: a scheduler
of Airflow that dies resets tasks to these, and their next try adopts the app."""
GONE = "gone"
"""Airflow has reported that the run does not exist."""
ABSENT = "absent"
"""Airflow has no such task. This alone proves nothing: a permission, a bug, `airflow db clean`, or a deleted run."""
CONFIRM_S = 20.0
"""Seconds between the two checks: a user may undo a mark, and one answer may be wrong."""
_MOST_RUNS = 50_000
"""Runs remembered as seen; the oldest ones are forgotten, and their apps are kept."""


@dataclass(frozen=True)
class Orphan:
    """A running app without a task."""

    app_id: str
    task: TaskKey
    state: str
    """The reported state of the task: one of `OVER`, or `GONE`."""
    since_s: float = 0.0
    """Seconds since the first check that found it without a task."""


@dataclass(frozen=True)
class Findings:
    """The results of one check."""

    orphans: list[Orphan] = field(default_factory=list)
    """Apps to cancel."""
    unseen: list[Orphan] = field(default_factory=list)
    """Apps whose task Airflow does not have, of runs that this process has never seen: kept and reported, because they
    may belong to the original of a copied database."""
    due_in_s: float | None = None
    """Seconds until the next app may be confirmed; None if no app waits for its second check."""


class SeenRuns:
    """Runs that existed in this Airflow; if such a run is gone later, it was deleted. Thread-safe."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], None] = {}  # the latest last
        self._mutex = threading.Lock()

    def add(self, dag_id: str, run_id: str) -> None:
        """Remember that this run exists."""
        with self._mutex:
            self._runs.pop((dag_id, run_id), None)
            self._runs[dag_id, run_id] = None
            while len(self._runs) > _MOST_RUNS:
                del self._runs[next(iter(self._runs))]

    def has(self, dag_id: str, run_id: str) -> bool:
        """Return whether the run was seen."""
        return (dag_id, run_id) in self._runs


class OrphanFinder:
    """Keeps the results of earlier checks. Use one for each connection and process; not thread-safe.

    With an empty id of the `deployment` no app is an orphan. `runs` are those that this process has seen, and
    `confirm_s` are the seconds between the two checks.
    """

    def __init__(self, deployment: str, runs: SeenRuns | None = None, confirm_s: float = CONFIRM_S) -> None:
        self._deployment = deployment
        self._runs = runs or SeenRuns()
        self._confirm_s = confirm_s
        self._first: dict[str, float] = {}  # app id -> time of the first check that found its task over

    @property
    def deployment(self) -> str:
        """The id of this Airflow deployment."""
        return self._deployment

    def wanted(self, rows: Iterable[ListAppResponse]) -> dict[str, TaskKey]:
        """Return the running apps that this deployment may cancel, with their tasks: app id -> task."""
        if not self._deployment:
            return {}
        owned = {
            row.app_id: task_of(row.owner)
            for row in rows
            if not is_terminal(row.state)
            and row.owner.get(DEPLOYMENT) == self._deployment
            and row.owner.get(POLICY, LEAVE) != LEAVE
        }
        # Any user of the engine can write a label.
        return {app_id: task for app_id, task in owned.items() if task is not None and task.can_be_queried}

    def check(self, apps: Mapping[str, TaskKey], states: Mapping[TaskKey, str | None], now: float) -> Findings:
        """Return the orphans and the undecided apps after this check.

        `apps` are all running ones, as returned by `wanted`. `states` are those that Airflow reports for their tasks: a
        state, None for a task to be scheduled, `GONE`, `ABSENT`; a missing task means that there was no answer for it.
        """
        for task, state in states.items():
            if state not in (GONE, ABSENT):
                self._runs.add(task.dag_id, task.run_id)
        self._first = {app_id: since for app_id, since in self._first.items() if app_id in apps}
        orphans, unseen = [], []
        for app_id, task in apps.items():
            if task not in states:
                continue  # the result of an earlier check still counts
            state = states[task]
            if state == ABSENT and not self._runs.has(task.dag_id, task.run_id):
                unseen.append(Orphan(app_id, task, ABSENT))
            if not self._is_over(task, state):
                self._first.pop(app_id, None)
                continue
            since_s = now - self._first.setdefault(app_id, now)
            if since_s >= self._confirm_s:
                orphans.append(Orphan(app_id, task, str(state), since_s))
        due = [self._confirm_s - (now - since) for since in self._first.values()]
        return Findings(orphans, unseen, min((seconds for seconds in due if seconds > 0), default=None))

    def forget(self, app_ids: Collection[str]) -> None:
        """Discard the results of these apps, because they were cancelled."""
        for app_id in app_ids:
            self._first.pop(app_id, None)

    def _is_over(self, task: TaskKey, state: str | None) -> bool:
        return state in OVER or (state == GONE and self._runs.has(task.dag_id, task.run_id))
