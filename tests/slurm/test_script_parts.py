"""Functions of the script of a job, with stand-ins for the commands of Slurm. No engine is needed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers import slurm

SCRIPT = (Path(slurm.__file__).parent / "scripts" / "launch.sh").read_text()


def function(name: str) -> str:
    begin = SCRIPT.index(f"\n{name}() {{")
    return SCRIPT[begin : SCRIPT.index("\n}\n", begin) + 3]


RUNNING = "echo 'JobId=7 JobName=x JobState=RUNNING Reason=None Requeue=1 Restarts=1 BatchFlag=1 '"


@pytest.mark.parametrize(
    ("scontrol", "is_current"),
    [
        (RUNNING, True),
        (f"echo 'scontrol: a warning' >&2; {RUNNING}", True),
        (RUNNING.replace("Restarts=1 ", "Restarts=2 "), False),
        (RUNNING.replace("RUNNING", "PENDING"), False),
        (RUNNING.replace("RUNNING", "NODE_FAIL"), False),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", False),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1", True),
        ("sleep 300", True),
        ("exit 1", True),
    ],
)
def test_a_controller_that_gives_no_answer_has_not_given_up_the_job(scontrol: str, is_current: bool) -> None:
    """The script left without an end or a retry, and the app was lost, when the controller was busy for 5 s."""
    parts = [
        "is_stopped() { return 1; }; sleep() { :; }",
        'timeout() { shift; command timeout 1 bash -c "$scontrol"; }',
        function("is_current"),
        "is_current",
    ]
    env = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1", "scontrol": scontrol, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", "\n".join(parts)], env=env, timeout=120, check=False)

    assert (done.returncode == 0) is is_current
