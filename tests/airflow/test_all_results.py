"""The results of all replicas, as many as there are: they are one XCom."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from airflow_provider_launch._task.outcome import MOST_RESULTS_BYTES, result_of
from airflow_provider_launch.schedulers.api import Capability, JsonValue
from airflow_provider_launch.specs.errors import InvalidAppError
from tests.support.fake_scheduler import FakeEngine, FakeScheduler


class Handing(FakeScheduler):
    """Hands back the same document of each of 10 000 replicas."""

    capabilities = FakeScheduler.capabilities | {Capability.RESULT}
    document: JsonValue = None
    read = 0

    def iter_results(self, app_id: str) -> Iterator[JsonValue]:
        for _ in range(10_000):
            self.read += 1
            yield self.document


@pytest.fixture
def scheduler() -> Handing:
    return Handing("session", FakeEngine())


def test_results_of_ten_thousand_replicas_are_taken(scheduler: Handing) -> None:
    scheduler.document = {"loss": 0.25, "steps": 1000, "path": "s3://bucket/run-1/checkpoints/0000000000"}
    found = result_of(scheduler, "app", "all")

    assert found == [scheduler.document] * 10_000
    assert len(json.dumps(found, separators=(",", ":"))) < MOST_RESULTS_BYTES


def test_results_of_megabytes_are_refused_before_all_are_read(scheduler: Handing) -> None:
    """Each of them may have 4 KB; 40 MB in the database is too much of one task."""
    scheduler.document = "x" * 4000
    with pytest.raises(InvalidAppError, match=r"have more than 2097152 bytes together.*; let each of them write less"):
        result_of(scheduler, "app", "all")

    assert scheduler.read < 600
