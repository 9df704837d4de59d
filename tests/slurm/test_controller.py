"""A killed controller: whatever it loses, no app runs twice, and each ends."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from tests.engines.slurm.cluster import NODES
from tests.slurm.conftest import resume_nodes
from tests.support.apps import until
from tests.support.repeats import often

pytestmark = [pytest.mark.engine("slurmctld"), pytest.mark.timeout(1800)]

MOMENTS_S = (0.0, 0.3, 1.0, 1.5, 2.0, 3.0, 6.0)


def counts(runs: Path, replicas: int) -> list[int]:
    files = [runs.with_name(f"{runs.name}-{k}") for k in range(replicas)]
    return [len(file.read_text().split()) if file.exists() else 0 for file in files]


@pytest.mark.parametrize("moment_s", MOMENTS_S)
def test_a_killed_controller_never_makes_an_app_run_twice(make_own_cluster, moment_s, record_property) -> None:
    """A lost app is FAILED as disrupted; repeating the launch starts nothing."""
    place = make_own_cluster()
    for number in range(often(1, 10)):
        runs = place.cluster.dir / f"runs-{number}"
        role = place.sh(f"echo run >>{runs}-$LAUNCH_REPLICA_ID; sleep 3", num_replicas=2)
        info = place.info(role)
        app_id = place.scheduler.schedule(info)
        time.sleep(moment_s)
        place.cluster.kill_controller()
        time.sleep(0.2)
        place.cluster.start_controller()
        place.patiently(lambda info=info: place.scheduler.schedule(info))
        found = place.end(app_id)

        record_property(f"try {number}", f"{found.state.name}, {found.msg}, runs {counts(runs, 2)}")
        assert max(counts(runs, 2)) <= 1
        if found.state is AppState.SUCCEEDED:
            assert counts(runs, 2) == [1, 1]
        else:
            assert found.state is AppState.FAILED
            assert "disrupted" in found.msg or "could not start any replica" in found.msg
        # A reused job number belongs to no other app.
        place.scheduler.schedule(info)
        assert place.end(app_id).state is found.state


def test_a_node_that_drains_itself_takes_jobs_again(make_own_cluster) -> None:
    """This happens when a crashed controller reuses a job number; the engine of the tests repairs it."""
    place = make_own_cluster()
    for node in NODES:
        place.cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=Duplicate jobid")

    assert place.end(place.start(place.sh("true"))).state is AppState.SUCCEEDED


def test_a_controller_that_is_away_is_no_answer(make_own_cluster) -> None:
    place = make_own_cluster()
    app_id = place.start(place.sh("echo up; sleep 15; echo down"))
    place.written(app_id, "up")
    # A controller that is killed before it has saved a job loses it; Slurm 26.05 saves seconds later than 22.05.
    saved, started_at = place.cluster.dir / "state" / "job_state", time.time()
    until(lambda: saved.exists() and saved.stat().st_mtime > started_at)
    place.cluster.kill_controller()

    with pytest.raises(SchedulerUnavailableError):
        place.scheduler.describe(app_id)
    # The files do not need it, nor does the app.
    assert [*place.scheduler.log_iter(app_id, "main")][:1] == ["up\n"]
    until(lambda: "down\n" in place.scheduler.log_iter(app_id, "main"))
    place.cluster.start_controller()
    found = place.end(app_id)

    assert found.state is AppState.SUCCEEDED
    assert [*place.scheduler.log_iter(app_id, "main")] == ["up\n", "down\n"]


def test_jobs_that_slurm_has_forgotten_are_still_reported(make_own_cluster) -> None:
    place = make_own_cluster(min_job_age_s=2)
    app_id = place.start(place.sh("echo kept; exit 3"))
    place.end(app_id)
    until(lambda: not place.cluster.run("squeue", "-h", "-t", "all"), 60, 0.5)

    found = place.end(app_id)
    assert found.state is AppState.FAILED
    assert found.roles_statuses[0].replicas[0].exit_code == 3
    assert [*place.scheduler.log_iter(app_id, "main")] == ["kept\n"]


def test_a_lost_node_ends_the_app_as_disrupted(make_own_cluster) -> None:
    place = make_own_cluster()
    app_id = place.start(place.sh("echo up; sleep 300", num_replicas=2), overlay={"nodes": 2, "ntasks-per-node": 1})
    place.written(app_id, "up", k=1)
    node = place.scheduler.describe(app_id).roles_statuses[0].replicas[1].hostname
    place.cluster.kill_node(node)  # not the one of the script
    found = place.end(app_id)

    assert found.state is AppState.FAILED
    assert [one.state for one in found.roles_statuses[0].replicas].count(AppState.FAILED) == 1


@pytest.mark.parametrize("k", [0, 1], ids=["with the script", "without it"])
def test_no_program_lives_when_its_app_has_ended_since_a_node_is_lost(make_own_cluster, k) -> None:
    """Only its slurmd is lost: the program would keep writing the checkpoint of the next app."""
    place = make_own_cluster()
    role = place.sh("echo up; while :; do sleep 0.1; done", num_replicas=2)
    app_id = place.start(role, overlay={"nodes": 2, "ntasks-per-node": 1})
    for each in (0, 1):
        place.written(app_id, "up", k=each)
    place.cluster.kill_daemon(place.scheduler.describe(app_id).roles_statuses[0].replicas[k].hostname)
    found = place.end(app_id)
    alive = place.alive(app_id)

    assert (found.state, alive) == (AppState.FAILED, 0)
    assert "a node was lost" in found.msg


def test_an_app_that_restarts_elsewhere_waits_for_the_end_of_its_programs(make_own_cluster) -> None:
    """Slurm puts the job back into the queue as soon as it considers the node lost."""
    place = make_own_cluster()
    beats = place.cluster.dir / "beats"
    script = (
        f"echo up $LAUNCH_ATTEMPT; for _ in $(seq $((LAUNCH_ATTEMPT ? 10 : 3000))); do "
        f"echo $LAUNCH_ATTEMPT >>{beats}; sleep 0.1; done"
    )
    app_id = place.start(place.sh(script.replace("$", "$$"), num_replicas=2), on_disruption="retry")
    for k in (0, 1):
        place.written(app_id, "up 0", k=k)
    place.cluster.kill_daemon(place.scheduler.describe(app_id).roles_statuses[0].replicas[0].hostname)
    found = place.end(app_id)
    written = beats.read_text().split()

    assert found.state is AppState.SUCCEEDED
    assert written == sorted(written), "two attempts at once"
    assert set(written) == {"0", "1"}


def test_a_lost_node_restarts_the_app_if_requested(make_own_cluster) -> None:
    place = make_own_cluster()
    role = place.sh("echo run $LAUNCH_ATTEMPT; test $LAUNCH_ATTEMPT != 0 || exec sleep 300")
    app_id = place.start(role, on_disruption="retry")
    place.written(app_id, "run 0")
    node = place.scheduler.describe(app_id).roles_statuses[0].replicas[0].hostname
    place.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    resume_nodes(place.cluster)
    found = place.end(app_id)

    assert found.state is AppState.SUCCEEDED
    assert [*place.scheduler.log_iter(app_id, "main")] == ["run 0\n", "run 1\n"]


def test_the_disruptions_that_a_role_allows_are_counted(make_own_cluster) -> None:
    """After the last one Slurm gives the job up, instead of putting it back into the queue once more."""
    place = make_own_cluster()
    app_id = place.start(place.sh("echo run $LAUNCH_ATTEMPT; exec sleep 300", max_disruptions=1))
    for attempt in range(2):
        place.written(app_id, f"run {attempt}")
        node = place.scheduler.describe(app_id).roles_statuses[0].replicas[0].hostname
        place.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        resume_nodes(place.cluster)
    found = place.end(app_id)

    assert (found.state, found.msg) == (AppState.FAILED, "disrupted: a node was lost")
    assert [*place.scheduler.log_iter(app_id, "main")] == ["run 0\n", "run 1\n"]


def test_a_job_that_slurm_restarts_once_too_often_ends_at_its_start(make_own_cluster) -> None:
    """An administrator may set the job's option again, and the controller may not answer when the job clears it."""
    place = make_own_cluster()
    app_id = place.start(place.sh("echo run $LAUNCH_ATTEMPT; exec sleep 300", max_disruptions=1))
    for attempt in range(2):
        place.written(app_id, f"run {attempt}")
        job = place.cluster.run("squeue", "-h", "-o", "%i").split()[0]
        place.cluster.run("scontrol", "update", f"JobId={job}", "Requeue=1")
        node = place.scheduler.describe(app_id).roles_statuses[0].replicas[0].hostname
        place.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        resume_nodes(place.cluster)
    found = place.end(app_id)

    assert (found.state, found.msg) == (AppState.FAILED, "disrupted: more often than max_disruptions allows")
    assert [*place.scheduler.log_iter(app_id, "main")] == ["run 0\n", "run 1\n"]
