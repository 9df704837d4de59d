"""A replica fails, is restarted by its retry policy, and resumes.

Three replicas work in steps. Replica 1 fails half-way; `RetryPolicy.REPLICA` restarts only this replica, at most
`max_retries` times, while the others continue. It resumes from its checkpoint, so the task succeeds in its first try.
The exit codes of all replicas are in the task's XCom.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Resource, RetryPolicy, Role, macros

with DAG("launch_local_retry", schedule=None, catchup=False, doc_md=__doc__, tags=["launch", "example"]):
    work = LaunchAppOperator(
        task_id="work",
        app=AppDef(
            name="resume",
            roles=[
                Role(
                    name="worker",
                    image=str(Path(__file__).parent),
                    entrypoint="python3",
                    args=[f"{macros.img_root}/launch_resume.py", macros.app_id, macros.replica_id, "6"],
                    env={"LAUNCHED_BY": "{{ run_id }}"},
                    num_replicas=3,
                    max_retries=2,
                    retry_policy=RetryPolicy.REPLICA,
                    resource=Resource(cpu=1, gpu=0, memMB=256),
                )
            ],
        ),
        time_limit_s=300,
    )

    @task
    def report(outcome: dict[str, Any]) -> None:
        """Show the XCom of the operator."""
        print(f"{outcome['handle']} ended as {outcome['state']}; exit codes {outcome['roles']['worker']}")

    report(work.output)
