"""Code beside the DAG file runs in the app, and what it has made reaches the next task.

`workspace="launch_workspace"` is a folder beside this file: the replicas find a copy of it in their working directory,
as it is when the task runs. On Docker or Kubernetes it would become an image, with no other change than connection and
image. The script notes an artifact and a number; both stand in the result of the task.
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
        """Show what the run has noted."""
        result = outcome["result"]
        model = result["artifacts"]["model"]
        print(
            f"slope {result['metadata']['slope']:.3f}, model in {model['path']}, {model['metadata']['points']} points"
        )

    report(fit.output)
