"""The app of earlier tries without a record in Airflow: before 3.3, or launched before an upgrade to 3.3.

The id of an app is a function of its task and the number of the try, so a try can ask the scheduler for the apps of
all earlier tries. Airflow's counts at the launch, which show a later clear, are stored with the app.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.follow.state_tracker import is_waiting
from airflow_provider_launch.hooks.task_states import deployment_id
from airflow_provider_launch.operators._record import Record
from airflow_provider_launch.specs.owner import COUNTS, DEPLOYMENT, OWNER, TaskKey, owner_of, task_of
from airflow_provider_launch.specs.states import is_terminal
from airflow_provider_launch.util.untrusted import UntrustedError, parse_json

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_launch._task.task_run import OutageRetry
    from airflow_provider_launch.hooks.launch import LaunchHook
    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.schedulers.api import Scheduler
    from airflow_provider_launch.schedulers.responses import DescribeAppResponse, ListAppResponse
    from airflow_provider_launch.specs.roles import AppDef
    from airflow_provider_launch.specs.states import AppState

_MOST_TRIES = 200
"""Tries whose apps are searched, the latest ones; each has an id in one request."""
_MOST_TEXT = 200
_UNKNOWN = (-1, -1, -1, 0.0)


def with_counts(app: AppDef, context: Context, retries: int | None, now: float) -> AppDef:
    """Return the app with Airflow's counts in its owner, if this Airflow has no task state store."""
    if context.get("task_state_store") is not None:
        return app
    counts = [_clear_number(context), _max_tries(context), int(retries or 0), round(now, 3)]
    owner = {**app.metadata.get(OWNER, {}), COUNTS: json.dumps(counts)}
    return dataclasses.replace(app, metadata={**app.metadata, OWNER: owner})


def _counts_of(owner: Mapping[str, str]) -> tuple[int, int, int, float]:
    """Return clear number, limit of tries, retries and epoch seconds at the launch; -1 and 0: unknown."""
    try:
        found = parse_json(owner.get(COUNTS, "null"), _MOST_TEXT)
    except UntrustedError:
        return _UNKNOWN
    if not isinstance(found, list) or len(found) != len(_UNKNOWN):
        return _UNKNOWN
    if not all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in found):
        return _UNKNOWN
    return int(found[0]), int(found[1]), int(found[2]), float(found[3])


def _clear_number(context: Context) -> int:
    return int(getattr(context["dag_run"], "clear_number", 0) or 0)


def _max_tries(context: Context) -> int:
    return int(getattr(context["ti"], "max_tries", -1))


class EarlierApps:
    """Finds the apps of earlier tries of one task in its scheduler.

    Args:
        operator: the task of the DAG, rendered.
        context: of the task.
        hook: reaches the scheduler.
        retry: calls the scheduler, retrying during an outage.
        id_of: returns the id of the app of an attempt, which is the number of the try less 1.
        await_end: waits for the end of an app for a limited time; None: it has not ended.
    """

    def __init__(
        self,
        operator: LaunchAppOperator,
        context: Context,
        hook: LaunchHook,
        retry: OutageRetry,
        id_of: Callable[[int], str],
        await_end: Callable[[Record], AppState | None],
    ) -> None:
        self._op = operator
        self._context = context
        self._hook = hook
        self._retry = retry
        self._id_of = id_of
        self._await_end = await_end

    @property
    def _scheduler(self) -> Scheduler[Any]:
        return self._hook.scheduler

    def find(self) -> tuple[Record | None, list[Record]]:
        """Return the record of the newest app of this task, as a store would have it, and apps that must end.

        Waits if the app may be ending: a worker that was killed cancels its app, and cannot leave a note about it.
        """
        tries = int(self._context["ti"].try_number) - 1
        if tries <= 0:
            return None, []
        ids, answers = self._describe(tries)
        found = sorted((ids[app_id], app_id) for app_id in answers)
        ending = [
            self._record(attempt, app_id, "scheduled")
            for attempt, app_id in found[:-1]
            if not is_terminal(answers[app_id].state)
        ]
        ending += self._from_before_a_clear({*ids, self._id_of(tries)})
        return (self._as_recorded(*found[-1]) if found else None), ending

    def newest(self) -> Record | None:
        """Return the record of the newest app of this try and all earlier ones; None if there is none."""
        ids, answers = self._describe(int(self._context["ti"].try_number))
        found = max(((ids[app_id], app_id) for app_id in answers), default=None)
        return None if found is None else self._record(*found, "scheduled")

    def _describe(self, tries: int) -> tuple[dict[str, int], dict[str, DescribeAppResponse]]:
        """Return the ids of the apps of this many tries, with their attempts, and answers about those that exist."""
        ids = {self._id_of(attempt): attempt for attempt in range(max(0, tries - _MOST_TRIES), tries)}
        answers = self._retry(self._scheduler.describe_many, list(ids))
        return ids, {app_id: answer for app_id, answer in answers.items() if answer is not None}

    def _as_recorded(self, attempt: int, app_id: str) -> Record | None:
        context, record = self._context, self._record(attempt, app_id, "scheduled")
        # An answer about many apps may lack what was stored with the app.
        answer = self._retry(self._scheduler.describe, app_id)
        if answer is None:
            return None
        owner: Mapping[str, str] = owner_of(answer.metadata)
        if COUNTS not in owner:
            # A scheduler of a plug-in may show the owner only in its list.
            owner = next((row.owner for row in self._rows() if row.app_id == app_id), {})
        clear_number, max_tries, retries, since = _counts_of(owner)
        record = dataclasses.replace(record, since=since, max_tries=max_tries, retries=retries)
        if max_tries not in (-1, _max_tries(context)):
            # Only a clear changes the limit of tries, and Airflow 3.1 does not count the clears of a running run.
            return dataclasses.replace(record, clear_number=-1)
        record = dataclasses.replace(record, clear_number=_clear_number(context) if clear_number < 0 else clear_number)
        if is_terminal(answer.state):
            return record
        if self._op.kill_policy != "leave":
            self._op.log.info(
                "app %s of an earlier try is %s; waiting for up to `[launch] replace_wait_s`, because a kill may be "
                "ending it, which Airflow before 3.3 does not record",
                app_id, answer.state,
            )  # fmt: skip
            if self._await_end(record) is not None:
                return record
        answer = self._retry(self._scheduler.describe, app_id)
        # An app that has not started may not be submitted completely: submitting it again completes it.
        is_partial = answer is not None and is_waiting(answer.state)
        return dataclasses.replace(record, state="intent" if is_partial else "scheduled")

    def _from_before_a_clear(self, known: set[str]) -> list[Record]:
        """Return running apps from before a clear of the finished run: it gave the run another start, and new ids."""
        if not _clear_number(self._context):
            return []
        deployment = deployment_id()
        if not deployment:
            return []
        task = TaskKey.of(self._context["ti"])
        return [
            self._record(0, row.app_id, "scheduled")
            for row in self._rows()
            if row.app_id not in known
            and not is_terminal(row.state)
            and row.owner.get(DEPLOYMENT) == deployment
            and task_of(row.owner) == task
        ]

    def _rows(self) -> list[ListAppResponse]:
        return self._retry(self._scheduler.list)

    def _record(self, attempt: int, app_id: str, state: str) -> Record:
        return Record(attempt, app_id, "", self._hook.options.identity, -1, state)
