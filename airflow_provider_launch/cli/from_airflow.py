"""Requests of commands to Airflow, and `launch dryrun`; no other module of this room imports it."""

from __future__ import annotations

import argparse
import contextlib
import io
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.connections.definition import UNUSED_FIELDS, Definition
from airflow_provider_launch.specs.errors import InvalidAppError, SchedulerUnavailableError

if TYPE_CHECKING:
    from airflow_provider_launch.cli.output import Output


def find_in_airflow(conn_id: str) -> Definition | None:
    """Return a connection of Airflow's secrets backends or database; None if there is none."""
    from airflow_provider_launch._airflow import AirflowNotFoundException
    from airflow_provider_launch.hooks.connections import find_connection

    try:
        found = find_connection(conn_id)
    except AirflowNotFoundException:
        return None
    except Exception as error:
        raise SchedulerUnavailableError(
            f"connection {conn_id!r} is not defined in this shell, and Airflow cannot be asked: {error}"
        ) from error
    unused = {name: getattr(found, name) for name in UNUSED_FIELDS}
    return Definition(conn_id, str(found.conn_type), found.extra, unused, "Airflow")


def aws_clients(options: Any) -> Any:
    """Return the clients of the AWS connection of Airflow that `aws_conn_id` names."""
    from airflow_provider_launch.hooks.aws_batch import clients_of_aws_connection

    return clients_of_aws_connection(options)


def task_of(dag_id: str, task_id: str, file: str | None) -> Any:
    """Return the operator of a DAG file, or without `file` of the DAGs folder.

    Raises:
        InvalidAppError: there is no such DAG or task, or the file cannot be imported; the text has the error.
    """
    from airflow_provider_launch._airflow import dag_bag

    found = dag_bag(file)
    dag = found.dags.get(dag_id)
    if dag is None:
        errors = "".join(f"\n{path}: {text.strip()}" for path, text in found.import_errors.items())
        known = ", ".join(sorted(found.dags)) or "none"
        raise InvalidAppError(f"there is no DAG {dag_id!r} in {file or 'the DAGs folder'}; found: {known}{errors}")
    if not dag.has_task(task_id):
        raise InvalidAppError(f"DAG {dag_id!r} has no task {task_id!r}; it has {', '.join(sorted(dag.task_dict))}")
    return dag.get_task(task_id)


def dryrun(options: argparse.Namespace, output: Output) -> int:
    """Print the request that a task would send."""
    shown = io.StringIO()
    # DAG files print, and stdout is for the request only.
    with contextlib.redirect_stdout(shown):
        task = task_of(options.dag, options.task, options.file)
    if shown.getvalue():
        output.note(shown.getvalue().rstrip())
    if not hasattr(task, "launch_conn_id") or not hasattr(task, "dry_run"):
        raise InvalidAppError(f"task {options.task!r} is a {type(task).__name__}, which launches no app")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        task.dry_run()
    text = shown.getvalue().rstrip("\n")
    if output.as_json:
        output.document({"dag_id": options.dag, "task_id": options.task, "request": text})
    else:
        output.data(text)
    return 0
