"""Pipelines: DAGs from a file of steps.

    from airflow_provider_launch.pipelines import dag_from_file

    dag = dag_from_file("pipeline.yaml")

Airflow is imported only when a DAG is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_launch.pipelines.dags import dag_from_file, load_pipelines, validate
    from airflow_provider_launch.pipelines.pipeline import Pipeline
    from airflow_provider_launch.pipelines.problems import PipelineError, Problem
    from airflow_provider_launch.pipelines.steps import (
        Conditional,
        Dag,
        Fail,
        Map,
        Parallel,
        Stub,
        Success,
        Task,
        metric,
        pickled,
    )
    from airflow_provider_launch.pipelines.validation import load

__all__ = [
    "Conditional",
    "Dag",
    "Fail",
    "Map",
    "Parallel",
    "Pipeline",
    "PipelineError",
    "Problem",
    "Stub",
    "Success",
    "Task",
    "dag_from_file",
    "load",
    "load_pipelines",
    "metric",
    "pickled",
    "validate",
]

_STEPS = (
    "Conditional",
    "Dag",
    "Fail",
    "Map",
    "Parallel",
    "Stub",
    "Success",
    "Task",
    "metric",
    "pickled",
)
_HOME = {
    **dict.fromkeys(_STEPS, "steps"),
    "Pipeline": "pipeline",
    "PipelineError": "problems",
    "Problem": "problems",
    "dag_from_file": "dags",
    "load_pipelines": "dags",
    "load": "validation",
    "validate": "dags",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
