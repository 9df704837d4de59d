"""Distributed training with torchrun: 2 nodes with 2 processes each, on the CPUs of this host.

The component `dist.ddp` runs `launch_torch_train.py` under torchrun on each of two replicas. They connect to replica 0,
at a port that the scheduler chooses, and average their gradients with gloo. In the first attempt one of the four
processes fails in the middle of the training: its node ends, the scheduler stops the other one and starts both again
(`max_retries`), and the training resumes from its last checkpoint. The loss of the last epoch is the task's result.

It needs torch, 5 GB on disk: `make demo DAG=launch_torch_ddp` installs it into the environment of this checkout.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_launch.operators.launch import LaunchAppOperator

HERE = Path(__file__).parent
CHECKPOINTS = f"{tempfile.gettempdir()}/launch_torch_ddp/{{{{ run_id }}}}"

with DAG("launch_torch_ddp", schedule=None, catchup=False, doc_md=__doc__, tags=["launch", "example"]):
    train = LaunchAppOperator(
        task_id="train",
        component="dist.ddp",
        component_args={
            "script": str(HERE / "launch_torch_train.py"),
            "script_args": ["--checkpoints", CHECKPOINTS, "--fail-once"],
            "j": "2x2",
            "max_retries": 1,
            "env": {"OMP_NUM_THREADS": "1"},
        },
        time_limit_s=900,
    )

    @task
    def report(outcome: dict[str, Any]) -> float:
        """Check that the training was resumed and has come to an end."""
        result = outcome["result"]
        print(f"loss {result['loss']} after {result['epochs']} epochs on {result['world']} processes")
        print(f"attempts: {outcome['attempts']}, the last one started at epoch {result['resumed_at']}")
        if result["world"] != 4 or outcome["attempts"] != 2 or not result["resumed_at"]:
            raise ValueError("the training was not done by four processes in two attempts")
        return float(result["loss"])

    report(train.output)
