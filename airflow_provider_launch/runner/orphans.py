"""Which apps have lost their task: rules about the states that Airflow reports for the owners of living apps.

Ending an app that is wanted is worse than an orphan. So an app is an orphan only if its owner names this deployment,
its policy is not "leave", and Airflow has reported twice that its task is over, or that its run is gone. Everything
else keeps the app: another state, no answer, an empty answer. From the states in `OVER` a task comes back by a clear
alone, and the try after a clear replaces the app, so a race between question and cancel costs nothing.
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
"""States of a task instance that wants its app no more. `queued`, `scheduled` and None are not among them: an Airflow
scheduler that dies resets tasks to these, and their next try adopts the app."""
GONE = "gone"
"""Airflow has reported that there is no such run."""
ABSENT = "absent"
"""Airflow knows no such task, which alone proves nothing: a permission, a bug, `airflow db clean`, or a deleted run."""
CONFIRM_S = 20.0
"""Seconds between the two checks: a person may take a mark back, and one answer may be wrong."""
_MOST_RUNS = 50_000
"""Runs that are remembered as seen; the oldest are forgotten, and their apps are kept."""


@dataclass(frozen=True)
class Orphan:
    """An app that is alive without a task."""

    app_id: str
    task: TaskKey
    state: str
    """The reported state of the task: one of `OVER`, or `GONE`."""
    since_s: float = 0.0
    """Seconds since the first check that found it."""


@dataclass(frozen=True)
class Findings:
    """What one check found."""

    orphans: list[Orphan] = field(default_factory=list)
    """To be cancelled."""
    unseen: list[Orphan] = field(default_factory=list)
    """Apps whose task Airflow does not know, of runs that this process has never seen: kept and reported, because they
    may belong to the original of a copied database."""
    due_in_s: float | None = None
    """Seconds until the next app may be confirmed; None: none waits for its second found."""


class SeenRuns:
    """Runs that are known to have existed in this Airflow: one that is gone later was deleted. Thread-safe."""

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
    """Remembers what earlier checks found. One for each connection and process; not thread-safe.

    Args:
        deployment: the id of this Airflow; empty: not known, so nothing is an orphan.
        runs: those that this process has seen.
        confirm_s: seconds between the two checks.
    """

    def __init__(self, deployment: str, runs: SeenRuns | None = None, confirm_s: float = CONFIRM_S) -> None:
        self._deployment = deployment
        self._runs = runs or SeenRuns()
        self._confirm_s = confirm_s
        self._first: dict[str, float] = {}  # app id -> time of the first check that found its task over

    @property
    def deployment(self) -> str:
        """The id of this Airflow."""
        return self._deployment

    def wanted(self, rows: Iterable[ListAppResponse]) -> dict[str, TaskKey]:
        """Return the tasks of the living apps that this deployment may end: app id -> task."""
        if not self._deployment:
            return {}
        owned = {
            row.app_id: task_of(row.owner)
            for row in rows
            if not is_terminal(row.state)
            and row.owner.get(DEPLOYMENT) == self._deployment
            and row.owner.get(POLICY, LEAVE) != LEAVE
        }
        return {app_id: task for app_id, task in owned.items() if task is not None}

    def check(self, apps: Mapping[str, TaskKey], states: Mapping[TaskKey, str | None], now: float) -> Findings:
        """Return what is decided after this found.

        Args:
            apps: all that are alive now, as `wanted` gives them.
            states: what Airflow reports for their tasks: a state, None for a task that is to be scheduled, `GONE`,
                `ABSENT`. A task that is missing was not answered for.
            now: seconds on a monotonic clock.
        """
        for task, state in states.items():
            if state not in (GONE, ABSENT):
                self._runs.add(task.dag_id, task.run_id)
        self._first = {app_id: since for app_id, since in self._first.items() if app_id in apps}
        orphans, unseen = [], []
        for app_id, task in apps.items():
            if task not in states:
                continue  # an earlier check still counts
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
        """Start again with these apps, because they were cancelled."""
        for app_id in app_ids:
            self._first.pop(app_id, None)

    def _is_over(self, task: TaskKey, state: str | None) -> bool:
        return state in OVER or (state == GONE and self._runs.has(task.dag_id, task.run_id))
