"""A head with workers that never end: the app succeeds when its leader succeeds.

The head distributes work to three workers, which never end. With `success_policy="leader"` the app succeeds when
replica 0 of the first role succeeds, and the workers are then stopped. Ray, Dask and Spark work like this: a head runs
the program, and workers serve it.

The program is in the same folder and is passed as an argument, so any image with python3 can run it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Resource, Role, macros

IMAGE = "launch-python:local"
PROGRAM = macros.escape((Path(__file__).parent / "launch_leader_program.py").read_text(encoding="utf-8"))
SIZE = Resource(cpu=0, gpu=0, memMB=64)

with DAG("launch_kubernetes_leader", schedule=None, catchup=False, doc_md=__doc__, tags=["launch", "example"]):
    integrate = LaunchAppOperator(
        task_id="integrate",
        launch_conn_id="launch_kubernetes_default",
        app=AppDef(
            name="pi",
            roles=[
                Role(
                    name="head",
                    image=IMAGE,
                    entrypoint="python3",
                    args=["-c", PROGRAM, "head"],
                    port_map={"work": 0},
                    resource=SIZE,
                ),
                Role(
                    name="worker",
                    image=IMAGE,
                    entrypoint="python3",
                    args=["-c", PROGRAM, "work", macros.rank0_env],
                    num_replicas=3,
                    resource=SIZE,
                ),
            ],
        ),
        time_limit_s=300,
        cfg={"success_policy": "leader", "run_as_user": 65532, "grace_s": 1},
    )

    @task
    def compare(outcome: dict[str, Any]) -> float:
        """Compare the sum of all pieces with pi."""
        result = outcome["result"]
        print(f"{result['workers']} workers found {result['pi']}, and pi is {math.pi:.9f}")
        if abs(result["pi"] - math.pi) > 1e-6:
            raise ValueError("the pieces do not add up to pi")
        return float(result["pi"])

    compare(integrate.output)
