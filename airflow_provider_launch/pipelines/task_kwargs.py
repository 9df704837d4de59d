"""The arguments of the Airflow task that a step names."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_provider_launch.pipelines.checks import step_path
from airflow_provider_launch.pipelines.gates import Scope
from airflow_provider_launch.pipelines.model import TaskStep
from airflow_provider_launch.pipelines.problems import PipelineError, Problem

_SECONDS = ("execution_timeout", "retry_delay", "max_retry_delay")
_OURS = {
    "task_id": "the name of the step",
    "task_display_name": "the name of the step",
    "app": "'command_type: app'",
    "trigger_rule": "'next' and 'on_failure'",
    "launch_conn_id": "'conn_id' in the executor's config",
    "cfg": "the executor's config",
    "retries": "'max_attempts'",
}


def task_kwargs(step: TaskStep, scope: Scope, limit: int | None = None) -> dict[str, Any]:
    """Return the arguments of the Airflow task that a step names.

    Args:
        step: the task.
        scope: the map around it.
        limit: how many tasks of a run there are at a time, by the pipeline.
    """
    problems = [
        Problem(f"'airflow' has {name!r}, which is set by {_OURS[name]}", replace(step.place, step=step_path(step)))
        for name in step.airflow
        if name in _OURS
    ]
    if problems:
        raise PipelineError(problems)
    kwargs: dict[str, Any] = {
        name: timedelta(seconds=value) if name in _SECONDS and isinstance(value, (int, float)) else value
        for name, value in step.airflow.items()
    }
    if step.max_attempts is not None:
        kwargs["retries"] = step.max_attempts - 1
        kwargs.setdefault("retry_delay", timedelta(seconds=step.retry_delay_s or 0))
    elif step.retry_delay_s is not None:
        kwargs["retry_delay"] = timedelta(seconds=step.retry_delay_s)
    limits = [one for one in (limit, scope.parallelism) if one is not None]
    if scope.group and limits:
        # The limit of the DAG does not count tasks that are deferred; this one does.
        kwargs.setdefault("max_active_tis_per_dagrun", min(limits))
    return kwargs
