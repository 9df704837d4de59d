"""The script of a job when its directory, its child or its controller fails."""

from __future__ import annotations

import shutil
import socket
import time

import pytest

from airflow_provider_launch.specs.states import AppState
from tests.slurm.conftest import Place
from tests.support.apps import until

pytestmark = pytest.mark.engine("slurm")


def test_a_job_whose_directory_is_removed_ends(place) -> None:
    """It can no longer write its records, and must not wait for that."""
    app_id = place.start(place.sh("echo up; sleep 2; exit 3", num_replicas=2, max_retries=5))
    place.written(app_id, "up", k=1)
    shutil.rmtree(place.root / "apps" / app_id)
    until(lambda: not place.cluster.run("squeue", "-h", f"--name={app_id}"), 30, 0.2)

    assert not (place.root / "apps" / app_id).exists()


def test_programs_that_stop_at_once_are_not_waited_for(place) -> None:
    """Slurm signals a program and its shell at the same time, and `wait` of bash may then miss the end."""
    app_id = place.start(place.sh("echo up; exec sleep 300", num_replicas=32))
    for k in range(32):
        place.written(app_id, "up", k=k)
    began = time.monotonic()
    place.cluster.run("scancel", f"--name={app_id}")
    found = place.end(app_id)

    assert [one.exit_code for one in found.roles_statuses[0].replicas] == [143] * 32
    assert time.monotonic() - began < 10, "longer than the grace of a program"


def test_a_name_server_that_is_away_does_not_delay_the_start(slurm_cluster, slurm_root, slurm_commands) -> None:
    """The name of the node is looked up for each attempt; without an answer the host's own name is used."""
    getent = slurm_commands.dir / "getent"
    getent.write_text("#!/bin/sh\nexec sleep 300\n")
    getent.chmod(0o755)
    place = Place(slurm_cluster, slurm_root, slurm_bin=str(slurm_commands.dir))
    app_id = place.start(place.sh("echo $TORCHX_RANK0_HOST"))
    found = place.end(app_id)

    assert found.state is AppState.SUCCEEDED
    assert [*place.scheduler.log_iter(app_id, "main")] == [f"{socket.gethostname()}\n"]


def test_a_cancel_ends_the_app_although_its_signal_was_lost(place) -> None:
    """The script finds the mark itself, soon: the controller was busy, or a shell missed the signal."""
    app_id = place.start(place.sh("echo up; exec sleep 300"))
    place.written(app_id, "up")
    began = time.monotonic()
    (place.root / "apps" / app_id / "cancel").touch()

    assert place.end(app_id).state is AppState.CANCELLED
    assert time.monotonic() - began < 40
