"""Imports what a small task needs in Airflow's scheduler, so that the tasks of LocalExecutor do not import it.

LocalExecutor forks each task process from the scheduler. Airflow loads this plug-in in all of its processes; in the
others it imports nothing.
"""

from __future__ import annotations

import importlib
import multiprocessing
import sys
from pathlib import Path

from airflow_provider_launch._airflow import AirflowPlugin, conf

MODULES = (
    "_task.errors",
    "_task.follow_app",
    "hooks.local",
    "operators._data",
    "operators._run",
    "operators._sources",
    "operators._written",
    "pipelines.apps",
    "pipelines.attempt",
    "pipelines.dags",
    "pipelines.shell",
    "schedulers.local.scheduler",
)
"""With their own imports they are all modules that a step on local processes needs; none imports a client library."""


class LaunchPlugin(AirflowPlugin):
    """The plug-in, which adds nothing to Airflow."""

    name = "launch"

    @classmethod
    def on_load(cls, *_args: object, **_kwargs: object) -> None:
        """Import the modules if task processes will be forked from this process."""
        if forks_tasks():
            for module in MODULES:
                importlib.import_module(f"airflow_provider_launch.{module}")
            _parse_small_pipeline()


def _parse_small_pipeline() -> None:
    """Build what the first parse of a pipeline builds: the validators of its fields and of the options."""
    from airflow_provider_launch.pipelines.dags import dag_from_model
    from airflow_provider_launch.pipelines.validation import load_document

    step = {"type": "task", "command_type": "shell", "command": "true", "next": "success"}
    model = load_document({"dag": {"start_at": "step", "steps": {"step": step}}}, Path(), "preload")
    dag_from_model(model, auto_register=False)


def forks_tasks() -> bool:
    """Return whether this process is a scheduler whose LocalExecutor forks."""
    return (
        sys.argv[1:2] == ["scheduler"]
        and multiprocessing.parent_process() is None
        and multiprocessing.get_start_method() == "fork"
        and "LocalExecutor" in conf.get("core", "executor", fallback="")
    )
