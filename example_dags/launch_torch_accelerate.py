"""Distributed training with accelerate: two processes, one for each replica, on the CPUs of this host.

`torch_env=True` sets the variables that accelerate, Lightning and the Trainer of Hugging Face read, on every scheduler,
so the program is the one that also runs alone: `python launch_torch_accelerate_train.py`.

It needs torch and accelerate, 5 GB on disk: `make demo DAG=launch_torch_accelerate` installs them into the environment
of this checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Resource, Role

HERE = Path(__file__).parent

with DAG("launch_torch_accelerate", schedule=None, catchup=False, doc_md=__doc__, tags=["launch", "example"]):
    trainer = Role(
        name="trainer",
        image="",
        entrypoint=sys.executable,
        args=[str(HERE / "launch_torch_accelerate_train.py")],
        env={"OMP_NUM_THREADS": "1"},
        num_replicas=2,
        resource=Resource(cpu=1, gpu=0, memMB=1024),
        torch_env=True,
    )
    train = LaunchAppOperator(
        task_id="train", app=AppDef("accelerate", [trainer]), log_replicas=[0], stderr_level="line", time_limit_s=900
    )

    @task
    def report(outcome: dict[str, Any]) -> float:
        """Check that the replicas were one training: each took half of the eight batches."""
        result = outcome["result"]
        print(f"loss {result['loss']} by {result['world']} processes in {result['steps']} steps of the last epoch")
        if (result["world"], result["steps"]) != (2, 8):
            raise ValueError("the replicas were not one training of two processes")
        return float(result["loss"])

    report(train.output)
