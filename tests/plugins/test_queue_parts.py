"""A queue whose answers a test writes: jobs that it refuses or does not list. No queue is needed: no job runs."""

from __future__ import annotations

import itertools
import json
import math
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_provider_launch.follow.poller import poll_many
from airflow_provider_launch.schedulers.local import layout, processes
from airflow_provider_launch.schedulers.queue import (
    JobState,
    JobStatus,
    QueueConnection,
    QueueJob,
    QueueScheduler,
    run_command,
)
from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    LaunchError,
    MissingDependencyError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from tests.plugins.queue_engine import launch

QUEUED, ENDED = JobStatus(JobState.QUEUED), JobStatus(JobState.ENDED)


class PaperQueue(QueueScheduler):
    """A queue that lists jobs and runs none."""

    name: ClassVar[str] = "paper"
    missing_after_s: ClassVar[float] = 0.0

    def __init__(self, session_name: str, connection: QueueConnection | None = None) -> None:
        super().__init__(session_name, connection)
        self.jobs: dict[str, JobStatus] = {}
        self.refused: dict[str, Exception] = {}
        """Job to the error of each call that names it."""
        self.asked: list[list[str]] = []
        self._ids = map(str, itertools.count(1))

    def submit_job(self, job: QueueJob) -> str:
        job_id = next(self._ids)
        self.jobs[job_id] = QUEUED
        return job_id

    def job_statuses(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        self.asked.append([*job_ids])
        self._refuse(job_ids)
        return {job_id: self.jobs[job_id] for job_id in job_ids if job_id in self.jobs}

    def end_job(self, job_id: str) -> None:
        self._refuse([job_id])
        del self.jobs[job_id]

    def _refuse(self, job_ids: Sequence[str]) -> None:
        for error in (self.refused[job_id] for job_id in job_ids if job_id in self.refused):
            raise error


@pytest.fixture
def scheduler(tmp_path: Path) -> PaperQueue:
    return PaperQueue.create("test", root=str(tmp_path / "root"))


def path_of(scheduler: PaperQueue, app_id: str, name: str) -> Path:
    return Path(scheduler._records.dir(app_id), name)


def job_of(scheduler: PaperQueue, app_id: str) -> str:
    return str(json.loads(path_of(scheduler, app_id, layout.JOB).read_text())["id"])


def after(monkeypatch: pytest.MonkeyPatch, scheduler: PaperQueue, name: str, act: Callable[[], object]) -> None:
    """Let another process act after this call of the scheduler."""
    call = getattr(scheduler, name)

    def wrapper(*args: Any) -> Any:
        found = call(*args)
        act()
        return found

    monkeypatch.setattr(scheduler, name, wrapper)


# ---- lists -----------------------------------------------------------------------------------------------------------


def test_a_job_that_the_queue_refuses_hides_no_other(scheduler: PaperQueue) -> None:
    bad, *others = (launch(scheduler, "true") for _ in range(3))
    scheduler.refused[job_of(scheduler, bad)] = error = SchedulerRejectedError("not the owner of the job")

    found, shown = poll_many(scheduler, [bad, *others]), {row.app_id: row.state for row in scheduler.list()}

    assert [found[app_id].state for app_id in others] == [AppState.PENDING] * 2
    assert isinstance(found[bad], LaunchError)
    assert "not the owner" in str(found[bad])
    assert shown == {bad: AppState.UNKNOWN, **dict.fromkeys(others, AppState.PENDING)}
    with pytest.raises(SchedulerRejectedError) as raised:
        scheduler.describe(bad)
    assert raised.value is error


def test_an_outage_is_raised_as_the_plug_in_raised_it(scheduler: PaperQueue) -> None:
    app_id = launch(scheduler, "true")
    scheduler.refused[job_of(scheduler, app_id)] = error = SchedulerUnavailableError("the server is down")

    with pytest.raises(SchedulerUnavailableError) as raised:
        scheduler.describe(app_id)
    assert raised.value is error
    assert len(scheduler.asked) == 1


def test_an_answer_that_the_plug_in_cannot_read_is_an_outage(scheduler: PaperQueue) -> None:
    app_id = launch(scheduler, "true")
    scheduler.refused[job_of(scheduler, app_id)] = KeyError("x" * 1000)

    with pytest.raises(SchedulerUnavailableError, match=r"the list of 'paper' cannot be read \(KeyError: ") as raised:
        scheduler.describe(app_id)
    assert type(raised.value) is SchedulerUnavailableError
    assert "x" * 201 not in str(raised.value)


def replaced_request(app_dir: Path) -> None:
    (app_dir / layout.APP).write_text("[")


def link_for_a_lock(app_dir: Path) -> None:
    (app_dir / layout.LOCK).symlink_to(layout.LOCK)


def open_to_others(app_dir: Path) -> None:
    app_dir.chmod(0o777)


@pytest.mark.parametrize("damage", [replaced_request, link_for_a_lock, open_to_others])
def test_an_app_that_cannot_be_read_keeps_no_other_from_the_list_of_jobs(scheduler: PaperQueue, damage) -> None:
    bad, good = launch(scheduler, "true"), launch(scheduler, "true")
    damage(path_of(scheduler, bad, ""))

    found, shown = poll_many(scheduler, [bad, good]), {row.app_id: row.state for row in scheduler.list()}

    assert found[good].state is AppState.PENDING
    assert isinstance(found[bad], AppUnavailableError | SchedulerRejectedError)
    assert shown == {bad: AppState.UNKNOWN, good: AppState.PENDING}
    # Its record does not name the owner of a job either.
    scheduler.cancel(good)
    assert scheduler.describe(good).state is AppState.CANCELLED
    assert job_of(scheduler, good) not in scheduler.jobs


def test_a_job_that_cannot_be_ended_is_an_error_of_its_app(scheduler: PaperQueue, monkeypatch) -> None:
    bad, good = launch(scheduler, "true"), launch(scheduler, "true")
    path_of(scheduler, bad, layout.CANCEL).touch()

    def refuse(_job: str) -> None:
        raise SchedulerRejectedError("not the owner of the job")

    monkeypatch.setattr(scheduler, "end_job", refuse)
    found = poll_many(scheduler, [bad, good])

    assert isinstance(found[bad], AppUnavailableError)
    assert str(found[bad]) == f"app {bad!r}: not the owner of the job"
    assert found[good].state is AppState.PENDING


def test_the_copied_record_of_a_damaged_app_keeps_no_other_from_its_end(scheduler: PaperQueue) -> None:
    good, bad = launch(scheduler, "true"), launch(scheduler, "true")
    path_of(scheduler, bad, layout.JOB).write_text(path_of(scheduler, good, layout.JOB).read_text())
    path_of(scheduler, bad, layout.STATE).write_text('{"final": 1}')

    scheduler.cancel(good)
    assert scheduler.describe(good).state is AppState.CANCELLED


# ---- apps that other processes submit, end or remove at the same moment ----------------------------------------------


@pytest.mark.parametrize("word", ["submitted", "ended"])
def test_the_lock_of_an_app_is_free_after_its(scheduler: PaperQueue, word: str) -> None:
    app_id = launch(scheduler, "true")
    lock = layout.SUBMIT_LOCK
    if word == "ended":
        lock = layout.LOCK
        scheduler.jobs[job_of(scheduler, app_id)] = ENDED
        assert scheduler.describe(app_id).state is AppState.FAILED

    assert path_of(scheduler, app_id, lock).exists()
    assert not processes.is_locked(str(path_of(scheduler, app_id, lock)))


def test_an_app_that_another_process_submits_is_left_to_it(scheduler: PaperQueue) -> None:
    app_id = launch(scheduler, "true")
    path_of(scheduler, app_id, layout.JOB).unlink()
    lock = processes.try_lock(str(path_of(scheduler, app_id, layout.SUBMIT_LOCK)))
    assert lock is not None
    found = scheduler.describe(app_id)
    os.close(lock)

    assert (found.state, found.msg) == (AppState.PENDING, "another process submits it")
    assert scheduler.describe(app_id).msg == "it was just submitted"
    assert [*scheduler.jobs] == ["1", "2"]


@pytest.mark.parametrize("name", ["_submitted_at", "_is_submitted"])
def test_an_app_that_is_removed_during_a_poll_does_not_exist(scheduler: PaperQueue, monkeypatch, name: str) -> None:
    """Its job is not listed any more, or its launcher was killed before it had one."""
    app_id = launch(scheduler, "true")
    scheduler.jobs.clear()
    if name == "_is_submitted":
        path_of(scheduler, app_id, layout.JOB).unlink()
    another = PaperQueue.create("another", root=scheduler.root)
    after(monkeypatch, scheduler, name, lambda: another._records.remove(app_id))

    assert scheduler.describe_many([app_id]) == {app_id: None}


def test_an_app_that_is_removed_during_its_submission_is_an_error(scheduler: PaperQueue, monkeypatch) -> None:
    another = PaperQueue.create("another", root=scheduler.root)
    after(
        monkeypatch,
        scheduler,
        "submit_job",
        lambda: [another._records.remove(app_id) for app_id in another._records.ids()],
    )

    with pytest.raises(SchedulerUnavailableError, match=r"^app 'app-.*' was removed meanwhile; try again$"):
        launch(scheduler, "true")


@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.parametrize(
    "error", [FileNotFoundError(2, "missing"), OSError(40, "a link to itself")], ids=["no", "link"]
)
def test_only_a_missing_file_of_a_missing_app_means_that_it_was_removed(
    scheduler: PaperQueue, error: OSError, is_left: bool
) -> None:
    """Else the app was removed and launched again, or a program has replaced a file: an error of this app."""
    app_id = launch(scheduler, "true")
    error.filename = str(path_of(scheduler, app_id, layout.LOCK))
    if not is_left:
        scheduler._records.remove(app_id)

    with pytest.raises(SchedulerUnavailableError) as raised, scheduler._existing(app_id):
        raise error
    is_removed = isinstance(error, FileNotFoundError) and not is_left
    assert ("was removed meanwhile" in str(raised.value)) is is_removed
    assert isinstance(raised.value, AppUnavailableError) is not is_removed


def test_a_deleted_app_is_removed_by_the_next_poll(scheduler: PaperQueue) -> None:
    app_id = launch(scheduler, "true")
    scheduler.jobs[job_of(scheduler, app_id)] = ENDED
    path_of(scheduler, app_id, layout.DELETE).touch()
    assert scheduler.describe(app_id).state is AppState.CANCELLED

    assert scheduler.describe(app_id) is None
    assert not path_of(scheduler, app_id, "").exists()


def test_the_id_of_an_app_without_a_job_is_younger_than_all_others(scheduler: PaperQueue) -> None:
    assert scheduler._recorded_at("missing") == math.inf
    assert scheduler._recorded_at(launch(scheduler, "true")) < math.inf


# ---- commands --------------------------------------------------------------------------------------------------------


COMMANDS = [
    (["no-such-command"], MissingDependencyError, "'no-such-command' is not installed on this host; install it"),
    ([str(Path(__file__))], SchedulerUnavailableError, "was not answered: .*Permission denied.*; try again later"),
    (["sh", "-c", "echo refused >&2; exit 3"], SchedulerRejectedError, "refused"),
    (["sh", "-c", "echo server is down; exit 3"], SchedulerUnavailableError, "server is down"),
    (["sleep", "5"], SchedulerUnavailableError, "'sleep' has not answered within 0.3 s; try again later"),
    (["sh", "-c", "exec >&- 2>&-; exec sleep 5"], SchedulerUnavailableError, "has not answered within 0.3 s"),
]


@pytest.mark.parametrize(
    ("command", "error", "text"), COMMANDS, ids=["missing", "no program", "refused", "down", "slow", "slow to end"]
)
def test_errors_of_commands_are_those_of_the_launcher(command, error, text) -> None:
    with pytest.raises(LaunchError, match=text) as raised:
        run_command(command, timeout_s=0.3, unavailable=["is down"])
    assert type(raised.value) is error


def test_a_command_that_is_not_waited_for_any_longer_is_killed(tmp_path: Path) -> None:
    with pytest.raises(SchedulerUnavailableError):
        run_command(["sh", "-c", f"sleep 3; touch {tmp_path}/end"], timeout_s=0.1)

    assert not (tmp_path / "end").exists()


def test_a_command_that_writes_without_an_end_takes_bounded_memory() -> None:
    """A command that asks a question may repeat it for ever."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(SchedulerUnavailableError, match="'yes' cannot be read: it wrote more than 128 MB") as raised:
        run_command(["yes"], timeout_s=20)

    assert type(raised.value) is SchedulerUnavailableError
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 400 * 2**20
