"""A search over learning rates with PyTorch: each trial is a training of two replicas, with a service next to them.

`torch_env=True` makes the replicas of `trainer` the processes of one training. `service=True` marks a role that only
serves the others, here a stand-in for a parameter server or TensorBoard: it is stopped when the trainers have
succeeded. In one trial a process is killed; the scheduler starts the app again, and the training continues at its
checkpoint in `LAUNCH_CHECKPOINT_DIR`, which each trial has of its own. The last trial diverges, which is an ordinary
result.

It needs torch, 5 GB on disk: `make demo DAG=launch_torch_search` installs it into the environment of this checkout.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Resource, Role

HERE = Path(__file__).parent
RATES = [0.05, 0.2, 1e9]


def trial(lr: float) -> AppDef:
    """Return the app of one trial."""
    program = [str(HERE / "launch_torch_search_train.py"), "--lr", str(lr)]
    trainer = Role(
        name="trainer",
        image="",
        entrypoint=sys.executable,
        args=[*program, "--kill-once"] if lr == RATES[0] else program,
        env={"OMP_NUM_THREADS": "1"},
        num_replicas=2,
        max_retries=1,
        resource=Resource(cpu=1, gpu=0, memMB=1024),
        torch_env=True,
    )
    server = Role(
        name="server",
        image="",
        entrypoint=sys.executable,
        args=["-m", "http.server", "--bind", "127.0.0.1", "${port.server.http}"],
        port_map={"http": 0},
        resource=Resource(cpu=1, gpu=0, memMB=256),
        service=True,
    )
    return AppDef("trial", [trainer, server])


with DAG("launch_torch_search", schedule=None, catchup=False, doc_md=__doc__, tags=["launch", "example"]):
    trials = LaunchAppOperator.partial(
        task_id="train",
        checkpoint_dir=f"{tempfile.gettempdir()}/launch_torch_search",
        log_replicas=[0],
        stderr_level="line",
        silence_limit_s=300,
        time_limit_s=900,
    ).expand(app=[trial(lr) for lr in RATES])

    @task
    def best(outcomes: list[dict[str, Any]]) -> float:
        """Return the best learning rate; a trial that diverged has no loss."""
        results = [outcome["result"] for outcome in outcomes]
        for outcome in outcomes:
            print(f"{outcome['result']}, attempts: {outcome['attempts']}")
        if any(result["world"] != 2 for result in results):
            raise ValueError("a trial was not one training of two processes")
        return float(min((one for one in results if one["loss"] is not None), key=lambda one: one["loss"])["lr"])

    best(trials.output)
