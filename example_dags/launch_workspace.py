"""Code next to the DAG file runs in the app, and its results reach the next task.

`workspace="launch_workspace"` is a folder next to this file. When the task runs, the replicas get a copy of it in their
working directory. On Docker or Kubernetes it becomes an image; only connection and image change. The script records an
artifact and a number, which are in the result of the task.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Resource, Role

with DAG("launch_workspace", schedule=None, catchup=False, doc_md=__doc__, tags=["launch", "example"]):
    fit = LaunchAppOperator(
        task_id="fit",
        app=AppDef(
            name="fit",
            roles=[
                Role(
                    name="fitter",
                    image="",
                    entrypoint="python3",
                    args=["fit_line.py", "points.csv", "{{ run_id }}"],
                    resource=Resource(cpu=1, gpu=0, memMB=256),
                )
            ],
        ),
        workspace="launch_workspace",
        time_limit_s=300,
    )

    @task
    def report(outcome: dict[str, Any]) -> None:
        """Show the records of the run."""
        result = outcome["result"]
        model = result["artifacts"]["model"]
        print(
            f"slope {result['metadata']['slope']:.3f}, model in {model['path']}, {model['metadata']['points']} points"
        )

    report(fit.output)
