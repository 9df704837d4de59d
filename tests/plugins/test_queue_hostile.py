"""Records of programs, names of jobs and refusals of a queue that must harm no other app; on task spooler."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_launch.follow.poller import poll_many
from airflow_provider_launch.schedulers.local import layout, processes
from airflow_provider_launch.schedulers.queue import JobState, JobStatus, QueueScheduler
from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from tests.plugins.queue_engine import launch
from tests.plugins.tsp_engine import TspEngine
from tests.support.apps import until, until_state
from tests.support.local import lock_holder

pytestmark = pytest.mark.engine("task-spooler")


def running(scheduler: QueueScheduler, script: str = "sleep 60") -> str:
    app_id = launch(scheduler, script)
    until_state(scheduler, app_id, AppState.RUNNING)
    return app_id


def path_of(engine: TspEngine, app_id: str, name: str) -> Path:
    return engine.root / "apps" / app_id / name


def end_supervisor(engine: TspEngine, app_id: str) -> None:
    """End the supervisor and the programs of an app, as one of the programs can."""
    lock = path_of(engine, app_id, layout.LOCK)
    os.kill(lock_holder(lock), signal.SIGKILL)
    until(lambda: not processes.is_locked(str(lock)))
    processes.kill_marked(f"{processes.MARKER}={engine.root}/apps/{app_id}/".encode())


def states(scheduler: QueueScheduler) -> dict[str, AppState]:
    return {row.app_id: row.state for row in scheduler.list()}


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_an_app_whose_submission_hangs_delays_no_other(scheduler, engine) -> None:
    """A launcher that hangs, or a program that holds the lock."""
    bad, good = running(scheduler), launch(scheduler, "true")
    end_supervisor(engine, bad)
    until(lambda: scheduler.describe(good).state is AppState.SUCCEEDED)
    path_of(engine, bad, layout.JOB).unlink()

    with locked(path_of(engine, bad, layout.SUBMIT_LOCK)):
        started = time.monotonic()
        found = poll_many(scheduler, [bad, good])
        shown = states(scheduler)
        assert time.monotonic() - started < 10
    assert found[good].state is AppState.SUCCEEDED
    assert shown[good] is AppState.SUCCEEDED


def test_an_app_that_another_launcher_submits_waits(scheduler, engine, monkeypatch) -> None:
    monkeypatch.setattr(scheduler, "_ensure", lambda app_id: None)
    app_id = launch(scheduler, "true")
    with locked(path_of(engine, app_id, layout.SUBMIT_LOCK)):
        found = scheduler.describe(app_id)

    assert (found.state, found.msg) == (AppState.PENDING, "another process submits it")


def test_a_job_that_the_queue_does_not_end_hides_no_other_app(scheduler, engine, monkeypatch) -> None:
    """Such as the job of another user, whose id a program has written into its record."""

    def refuse(_job: str) -> None:
        raise SchedulerRejectedError("not the owner of the job")

    good, bad = running(scheduler), launch(scheduler, "true")
    path_of(engine, bad, layout.CANCEL).touch()
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "end_job", refuse)
        found, shown = poll_many(scheduler, [good, bad]), states(scheduler)

    assert found[good].state is AppState.RUNNING
    assert isinstance(found[bad], AppUnavailableError)
    assert shown == {good: AppState.RUNNING, bad: AppState.UNKNOWN}


@pytest.mark.parametrize("waiting", [1, 3], ids=["alone", "among others"])
def test_a_job_that_the_queue_does_not_show_hides_no_other_app(scheduler, engine, monkeypatch, waiting) -> None:
    good = running(scheduler)
    bad, *others = (launch(scheduler, "true") for _ in range(waiting))
    job = json.loads(path_of(engine, bad, layout.JOB).read_text())["id"]
    statuses = scheduler.job_statuses

    def refuse(jobs: list[str]) -> dict[str, JobStatus]:
        if job in jobs:
            raise SchedulerRejectedError(f"unknown job {job}")
        return statuses(jobs)

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "job_statuses", refuse)
        found, shown = poll_many(scheduler, [good, bad, *others]), states(scheduler)

    expected = {good: AppState.RUNNING, bad: AppState.UNKNOWN, **dict.fromkeys(others, AppState.PENDING)}
    assert shown == expected
    assert {app_id: found[app_id].state for app_id in (good, *others)} == {
        app_id: expected[app_id] for app_id in (good, *others)
    }
    assert isinstance(found[bad], SchedulerRejectedError | AppUnavailableError)


def test_a_queue_that_refuses_all_jobs_is_an_error(scheduler, monkeypatch) -> None:
    def refuse(_jobs: list[str]) -> dict[str, JobStatus]:
        raise SchedulerRejectedError("the credentials have expired")

    running(scheduler)
    for _ in range(2):
        launch(scheduler, "true")
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "job_statuses", refuse)
        with pytest.raises(SchedulerRejectedError, match="have expired"):
            scheduler.list()


def test_a_copied_record_ends_no_job_of_another_app(scheduler, engine) -> None:
    bad = running(scheduler)
    first, victim = launch(scheduler, "sleep 60"), launch(scheduler, "true")
    end_supervisor(engine, bad)
    until(lambda: scheduler.describe(first).state is AppState.RUNNING)
    path_of(engine, bad, layout.JOB).write_text(path_of(engine, victim, layout.JOB).read_text())
    path_of(engine, bad, layout.CANCEL).touch()

    found = poll_many(scheduler, [bad])[bad]
    assert isinstance(found, AppUnavailableError)
    assert f"is that of app {victim!r}" in str(found)
    assert engine.listed(victim) == 1
    # The other app is cancelled as usual.
    scheduler.cancel(victim)
    assert scheduler.describe(victim).state is AppState.CANCELLED
    assert engine.listed(victim) == 0


def test_an_id_that_a_restarted_queue_uses_again_belongs_to_the_new_app(scheduler, engine) -> None:
    running(scheduler)
    old = launch(scheduler, "true")
    scheduler.cancel(old)
    assert scheduler.describe(old).state is AppState.CANCELLED
    new = launch(scheduler, "true")
    path_of(engine, old, layout.JOB).write_text(path_of(engine, new, layout.JOB).read_text())

    scheduler.delete(old)
    assert scheduler.describe(old) is None
    assert engine.listed(new) == 1


@pytest.mark.parametrize("job", ["-K", "1,2", "*", "1 2", "a\0b", "\ud800", "$(id)", "", "x" * 1001])
def test_a_text_that_means_more_than_one_job_is_not_an_id(scheduler, engine, monkeypatch, job) -> None:
    bad = running(scheduler)
    end_supervisor(engine, bad)
    path_of(engine, bad, layout.JOB).write_text(json.dumps({"id": job, "at": time.time()}))
    asked: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "job_statuses", lambda jobs: asked.extend(jobs) or {})
        scheduler.list()
        assert job not in asked
        patch.setattr(scheduler, "submit_job", lambda _job: job)
        with pytest.raises(SchedulerRejectedError, match="fix `submit_job`"):
            launch(scheduler, "true")


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.ENDED])
def test_a_message_of_a_queue_is_a_short_line(scheduler, monkeypatch, state) -> None:
    running(scheduler)
    app_id = launch(scheduler, "true")
    status = JobStatus(state, "x\0\n" * 200_000)
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "job_statuses", lambda jobs: dict.fromkeys(jobs, status))
        found = scheduler.describe(app_id)

    assert found.state is {JobState.QUEUED: AppState.PENDING, JobState.ENDED: AppState.FAILED}[state]
    assert len(found.msg) <= 4096
    assert not {"\0", "\n"} & {*found.msg}


def test_a_list_of_a_queue_that_cannot_be_read_is_an_outage(scheduler, monkeypatch) -> None:
    running(scheduler)
    app_id = launch(scheduler, "true")
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "job_statuses", lambda _jobs: dict([("one", "two", "three")]))
        found = poll_many(scheduler, [app_id])[app_id]

    assert isinstance(found, SchedulerUnavailableError)
    assert not isinstance(found, AppUnavailableError)
    assert "cannot be read (ValueError" in str(found)


def test_the_name_of_a_foreign_job_may_have_several_lines(scheduler, engine) -> None:
    running(scheduler)
    engine.tsp("-L", "x\n7\nq", "true")
    app_id = launch(scheduler, "true")

    assert scheduler.describe(app_id).state is AppState.PENDING
