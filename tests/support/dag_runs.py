"""Runs the DAGs of a folder on local processes, one after the other: `python -m tests.support.dag_runs FOLDER REPORT`.

The report is JSON: the file of each DAG, its state, the states of its tasks, and their return values. It needs an
Airflow whose database is migrated. DAGs for other schedulers are not run: their requests are made.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.models.xcom import XComModel
from airflow.sdk import DAG
from airflow.utils.session import create_session

from airflow_provider_launch.operators.launch import LaunchAppOperator

LOCAL = "launch_local_default"


def dags_of(file: Path) -> list[DAG]:
    """Return the DAGs of a file."""
    bag = DagBag(dag_folder=str(file), bundle_path=file.parent, bundle_name="dags-folder")
    if bag.import_errors:
        raise ValueError(bag.import_errors)
    # A DAG that takes a handle runs after a DAG that launches.
    return sorted(bag.dags.values(), key=lambda dag: "handle" in dag.params)


def outcome(dag: DAG, handles: list[str]) -> dict[str, Any]:
    """Run a DAG; return its state, those of its tasks, and their return values.

    A DAG with a parameter `handle` gets the last one of `handles`, to which the handles of this run are added.
    """
    run = dag.test(run_conf={"handle": handles[-1]} if "handle" in dag.params else None)
    with create_session() as session:
        query = XComModel.get_many(run_id=run.run_id, key="return_value", dag_ids=dag.dag_id)
        rows = session.execute(query).scalars()
        returned = {f"{row.task_id}[{row.map_index}]": row.value for row in rows}
    handles.extend(value["handle"] for value in returned.values() if isinstance(value, dict) and "handle" in value)
    tasks = {f"{each.task_id}[{each.map_index}]": str(each.state) for each in run.get_task_instances()}
    return {"state": str(run.state), "tasks": tasks, "returned": returned}


def requests(dag: DAG) -> dict[str, Any]:
    """Make the requests of the launching tasks of a DAG, and launch nothing."""
    tasks = [task for task in dag.tasks if isinstance(task, LaunchAppOperator)]
    for task in tasks:
        task.dry_run()
    return {"state": "dry run", "tasks": {task.task_id: "dry run" for task in tasks}, "returned": {}}


def is_local(dag: DAG) -> bool:
    """Whether all apps of a DAG run on local processes."""
    used = {getattr(task, "launch_conn_id", None) or LOCAL for task in dag.tasks}
    return used <= {LOCAL}


def main(folder: Path, report: Path) -> None:
    """Run all DAGs below a folder."""
    found: dict[str, Any] = {}
    handles: list[str] = []
    for file in sorted(folder.rglob("*.py")):
        if "DAG(" not in file.read_text(encoding="utf-8"):
            continue
        sys.stdout.write(f"==== {file.relative_to(folder)}\n")
        sys.stdout.flush()
        try:
            found[str(file.relative_to(folder))] = {
                dag.dag_id: outcome(dag, handles) if is_local(dag) else requests(dag) for dag in dags_of(file)
            }
        except Exception:  # noqa: BLE001 - the other files run all the same
            found[str(file.relative_to(folder))] = {"error": traceback.format_exc()}
    report.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
