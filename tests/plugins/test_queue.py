"""Jobs that wait, are ended by users of the queue, or vanish; on task spooler."""

from __future__ import annotations

import select
import subprocess
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.queue import JobState, JobStatus, QueueJob, QueueScheduler, run_command
from airflow_provider_launch.specs import AppDef, AppState, Role
from airflow_provider_launch.specs.errors import (
    InvalidRunConfigException,
    SchedulerUnavailableError,
)
from tests.plugins.queue_engine import launch
from tests.support.apps import until_state

pytestmark = pytest.mark.engine("task-spooler")


def test_an_app_waits_for_its_turn_with_a_message(scheduler) -> None:
    first = launch(scheduler, "sleep 60")
    until_state(scheduler, first, AppState.RUNNING)
    second = launch(scheduler, "true")

    found = scheduler.describe(second)
    assert (found.state, found.msg) == (AppState.PENDING, "its job is in the queue")
    scheduler.cancel(first)
    until_state(scheduler, second, AppState.SUCCEEDED)


def test_a_waiting_app_is_cancelled_without_a_start(scheduler, engine) -> None:
    first = launch(scheduler, "sleep 60")
    until_state(scheduler, first, AppState.RUNNING)
    second = launch(scheduler, "true")
    scheduler.cancel(second)

    found = scheduler.describe(second)
    assert found.state is AppState.CANCELLED
    assert [replica.state for role in found.roles_statuses for replica in role.replicas] == [AppState.CANCELLED]
    assert engine.tsp("-l").count(second) == 0
    assert engine.starts(second) == 0


def test_a_job_that_a_user_of_the_queue_ends_is_a_failure(scheduler, engine) -> None:
    app_id = launch(scheduler, "trap 'exit 0' TERM; sleep 60 & wait")
    until_state(scheduler, app_id, AppState.RUNNING)
    engine.tsp("-k")

    found = until_state(scheduler, app_id, AppState.FAILED)
    assert found.msg == "the queue, or a user of it, ended the job of the app"
    assert engine.alive(app_id) == 0


def test_a_job_that_a_user_of_the_queue_removes_is_a_failure(scheduler, engine) -> None:
    first = launch(scheduler, "sleep 60")
    until_state(scheduler, first, AppState.RUNNING)
    scheduler.missing_after_s = 0.0
    second = launch(scheduler, "true")
    engine.tsp("-r")

    found = until_state(scheduler, second, AppState.FAILED)
    assert found.msg.startswith("the queue does not list job")


def test_a_job_that_the_queue_does_not_list_yet_waits(scheduler, engine) -> None:
    first = launch(scheduler, "sleep 60")
    until_state(scheduler, first, AppState.RUNNING)
    second = launch(scheduler, "true")
    engine.tsp("-r")

    found = scheduler.describe(second)
    assert found.state is AppState.PENDING
    assert "does not list job" in found.msg


def test_a_queue_that_is_down_is_an_error_and_never_a_state(scheduler, engine) -> None:
    first = launch(scheduler, "sleep 60")
    until_state(scheduler, first, AppState.RUNNING)
    second = launch(scheduler, "true")
    away = Path(engine.socket).rename(f"{engine.socket}.away")

    with pytest.raises(SchedulerUnavailableError, match="no server has the socket"):
        scheduler.describe(second)
    # A running app reports for itself.
    assert scheduler.describe(first).state is AppState.RUNNING
    away.rename(engine.socket)
    assert scheduler.describe(second).state is AppState.PENDING


def test_the_time_in_the_queue_does_not_count_as_run_time(scheduler) -> None:
    first = launch(scheduler, "sleep 3")
    until_state(scheduler, first, AppState.RUNNING)
    second = launch(scheduler, "sleep 1", time_limit_s=2.0)

    until_state(scheduler, second, AppState.SUCCEEDED)


def delete_after(
    scheduler: QueueScheduler, monkeypatch: pytest.MonkeyPatch, holder: object, name: str, *, calls: int = 1
) -> None:
    """Let another launcher delete the app within a poll of this one, after this call of `holder`."""
    call = getattr(holder, name)
    records = type(scheduler).create("another", **vars(scheduler.connection))._records
    left = iter(range(calls - 1, -1, -1))

    def wrapper(app: object, *args: object) -> object:
        found = call(app, *args)
        for app_id in records.ids() if next(left, 0) == 0 else []:
            records.remove(app_id)
        return found

    monkeypatch.setattr(holder, name, wrapper)


def waiting_app(scheduler: QueueScheduler) -> str:
    first = launch(scheduler, "sleep 60")
    until_state(scheduler, first, AppState.RUNNING)
    return launch(scheduler, "true")


