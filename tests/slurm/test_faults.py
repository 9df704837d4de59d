"""A shared directory that is full or slow, and commands that hang."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from tests.slurm.conftest import Place

pytestmark = pytest.mark.engine("slurm")

FILES = 200


@pytest.fixture
def disk(slurm_root) -> Iterator[Path]:
    """A small file system in place of the root; it can be filled with files."""
    slurm_root.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size=1m,mode=0700,nr_inodes={FILES}", "none", str(slurm_root)]
    subprocess.run(command, check=True)
    yield slurm_root
    # Lazily: a script of a job may still be in it.
    subprocess.run(["umount", "-l", str(slurm_root)], check=True)


def fill(disk: Path) -> list[Path]:
    made = []
    for number in range(FILES):
        try:
            (disk / f"filling-{number}").touch()
        except OSError:
            return made
        made.append(disk / f"filling-{number}")
    raise AssertionError("the disk takes more files than it can")


def test_a_full_directory_delays_the_record_of_an_end_and_loses_nothing(disk, slurm_cluster) -> None:
    place = Place(slurm_cluster, disk)
    app_id = place.start(place.sh("echo up; sleep 1; echo down; exit 3", num_replicas=2))
    place.written(app_id, "up", k=1)
    filling = fill(disk)
    time.sleep(3)
    meanwhile = place.scheduler.describe(app_id)
    with pytest.raises(SchedulerUnavailableError, match="No space left"):
        place.start(place.sh("true"))
    for file in filling:
        file.unlink()
    found = place.end(app_id)

    assert meanwhile.state is AppState.RUNNING
    assert found.state is AppState.FAILED
    assert {one.exit_code for one in found.roles_statuses[0].replicas} == {3}
    assert [*place.scheduler.log_iter(app_id, "main")] == ["up\n", "down\n"]
    assert place.end(place.start(place.sh("true"))).state is AppState.SUCCEEDED


def test_a_slow_directory_makes_answers_late_and_not_wrong(slurm_cluster, slurm_root, slurm_commands) -> None:
    place = Place(slurm_cluster, slurm_root, slurm_bin=str(slurm_commands.dir))
    with slurm_commands.slow_files(1.5):
        app_id = place.start(place.sh("seq 1 2000; exit 4"))
        assert place.end(app_id).roles_statuses[0].replicas[0].exit_code == 4
        lines = [*place.scheduler.log_iter(app_id, "main")]
        hasty = Place(slurm_cluster, slurm_root, slurm_bin=str(slurm_commands.dir), timeout_s=1.0)
        with pytest.raises(SchedulerUnavailableError, match="within 1 s"):
            hasty.scheduler.describe(app_id)

    assert lines == [f"{number}\n" for number in range(1, 2001)]


@pytest.mark.parametrize("over_ssh", [False, True], ids=["local", "ssh"])
def test_commands_that_hang_are_no_answer_and_later_ones_are(
    slurm_cluster, slurm_root, slurm_commands, over_ssh
) -> None:
    sshd = slurm_cluster.sshd
    way = {"ssh_host": "127.0.0.1", "ssh_port": sshd.port, "ssh_user": "root"}
    way |= {"ssh_key_file": str(sshd.key), "ssh_host_key": sshd.host_key}
    where = {"slurm_bin": str(slurm_commands.dir), "timeout_s": 2.0, **(way if over_ssh else {})}
    place = Place(slurm_cluster, slurm_root, **where)
    app_id = place.start(place.sh("echo up; sleep 300"))
    place.written(app_id, "up")
    began = time.monotonic()
    with slurm_commands.hanging():
        for call in (place.scheduler.describe, place.scheduler.cancel):
            with pytest.raises(SchedulerUnavailableError):
                call(app_id)
        # The log is in files.
        assert [*place.scheduler.log_iter(app_id, "main")][:1] == ["up\n"]
    took = time.monotonic() - began
    # A request without an answer may have had its effect; repeated, it has.
    place.scheduler.cancel(app_id)

    assert took < 12
    assert place.end(app_id).state is AppState.CANCELLED
    place.scheduler.close()
