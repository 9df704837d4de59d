"""States of task instances and the id of this deployment, requested from a worker or a triggerer."""

from __future__ import annotations

import logging
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from airflow_provider_launch._airflow import ask, conf
from airflow_provider_launch.runner.orphans import ABSENT, GONE
from airflow_provider_launch.specs.owner import TaskKey

log = logging.getLogger(__name__)

VARIABLE = "launch_deployment_id"
"""The Airflow Variable with the id of the deployment, unless `[launch] deployment_id` is set."""
_MOST_RUNS, _MOST_TASKS = 100, 1000
"""Limits of runs and tasks in one request."""
_MOST_CHARS = 24 * 1024
"""Limit of the characters of its runs, and of its tasks: Airflow's client refuses a URL of 64 KB."""
_PARAMETER = len("&task_ids=")
_INDEXED = re.compile(r"(.+)_\d+\Z")
_NOT_FOUND = 404


def deployment_id() -> str:
    """Return the id that distinguishes the apps of this Airflow from those of another; empty if unknown.

    It is `[launch] deployment_id`, or a Variable that the first launch writes, followed by the address of the API
    server, because a copy of the database has the same Variable. A triggerer warns if the workers have another address.
    """
    given: str = conf.get("launch", "deployment_id", fallback="")
    if given:
        return given
    try:
        kept = ask(_kept_id)
    except Exception as error:  # noqa: BLE001 - without an id the app is only never cancelled as an orphan
        log.warning("Variable %r could not be read (%s): an app that loses its task is not cancelled", VARIABLE, error)
        return ""
    address: str = conf.get("api", "base_url", fallback="") or ""
    return f"{kept}@{address.rstrip('/')}" if kept else ""


def _kept_id() -> str | None:
    from airflow.sdk import Variable

    kept: str | None = Variable.get(VARIABLE, default=None)
    if not kept:
        Variable.set(VARIABLE, uuid.uuid4().hex, description="Written by airflow-provider-launch; do not change it.")
        # Read again, because another worker may have written it at the same time.
        kept = Variable.get(VARIABLE, default=None)
    return kept


@dataclass(frozen=True)
class Question:
    """One request for the states of tasks of one DAG, for all combinations of tasks and runs."""

    keys: frozenset[TaskKey]

    def arguments(self) -> dict[str, Any]:
        """Return keyword arguments of `RuntimeTaskInstance.get_task_states`; an empty list would mean all."""
        (dag_id,) = {key.dag_id for key in self.keys}
        indices = {key.map_index for key in self.keys}
        return {
            "dag_id": dag_id,
            "run_ids": sorted({key.run_id for key in self.keys}),
            "task_ids": sorted({key.task_id for key in self.keys}),
            # Without it all rows of a mapped task are read, which may be thousands.
            "map_index": next(iter(indices)) if len(indices) == 1 else None,
        }


def questions_for(keys: Collection[TaskKey]) -> Iterator[Question]:
    """Group the tasks into few requests without ambiguous names: index 1 of a mapped `a` is also called `a_1`."""
    by_dag: dict[str, list[TaskKey]] = defaultdict(list)
    for key in sorted(keys):
        by_dag[key.dag_id].append(key)
    for of_dag in by_dag.values():
        for group in _without_clashes({key.task_id for key in of_dag}):
            for tasks in _parts(group, _MOST_TASKS):
                of_tasks = [key for key in of_dag if key.task_id in tasks]
                for runs in _parts({key.run_id for key in of_tasks}, _MOST_RUNS):
                    yield Question(frozenset(key for key in of_tasks if key.run_id in runs))


def _parts(names: set[str], most: int) -> Iterator[set[str]]:
    """Divide names into parts that fit into an address."""
    part: set[str] = set()
    chars = 0
    for name in sorted(names):
        size = len(quote(name, safe="")) + _PARAMETER
        if part and (len(part) == most or chars + size > _MOST_CHARS):
            yield part
            part, chars = set(), 0
        part.add(name)
        chars += size
    if part:
        yield part


def _without_clashes(task_ids: set[str]) -> list[set[str]]:
    groups: list[set[str]] = []
    # Shorter names first, because only a longer name can clash with one in a group.
    for task_id in sorted(task_ids, key=lambda each: (len(each), each)):
        found = _INDEXED.match(task_id)
        free = (group for group in groups if found is None or found[1] not in group)
        group = next(free, None)
        if group is None:
            groups.append(group := set())
        group.add(task_id)
    return groups


def ask_states(
    keys: Collection[TaskKey],
    has_seen: Callable[[str, str], bool] = lambda _dag, _run: False,
    report: Callable[[Exception], object] = lambda _: None,
) -> dict[TaskKey, str | None]:
    """Return the state of each task: a state of Airflow, None, `GONE` or `ABSENT`; unanswered tasks are left out.

    `has_seen` returns whether a run of a DAG has existed; only such runs are checked for deletion. `report` takes the
    error of each failed request.
    """
    states: dict[TaskKey, str | None] = {}
    for question in questions_for(keys):
        try:
            answer = _get_task_states(**question.arguments())
            for key in question.keys:
                of_run = answer.get(key.run_id) or {}
                name = key.task_id if key.map_index < 0 else f"{key.task_id}_{key.map_index}"
                states[key] = of_run.get(name, ABSENT)
        except Exception as error:  # noqa: BLE001 - without an answer the apps are kept
            log.debug("Airflow did not answer for tasks of DAG %r: %s", question.arguments()["dag_id"], error)
            report(error)
    runs = {(key.dag_id, key.run_id) for key, state in states.items() if state == ABSENT}
    gone = {run for run in runs if has_seen(*run) and _is_gone(*run)}
    return {
        key: GONE if state == ABSENT and (key.dag_id, key.run_id) in gone else state for key, state in states.items()
    }


def _get_task_states(**arguments: Any) -> dict[str, dict[str, str | None]]:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return ask(lambda: RuntimeTaskInstance.get_task_states(**arguments))


def _is_gone(dag_id: str, run_id: str) -> bool:
    """Return whether Airflow reports that the run does not exist; a 404 of a proxy does not name the run."""
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    try:
        ask(lambda: RuntimeTaskInstance.get_dagrun_state(dag_id, run_id))
    except AirflowRuntimeError as error:
        detail = error.error.detail or {}
        if detail.get("status_code") != _NOT_FOUND:
            return False
        inner = detail.get("detail")
        inner = inner.get("detail") if isinstance(inner, dict) else None
        return (
            isinstance(inner, dict)
            and inner.get("reason") == "not_found"
            and f"'{run_id}'" in str(inner.get("message"))
        )
    except Exception as error:  # noqa: BLE001 - without an answer the apps are kept
        log.debug("Airflow did not answer for run %r of DAG %r: %s", run_id, dag_id, error)
    return False
