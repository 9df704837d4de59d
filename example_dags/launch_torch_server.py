"""A parameter server for two trainers with PyTorch: a role that serves the others, and is stopped when they are done.

The server never ends. `service=True` of its role means that the app has succeeded when the trainers have; then the
scheduler stops it, and the log shows `trainer: 2 of 2 succeeded; stopped server`. TensorBoard or the head of Ray are
such roles, too.

It needs torch, 5 GB on disk: `make demo DAG=launch_torch_server` installs it into the environment of this checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Resource, Role, macros

PROGRAM = str(Path(__file__).parent / "launch_torch_server_train.py")
SIZE = Resource(cpu=1, gpu=0, memMB=1024)

with DAG("launch_torch_server", schedule=None, catchup=False, doc_md=__doc__, tags=["launch", "example"]):
    trainer = Role(
        name="trainer",
        image="",
        entrypoint=sys.executable,
        args=[PROGRAM],
        env={"OMP_NUM_THREADS": "1"},
        num_replicas=2,
        resource=SIZE,
        torch_env=True,
    )
    server = Role(
        name="server",
        image="",
        entrypoint=sys.executable,
        # The trainers have the port `torch` by `torch_env`; their rank 0 has the store at which the programs meet.
        args=[PROGRAM, "--serve", macros.rank0_host, macros.port("trainer", "torch")],
        env={"OMP_NUM_THREADS": "1"},
        resource=SIZE,
        service=True,
    )
    train = LaunchAppOperator(
        task_id="train", app=AppDef("server", [trainer, server]), stderr_level="line", time_limit_s=900
    )

    @task
    def report(outcome: dict[str, Any]) -> float:
        """Check that the parameters came closer to the right ones."""
        result = outcome["result"]
        print(f"loss {result['loss']} after the gradients of {result['world']} trainers")
        if result["loss"] > 1:
            raise ValueError("the trainers have not shared their gradients")
        return float(result["loss"])

    report(train.output)
