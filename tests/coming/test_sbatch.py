"""Scripts that were submitted with sbatch do the same after the move, on a real cluster."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Resource, Role
from tests.airflow.support import a_dag

pytestmark = [pytest.mark.engine("slurm"), pytest.mark.timeout(180)]

ROOM = Resource(cpu=1, gpu=0, memMB=64)


@pytest.fixture
def shared(slurm_cluster, unique, monkeypatch):
    """A directory that login node and compute nodes share."""
    shared = Path("/var/tmp/launch-slurm") / unique
    shared.mkdir(parents=True)
    extra = {"root": str(shared / "apps"), "slurm_conf": str(slurm_cluster.conf), "settle_s": 2}
    known = {"conn_type": "launch_slurm", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAUNCH_SLURM_DEFAULT", json.dumps(known))
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
    yield shared
    shutil.rmtree(shared, ignore_errors=True)


def test_the_dag_of_the_page_with_an_array(moves, shared, unique):
    text = (Path(__file__).resolve().parents[2] / "docs/coming-from/sbatch.md").read_text(encoding="utf-8")
    assert "/shared/train" in text
    before, after = moves.of_page("sbatch", {"train": unique})
    before.bash_command = before.bash_command.replace("/shared", str(shared))

    first, _ = moves.run(before)
    assert first.state == "success", first.lines
    second, outcome = moves.run(after)
    assert second.state == "success", second.error
    logs = [(shared / f"train-{k}.log").read_text().strip() for k in (0, 1)]
    assert logs == ["shard 0 of images", "shard 1 of images"]
    found = sorted(line for line in second.lines if line.startswith("[trainer/"))
    assert found == [f"[trainer/{k}] {line}" for k, line in enumerate(logs)]
    assert outcome["roles"] == {"trainer": [0, 0]}


def both(unique: str, command: str, script: str, **ours):
    from airflow.providers.standard.operators.bash import BashOperator

    with a_dag():
        before = BashOperator(task_id="before", bash_command=command)
    with a_dag():
        role = Role("main", "", entrypoint="bash", args=["-c", script], resource=ROOM, **ours.pop("role", {}))
        after = LaunchAppOperator(
            task_id=unique, launch_conn_id="launch_slurm_default", app=AppDef(unique, [role]), **ours
        )
    return before, after


def test_a_secret_a_directory_and_a_result(moves, shared, unique):
    """The secret is not in the script, and the result comes back."""
    script = 'pwd; printf "%s" "$TOKEN" | wc -c > size'
    before, after = both(
        unique,
        f"TOKEN=s3cr3t sbatch --wait --mem=64 --chdir={shared} --output=%x.log --job-name=j --wrap='{script}'",
        f'{script}; cat size > "$LAUNCH_RESULT_PATH"',
        role={"env": {"TOKEN": "s3cr3t"}},
        cfg={"working_dir": str(shared)},
    )

    assert moves.run(before)[0].state == "success"
    size = (shared / "size").read_text().strip()
    ran, outcome = moves.run(after)
    assert ran.state == "success", ran.error
    assert (size, outcome["result"]) == ("6", 6)
    assert f"[main/0] {(shared / 'j.log').read_text().strip()}" in ran.lines


def test_a_job_that_fails_fails_its_task(moves, shared, unique):
    before, after = both(unique, f"cd {shared} && sbatch --wait --mem=64 --wrap='exit 3'", "exit 3")

    first, second = (moves.run(task)[0] for task in (before, after))
    assert [first.state, second.state] == ["failed", "failed"]
    assert "exited with code 3" in str(second.error)


@pytest.mark.parametrize("is_executable", [True, False], ids=["program", "file"])
def test_a_script_on_the_cluster_stays_there(moves, shared, unique, is_executable):
    """Only the options of its `#SBATCH` lines move."""
    script = shared / "train.sh"
    script.write_text("#!/bin/sh\n#SBATCH --mem=64\n#SBATCH --comment=moved\necho trained with $1\n")
    script.chmod(0o755 if is_executable else 0o644)
    first, args = (str(script), ["lr=1"]) if is_executable else ("sh", [str(script), "lr=1"])
    with a_dag():
        before_command = f"sbatch --wait --job-name=j --chdir={shared} --output=%x.log {script} lr=1"
        before, _ = both(unique, before_command, "true")
        role = Role("main", "", entrypoint=first, args=args, resource=ROOM)
        after = LaunchAppOperator(
            task_id=unique,
            launch_conn_id="launch_slurm_default",
            app=AppDef(unique, [role]),
            cfg={"comment": "moved"},
        )

    assert moves.run(before)[0].state == "success"
    ran, _ = moves.run(after)
    assert ran.state == "success", ran.error
    assert f"[main/0] {(shared / 'j.log').read_text().strip()}" in ran.lines
    assert "[main/0] trained with lr=1" in ran.lines
