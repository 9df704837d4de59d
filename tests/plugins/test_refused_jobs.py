"""Jobs that a queue refuses, or takes without an id. No queue is needed, because no job runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from airflow_provider_launch.schedulers.queue import JobStatus, QueueJob, QueueScheduler
from airflow_provider_launch.specs.errors import LaunchError, SchedulerRejectedError, SchedulerUnavailableError
from tests.plugins.queue_engine import launch


class Closed(QueueScheduler):
    """A queue that runs no job."""

    name: ClassVar[str] = "closed"
    answer: str | LaunchError = ""

    def submit_job(self, job: QueueJob) -> str:
        if isinstance(self.answer, LaunchError):
            raise self.answer
        return self.answer

    def job_statuses(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        raise AssertionError(f"no app has one of the jobs {job_ids}")

    def end_job(self, job_id: str) -> None:
        raise AssertionError(f"no app has job {job_id}")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (SchedulerRejectedError("the queue is closed; ask its administrator"), "the queue is closed"),
        (SchedulerUnavailableError("the queue was not reached"), "was not reached"),
        ("", "the id ''; fix `submit_job`"),
        ("-1", "the id '-1'; fix `submit_job`"),
    ],
    ids=["refused", "unreachable", "no id", "an option"],
)
def test_a_job_that_was_not_accepted_leaves_no_app(tmp_path: Path, answer: str | LaunchError, message: str) -> None:
    scheduler = Closed.create("test", root=str(tmp_path))
    scheduler.answer = answer

    with pytest.raises(LaunchError, match=message) as raised:
        launch(scheduler, "true")

    assert isinstance(raised.value, type(answer) if isinstance(answer, LaunchError) else SchedulerRejectedError)
    assert scheduler.list() == []
