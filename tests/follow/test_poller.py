"""One question for many apps."""

from __future__ import annotations

import pytest

from airflow_provider_launch.follow import poll_many
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.specs.states import AppState
from tests.support.fake_scheduler import FakeEngine, FakeScheduler, an_app


@pytest.fixture
def scheduler():
    scheduler = FakeScheduler(engine=FakeEngine())
    for name in ("a", "b"):
        scheduler.schedule(scheduler.submit_dryrun(an_app(), {}, app_id=name))
    return scheduler


def test_one_call_answers_for_all(scheduler):
    answers = poll_many(scheduler, ["a", "b", "gone"])

    assert answers["a"].state == AppState.PENDING
    assert answers["gone"] is None
    assert scheduler.engine.describe_calls == [["a", "b", "gone"]]


def test_an_outage_is_the_answer_for_all(scheduler):
    scheduler.engine.cut()

    answers = poll_many(scheduler, ["a", "b"])

    assert all(isinstance(answer, SchedulerUnavailableError) for answer in answers.values())
    assert len(scheduler.engine.describe_calls) == 1


def test_one_broken_app_does_not_hide_the_others(scheduler):
    def fail(ids):
        if "b" in ids:
            raise RuntimeError("record of b is damaged")

    scheduler.engine.on_describe = fail

    answers = poll_many(scheduler, ["a", "b"])

    assert answers["a"].state == AppState.PENDING
    assert isinstance(answers["b"], RuntimeError)
