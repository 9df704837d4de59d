"""`launch dryrun`: the request of a task of a DAG."""

from __future__ import annotations

import argparse
import contextlib
import io
from typing import TYPE_CHECKING

from airflow_provider_launch.specs.errors import InvalidAppError

if TYPE_CHECKING:
    from airflow_provider_launch.cli.output import Output


def dryrun(options: argparse.Namespace, output: Output) -> int:
    """Print the request that a task would send."""
    from airflow_provider_launch.cli.from_airflow import task_of

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
