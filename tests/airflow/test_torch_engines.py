"""Trainings with real torch on each engine: a rank fails, and the next attempt resumes at the checkpoint.

Images of the tests are built from files of this machine and have no torch, so containers mount the environment of the
tests with the libraries that it needs.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import BindMount, Resource, Role
from tests.airflow.guarantees import CONN, Place, image_of, launch
from tests.airflow.support import FakeExecutionApi, a_dag, run_task

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"
LIBRARIES = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
pytestmark = [pytest.mark.timeout(900), pytest.mark.engine("torch")]
TORCH_MB = 2000
"""Memory of a process of a build of torch with CUDA."""


def trainer(place: Place, folder: Path) -> Role:
    """Return two replicas of the program of `launch_torch_search`, whose files are those of this machine."""
    kind = place.connection["conn_type"]
    is_container = kind != "launch_slurm"
    seen = [*dict.fromkeys(map(str, (sys.prefix, sys.base_prefix, EXAMPLES)))]
    # Docker gets the directory of the checkpoints by itself.
    shared = [BindMount(str(folder), str(folder))] if kind == "launch_kubernetes" else []
    return Role(
        "trainer",
        image_of(place) if is_container else "",
        entrypoint=sys.executable,
        args=[str(EXAMPLES / "launch_torch_search_train.py"), "--lr", "0.1", "--kill-once"],
        env={"OMP_NUM_THREADS": "1", **({"LD_LIBRARY_PATH": "/host-libraries"} if is_container else {})},
        num_replicas=2,
        max_retries=1,
        resource=Resource(cpu=1, gpu=0, memMB=TORCH_MB),
        mounts=[
            *(BindMount(path, path, read_only=True) for path in seen),
            *shared,
            BindMount(LIBRARIES, "/host-libraries", read_only=True),
        ]
        if is_container
        else [],
        torch_env=True,
    )


@pytest.mark.parametrize(
    "place",
    [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("docker", "kubernetes", "slurm")],
    indirect=True,
)
def test_a_training_resumes_after_a_killed_rank(place: Place, tmp_path: Path) -> None:
    """Each attempt may have another address, and all of them the same checkpoints."""
    task = launch(place, trainer(place, tmp_path), checkpoint_dir=str(tmp_path / "runs"), time_limit_s=800)
    (tmp_path / "runs").mkdir()
    api = FakeExecutionApi()
    ran = run_task(task, api)

    assert ran.error is None, (ran.error, ran.lines)
    outcome = api.xcoms[place.mark, "return_value"]
    assert outcome["attempts"] == 2
    assert {name: outcome["result"][name] for name in ("world", "resumed_at")} == {"world": 2, "resumed_at": 3}
    for rank in range(2):
        assert ran.logged(f"[trainer/{rank}] rank {rank} of 2 continues at epoch 3, attempt 1")


@pytest.mark.engine("slurm")
@pytest.mark.parametrize("place", ["slurm"], indirect=True)
def test_nodes_of_torchrun_resume_after_a_failed_rank(place: Place, tmp_path: Path) -> None:
    """They meet at the first node of the job, on a port that its script has chosen. The images have no bash."""
    arguments = {
        "script": str(EXAMPLES / "launch_torch_train.py"),
        "script_args": ["--checkpoints", str(tmp_path / "runs"), "--fail-once"],
        "image": "",
        "j": "2x2",
        "cpu": 1,
        "memMB": 2 * TORCH_MB,
        "max_retries": 1,
        "env": {"OMP_NUM_THREADS": "1", "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"},
    }
    with a_dag():
        task = LaunchAppOperator(
            task_id=place.mark,
            launch_conn_id=CONN,
            component="dist.ddp",
            component_args=arguments,
            time_limit_s=800,
        )
    api = FakeExecutionApi()
    ran = run_task(task, api)

    assert ran.error is None, (ran.error, ran.lines)
    outcome = api.xcoms[place.mark, "return_value"]
    assert outcome["attempts"] == 2
    assert {name: outcome["result"][name] for name in ("world", "resumed_at")} == {"world": 4, "resumed_at": 4}
