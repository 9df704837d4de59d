"""A submitter that stalled while other submitters continued. No engine is needed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from airflow_provider_launch.schedulers.aws_batch.claims import Claims
from airflow_provider_launch.schedulers.aws_batch.client import LostAnswerError
from airflow_provider_launch.schedulers.aws_batch.naming import Tag, job_name
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchOpts
from airflow_provider_launch.schedulers.aws_batch.request import build_request
from airflow_provider_launch.specs import AppConflictError, AppDef, Resource, Role, SchedulerRejectedError

APP = AppDef("app", [Role("main", "image", entrypoint="true", resource=Resource(1, 0, 64))])
REQUEST = build_request(APP, AwsBatchOpts(queue="q"), "app-1", {})


class Stalled:
    """AWS as seen by a submitter whose first answer was lost; its second claim is `own`."""

    def __init__(self, own: int, active: list[int], spec_hash: str) -> None:
        self._revisions = iter([1, own])
        self._active = active
        self._tags = {str(Tag.SPEC_HASH): spec_hash, str(Tag.SUBMITTED): "1000"}
        self.removed: list[int] = []

    def now(self) -> float:
        return 1000.0

    def register(self, _definition: object) -> int:
        return next(self._revisions)

    def submit(self, _submission: object) -> str:
        raise LostAnswerError("the connection was cut")

    def active(self, _name: str) -> list[dict[str, Any]]:
        return [{"revision": revision, "tags": self._tags} for revision in self._active]

    def deregister(self, _name: str, revision: int) -> None:
        self.removed.append(revision)

    def jobs_named(self, _queue: str, name: str) -> list[dict[str, str]]:
        return [{"jobName": name, "jobId": "theirs"}] if self._active else []

    def describe(self, ids: Any) -> dict[str, dict[str, Any]]:
        name = job_name("app-1", 0)
        return {one: {"jobId": one, "jobName": name, "createdAt": 1, "tags": self._tags} for one in ids}


def test_an_app_that_a_later_submitter_has_taken_over_is_not_deleted() -> None:
    """It had removed the claim before it and ours, and its app runs."""
    aws = Stalled(3, [4], REQUEST.spec_hash)

    assert Claims(aws, 1.0).claim(REQUEST) == "theirs"  # type: ignore[arg-type]
    assert aws.removed == [3]


def test_an_app_of_which_no_claim_is_left_was_deleted() -> None:
    with pytest.raises(SchedulerRejectedError, match="deleted"):
        Claims(Stalled(3, [3], REQUEST.spec_hash), 1.0).claim(REQUEST)  # type: ignore[arg-type]


def test_another_app_that_has_taken_the_id_is_a_conflict() -> None:
    with pytest.raises(AppConflictError):
        Claims(Stalled(3, [4], "another"), 1.0).claim(REQUEST)  # type: ignore[arg-type]


class Terminations:
    """AWS that only ends jobs."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def terminate(self, job_id: str, _reason: str) -> None:
        self.ended.append(job_id)


def test_every_process_keeps_the_same_job_of_one_attempt() -> None:
    """The oldest, or the one with the smallest id: in whatever order the jobs are listed."""
    deleted = {"tags": {str(Tag.DELETED): "1"}, "createdAt": 0}
    rows = [
        {"jobId": "a", "createdAt": 2, "status": "RUNNING"},
        {"jobId": "c", "createdAt": 1, "status": "RUNNING"},
        {"jobId": "b", "createdAt": 1, "status": "FAILED"},
        {"jobId": "d", "status": "RUNNING", **deleted},
    ]

    for order in itertools.permutations(rows):
        aws = Terminations()
        kept = Claims(aws, 0.0).elected({"jobName": "app-1", **row} for row in order)  # type: ignore[arg-type]
        assert kept is not None
        assert (kept["jobId"], sorted(aws.ended)) == ("b", ["a", "c"])
    assert Claims(Terminations(), 0.0).elected([]) is None  # type: ignore[arg-type]
