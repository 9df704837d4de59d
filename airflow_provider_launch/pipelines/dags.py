"""Makes DAGs of pipeline files and models."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_launch.pipelines import parameters
from airflow_provider_launch.pipelines.document import read_text
from airflow_provider_launch.pipelines.executors import task_limit
from airflow_provider_launch.pipelines.gates import Scope
from airflow_provider_launch.pipelines.ids import dag_id_of, task_id_of
from airflow_provider_launch.pipelines.model import PipelineModel
from airflow_provider_launch.pipelines.problems import PipelineError, Problem
from airflow_provider_launch.pipelines.render import Renderer
from airflow_provider_launch.pipelines.validation import Config, load

PATTERNS = ("*.yaml", "*.yml")


def dag_from_file(
    path: str | Path,
    dag_id: str | None = None,
    *,
    launch_conn_id: str | None = None,
    params: Mapping[str, Any] | None = None,
    config: Config | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """Return the DAG of a pipeline file.

    Args:
        path: of the file; relative to the caller's file.
        dag_id: default is the `name` in the file, else the name of the file.
        launch_conn_id: the connection of the pipeline's executor, unless the file names one.
        params: parameters that override those of the file.
        config: a file, or a mapping, with sections that override those of the file: `executor`, `catalog`,
            `parameters`.
        dag_kwargs: arguments of `DAG`.

    Raises:
        PipelineError: with all problems of the file.
    """
    base = _folder_of_caller(sys._getframe(1).f_globals)  # noqa: SLF001 - a path is meant relative to the caller's file
    if isinstance(config, (str, Path)):
        config = base / config
    return dag_from_model(load(base / path, config), dag_id, launch_conn_id=launch_conn_id, params=params, **dag_kwargs)


def load_pipelines(folder: str | Path, namespace: dict[str, Any], **kwargs: Any) -> list[DAG]:
    """Add the DAG of each pipeline file of a folder to a module: `load_pipelines("pipelines", globals())`.

    A file without a `dag` section, such as one with parameters only, is ignored.

    Args:
        folder: relative to the caller's file.
        namespace: the module's `globals()`.
        kwargs: arguments of `dag_from_file`.

    Raises:
        PipelineError: with all problems of all files.
    """
    base = _folder_of_caller(namespace) / folder
    if not base.is_dir():
        raise PipelineError([Problem(f"folder {str(base)!r} does not exist; the path is relative to the caller")])
    dags: list[DAG] = []
    problems: list[Problem] = []
    for path in sorted(found for pattern in PATTERNS for found in base.glob(pattern)):
        with contextlib.suppress(OSError, ValueError):
            # An unreadable file is reported below.
            if "dag:" not in read_text(path):
                continue
        try:
            dag = dag_from_file(path, **kwargs)
        except PipelineError as error:
            problems.extend(error.problems)
            continue
        dags.append(dag)
        namespace[f"pipeline_{task_id_of(dag.dag_id)}"] = dag
    if problems:
        raise PipelineError(problems)
    return dags


def _folder_of_caller(namespace: Mapping[str, Any]) -> Path:
    file = namespace.get("__file__")
    return Path(file).resolve().parent if file else Path.cwd()


def dag_from_model(
    model: PipelineModel,
    dag_id: str | None = None,
    *,
    launch_conn_id: str | None = None,
    params: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """Return the DAG of a pipeline; arguments as in `dag_from_file`."""
    if launch_conn_id is not None:
        config = {"conn_id": launch_conn_id, **model.executor.config}
        model = replace(model, executor=replace(model.executor, config=config))
    values = {**model.parameters, **parameters.from_environment(), **(params or {})}
    # Parameters of the DAG count as declared, as those of the file do.
    model = replace(model, parameters=values)
    settings: dict[str, Any] = {"catchup": False}
    if model.graph.description:
        settings["description"] = model.graph.description
    limit = task_limit(model)
    if limit is not None:
        settings["max_active_tasks"] = limit
    schedule = dag_kwargs.pop("schedule", None)
    settings |= dag_kwargs
    dag = DAG(dag_id or dag_id_of(model.name), schedule=schedule, params=_params(values), **settings)
    with dag:
        Renderer(model).graph(model.graph, Scope(), ())
    return dag


def _params(values: Mapping[str, Any]) -> dict[str, Param]:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return {
        name: value
        if isinstance(value, Param)
        else Param(value, type=["null", kinds[type(value)]])
        if type(value) in kinds
        else Param(value)
        for name, value in values.items()
    }
