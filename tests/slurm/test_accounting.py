"""A cluster that keeps accounts: what Slurm itself has forgotten is found there."""

from __future__ import annotations

import os
import time

import pytest

from airflow_provider_launch.specs import AppState

pytestmark = [pytest.mark.engine("slurmdbd"), pytest.mark.timeout(300)]


def test_the_end_of_a_forgotten_job_is_found_in_the_accounts(make_own_cluster) -> None:
    """Nobody polled when it ended, and its script could not record it: without accounts both are lost."""
    place = make_own_cluster(min_job_age_s=2, accounting=True)
    waits = place.start(place.role("true"), overlay={"begin": "now+1hour"})
    killed = place.start(place.role("echo up; sleep 300"))
    place.until(killed, "up")
    place.cluster.run("scancel", f"--name={waits}")
    place.cluster.run("scancel", "--full", "--signal=KILL", f"--name={killed}")
    deadline = time.monotonic() + 60
    while place.cluster.run("squeue", "-h", "-t", "all"):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    for app_id in (waits, killed):
        # Long ago, for what is newer may still run.
        for name in ("id", "submitted", "alive", "claim"):
            file = place.root / "apps" / app_id / name
            if file.exists():
                os.utime(file, (time.time() - 600,) * 2)
        found = place.scheduler.describe(app_id)
        assert (found.state, found.msg) == (AppState.CANCELLED, "cancelled in Slurm")
