"""A cluster with accounting: it has the ends of jobs that Slurm itself has forgotten."""

from __future__ import annotations

import os
import time

import pytest

from airflow_provider_launch.specs import AppState
from tests.slurm.conftest import Place
from tests.support.apps import until

pytestmark = [pytest.mark.engine("slurmdbd"), pytest.mark.timeout(300)]


def kill_and_forget(place: Place, app_id: str) -> None:
    """Kill the job of an app so that nothing is recorded, and wait until Slurm has forgotten it."""
    place.cluster.run("scancel", "--full", "--signal=KILL", f"--name={app_id}")
    forget(place, app_id)


def forget(place: Place, *app_ids: str) -> None:
    until(lambda: not place.cluster.run("squeue", "-h", "-t", "all", f"--name={','.join(app_ids)}"), 60, 0.5)
    for app_id in app_ids:
        # Set an old time, because a newer job may still run.
        for name in ("id", "submitted", "alive", "claim"):
            file = place.root / "apps" / app_id / name
            if file.exists():
                os.utime(file, (time.time() - 600,) * 2)


def test_the_end_of_a_forgotten_job_is_found_in_the_accounts(make_own_cluster) -> None:
    """No process polled at its end, and its script could not record it: only accounting has it."""
    place = make_own_cluster(min_job_age_s=2, accounting=True)
    waits = place.start(place.sh("true"), overlay={"begin": "now+1hour"})
    killed = place.start(place.sh("echo up; sleep 300"))
    place.written(killed, "up")
    place.cluster.run("scancel", f"--name={waits}")
    place.cluster.run("scancel", "--full", "--signal=KILL", f"--name={killed}")
    forget(place, waits, killed)
    for app_id in (waits, killed):
        found = place.scheduler.describe(app_id)
        assert (found.state, found.msg) == (AppState.CANCELLED, "cancelled in Slurm")


def test_accounts_that_are_away_neither_fail_nor_delay_a_status(make_own_cluster, caplog) -> None:
    """While the database is restarted, apps continue and end with less detail."""
    place = make_own_cluster(min_job_age_s=2, accounting=True)
    runs = place.start(place.sh("echo up; sleep 300"))
    lost = [place.start(place.sh("echo up; sleep 300")) for _ in range(2)]
    for app_id in (runs, *lost):
        place.written(app_id, "up")
    for app_id in lost:
        kill_and_forget(place, app_id)
    with place.cluster.accounting.stopped():
        began = time.monotonic()
        found = place.scheduler.describe(lost[0])
        first_s = time.monotonic() - began
        states = place.scheduler.describe_many([runs, lost[1]])
        second_s = time.monotonic() - began - first_s

    assert (found.state, found.msg) == (AppState.FAILED, "disrupted: Slurm has lost its job")
    assert (states[runs].state, states[lost[1]].state) == (AppState.RUNNING, AppState.FAILED)
    # It hangs, so it times out, and is not called again for a while.
    assert 8 < first_s < 16
    assert second_s < 5
    assert [record.levelname for record in caplog.records if "accounting" in record.message] == ["WARNING"]
    place.scheduler.cancel(runs)
    assert place.end(runs).state is AppState.CANCELLED


def test_a_cluster_without_accounts_warns_of_nothing(make_own_cluster, caplog) -> None:
    place = make_own_cluster(min_job_age_s=2)
    app_id = place.start(place.sh("echo up; sleep 300"))
    place.written(app_id, "up")
    kill_and_forget(place, app_id)

    assert place.scheduler.describe(app_id).msg == "disrupted: Slurm has lost its job"
    assert not [record for record in caplog.records if "accounting" in record.message]
