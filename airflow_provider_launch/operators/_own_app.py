"""Whether a recorded app belongs to a task, because users can edit the record in Airflow's task state store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_launch.hooks.task_states import deployment_id
from airflow_provider_launch.operators._attempt import Record, app_id_for
from airflow_provider_launch.specs.owner import DEPLOYMENT, TaskKey, owner_of, task_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_launch.schedulers.api import DescribeAppResponse


def own_app_id(context: Context, attempt: int) -> str:
    """Return the id of the task's app for this attempt."""
    run = context["dag_run"]
    return app_id_for(**_task_of(context)._asdict(), run_start=str(run.start_date or ""), attempt=attempt)


def is_own(record: Record, context: Context, describe: Callable[[str], DescribeAppResponse | None]) -> bool | None:
    """Return whether the recorded app belongs to the task; None: its id is another one, and it does not exist.

    Args:
        record: of an earlier try.
        context: of the task.
        describe: describes an app; called only if the id is not that of the recorded attempt.
    """
    if record.app_id == own_app_id(context, record.attempt):
        return True
    # A clear may have changed the start of the run, which is part of the id; other schedulers choose the id.
    response = describe(record.app_id)
    if response is None:
        return None
    owner = owner_of(response.metadata)
    return task_of(owner) == _task_of(context) and owner.get(DEPLOYMENT, "") in {"", deployment_id()}


def _task_of(context: Context) -> TaskKey:
    ti = context["ti"]
    return TaskKey(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)