@pytest.mark.parametrize("missing_after_s", [0.0, 10.0])
def test_an_app_that_is_deleted_during_a_poll_does_not_exist(scheduler, monkeypatch, missing_after_s) -> None:
    """An error, or a state, would keep a follower that should end."""
    second = waiting_app(scheduler)
    run_command(["tsp", "-r"], env={"TS_SOCKET": scheduler.connection.socket})
    scheduler.missing_after_s = missing_after_s
    delete_after(scheduler, monkeypatch, scheduler, "_submitted_at")

    assert scheduler.describe_many([second]) == {second: None}


def test_a_cancelled_app_that_is_deleted_during_a_poll_does_not_exist(scheduler, engine, monkeypatch) -> None:
    second = waiting_app(scheduler)
    (engine.root / "apps" / second / "cancel").touch()  # by another process, which was killed then
    delete_after(scheduler, monkeypatch, scheduler, "end_job")

    assert scheduler.describe(second) is None


@pytest.mark.parametrize("name", ["submit_job", "_is_submitted"])
def test_an_app_that_is_deleted_while_an_observer_submits_it_does_not_exist(
    scheduler, engine, monkeypatch, name
) -> None:
    """An observer submits the job if the launcher was killed before that."""
    second = waiting_app(scheduler)
    (engine.root / "apps" / second / "job.json").unlink()
    delete_after(scheduler, monkeypatch, scheduler, name)

    assert scheduler.describe(second) is None


def test_an_app_that_is_deleted_while_it_starts_does_not_exist(scheduler, monkeypatch) -> None:
    first = launch(scheduler, "sleep 60")
    until_state(scheduler, first, AppState.RUNNING)
    # The second call is that of the poll, after it has read the app.
    delete_after(scheduler, monkeypatch, scheduler._records, "is_supervised", calls=2)

    assert scheduler.describe(first) is None


def test_submitting_a_deleted_app_is_an_error(scheduler, monkeypatch) -> None:
    delete_after(scheduler, monkeypatch, scheduler, "submit_job")

    with pytest.raises(SchedulerUnavailableError, match="was removed meanwhile; try again"):
        launch(scheduler, "true")


def test_a_response_notes_that_only_the_queue_enforces_cpu_and_memory(scheduler) -> None:
    found = until_state(scheduler, launch(scheduler, "true"), AppState.SUCCEEDED)

    assert found.metadata["limits"] == "cpu and memMB are enforced only by the queue, if it does"


def test_two_jobs_of_one_app_run_it_once(scheduler, engine, monkeypatch) -> None:
    """A launcher that is killed before it has stored the id of the job submits again."""
    engine.tsp("-S", "2")
    submit = scheduler.submit_job
    monkeypatch.setattr(scheduler, "submit_job", lambda job: (submit(job), submit(job))[1])
    app_id = launch(scheduler, "sleep 1; echo once")

    until_state(scheduler, app_id, AppState.SUCCEEDED)
    assert [*scheduler.log_iter(app_id, "main")] == ["once\n"]
    assert engine.starts(app_id) == 1


def test_the_output_of_a_job_stays_open_until_its_app_has_ended(scheduler, monkeypatch) -> None:
    """Some queues, such as `nq`, take its closing for the end of the job: the app would fail, the next one start."""
    jobs: list[subprocess.Popen[bytes]] = []

    def submit(job: QueueJob) -> str:
        jobs.append(subprocess.Popen(job.command, stdout=subprocess.PIPE))
        return str(jobs[0].pid)

    monkeypatch.setattr(scheduler, "submit_job", submit)
    monkeypatch.setattr(scheduler, "job_statuses", lambda ids: dict.fromkeys(ids, JobStatus(JobState.RUNNING)))
    app_id = launch(scheduler, "sleep 2")
    until_state(scheduler, app_id, AppState.RUNNING)

    with jobs[0]:
        is_closed, _, _ = select.select([jobs[0].stdout], [], [], 0)
        assert not is_closed
        until_state(scheduler, app_id, AppState.SUCCEEDED)
        assert jobs[0].stdout.read() == b""


def test_options_and_resources_reach_the_job(scheduler, monkeypatch) -> None:
    from airflow_provider_launch.specs import Resource

    jobs: list = []
    monkeypatch.setattr(scheduler, "submit_job", lambda job: jobs.append(job) or "0")
    roles = [
        Role("main", "/", entrypoint="true", num_replicas=2, resource=Resource(cpu=2, gpu=0, memMB=100)),
        Role("other", "/", entrypoint="true"),
    ]
    info = scheduler.submit_dryrun(AppDef("app", roles), {"slots": 3})
    scheduler.schedule(info)

    assert "one job of 'tsp' runs all replicas: slots=3" in str(info)
    assert (jobs[0].options["slots"], jobs[0].cpu, jobs[0].memory_mb) == (3, 4, 200)


@pytest.mark.parametrize("params", [{}, {"root": "relative"}, {"root": "/x", "sockt": "/y"}])
def test_wrong_connections_are_refused(engine, params) -> None:
    import launch_tsp

    with pytest.raises(InvalidRunConfigException, match=r"root|did you mean 'socket'"):
        launch_tsp.create_scheduler("test", **params)
