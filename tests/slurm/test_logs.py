"""Logs in the shared directory: times of lines, and where the worker reads them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.api import LogLine
from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from tests.slurm.conftest import Place

pytestmark = pytest.mark.engine("slurm")


def lines_of(place: Place, app_id: str) -> list[LogLine]:
    lines, cursor = [], None
    while (chunk := place.scheduler.read_logs(app_id, "main", 0, cursor)).lines:
        lines += chunk.lines
        cursor = chunk.cursor
    return lines


def index_of(place: Place, app_id: str) -> list[str]:
    return (place.root / "apps" / app_id / "run/0/0-main/0/0/times").read_text().splitlines()


def ticks_of_scripts(directory: Path) -> int:
    """Return the CPU time of the scripts of the replicas of one app and their children."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink() == directory and b"replica.sh" in (entry / "cmdline").read_bytes():
                ticks += sum(map(int, (entry / "stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks


# ---- the index of times --------------------------------------------------------------------------------------------


def test_the_index_of_times_grows_with_time_and_not_with_lines(place) -> None:
    """Two entries in a second after the first five, none while nothing is written; each time is exact to a second."""
    script = "sleep 2; date +%s; seq 1 200000; n=0; while [ $n -lt 30 ]; do n=$((n + 1)); date +%s; sleep 0.1; done"
    app_id = place.start(place.sh(script))
    assert place.end(app_id).state is AppState.SUCCEEDED

    lines = lines_of(place, app_id)
    assert 5 <= len(index_of(place, app_id)) <= 2 * (lines[-1].time - lines[0].time) + 10
    dated = [line for line in lines if len(line.text) == 11]
    assert len(dated) == 31
    assert all(0 <= line.time - int(line.text) < 2 for line in dated)


def test_lines_of_a_short_app_can_be_ordered(place) -> None:
    """Of several replicas, whose clocks agree."""
    script = "sleep 1; for n in 1 2; do date +%s.%N; sleep 0.3; done"
    app_id = place.start(place.sh(script, num_replicas=2))
    assert place.end(app_id).state is AppState.SUCCEEDED

    for k in range(2):
        first, second = place.scheduler.read_logs(app_id, "main", k).lines
        assert first.time < second.time
        assert all(-0.02 < line.time - float(line.text) < 0.3 for line in (first, second))


def test_the_index_of_times_costs_a_node_nearly_nothing(place) -> None:
    """The script wakes twice a second for every replica, even if the program is silent."""
    app_id = place.start(place.sh("echo up; sleep 20; echo down"))
    place.written(app_id, "up")
    time.sleep(2)
    before = ticks_of_scripts(place.root / "apps" / app_id)
    time.sleep(10)
    ticks = ticks_of_scripts(place.root / "apps" / app_id) - before
    place.end(app_id)

    assert ticks / os.sysconf("SC_CLK_TCK") < 0.1  # 1 % of a core
    assert len(index_of(place, app_id)) == 2


# ---- over ssh, with the shared directory mounted on the worker or not ----------------------------------------------


@pytest.fixture
def way(slurm_cluster, slurm_commands) -> dict[str, object]:
    sshd = slurm_cluster.sshd
    login = {"ssh_host": "127.0.0.1", "ssh_port": sshd.port, "ssh_user": "root", "ssh_host_key": sshd.host_key}
    return {**login, "ssh_key_file": str(sshd.key), "slurm_bin": str(slurm_commands.dir), "timeout_s": 3.0}


@pytest.fixture
def mounted(slurm_root, tmp_path):
    """The shared directory at another path, as a worker may have it mounted."""
    slurm_root.mkdir()
    subprocess.run(["mount", "--bind", str(slurm_root), str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_logs_are_read_on_the_mount_of_the_worker(slurm_cluster, slurm_root, slurm_commands, way, mounted) -> None:
    """The login node then reads no logs; everything else uses ssh."""
    place = Place(slurm_cluster, slurm_root, **way, mount=str(mounted))
    app_id = place.start(place.sh("echo up >&2; seq 1 100000; exit 3"))
    found = place.end(app_id)
    with slurm_commands.hanging_logs():
        lines = lines_of(place, app_id)
    place.scheduler.close()

    assert (found.state, found.roles_statuses[0].replicas[0].exit_code) == (AppState.FAILED, 3)
    assert sorted(line.text for line in lines) == sorted(["up\n", *(f"{n}\n" for n in range(1, 100_001))])
    assert None not in {line.time for line in lines}


def test_logs_are_read_over_ssh_without_a_mount(slurm_cluster, slurm_root, slurm_commands, way) -> None:
    """The same lines; if the login node cannot read them, that is an error and not the end of the log."""
    place = Place(slurm_cluster, slurm_root, **way)
    app_id = place.start(place.sh("echo up >&2; seq 1 100000; exit 3"))
    place.end(app_id)
    with slurm_commands.hanging_logs(), pytest.raises(SchedulerUnavailableError):
        lines_of(place, app_id)
    lines = lines_of(place, app_id)
    place.scheduler.close()

    assert sorted(line.text for line in lines) == sorted(["up\n", *(f"{n}\n" for n in range(1, 100_001))])
    assert None not in {line.time for line in lines}


def test_a_mount_that_is_away_is_an_error_and_not_the_end_of_a_log(
    slurm_cluster, slurm_root, slurm_commands, way, tmp_path
) -> None:
    place = Place(slurm_cluster, slurm_root, **way, mount=str(tmp_path / "none"))
    app_id = place.start(place.sh("echo up; sleep 1; echo down"))
    place.end(app_id)
    with pytest.raises(SchedulerUnavailableError, match="mount"):
        lines_of(place, app_id)
    (tmp_path / "none").symlink_to(slurm_root)

    assert [line.text for line in lines_of(place, app_id)] == ["up\n", "down\n"]
    place.scheduler.close()
