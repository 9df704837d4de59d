"""The session of TSM's interface ends what it has opened, and no app of another session."""

from __future__ import annotations

import pytest

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs.errors import SessionMismatchException
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.tsm import Session
from tests.support.fake_scheduler import FakeEngine, FakeScheduler, an_app


@pytest.fixture
def made() -> list[FakeScheduler]:
    return []


@pytest.fixture
def runner(made) -> Runner:
    engine = FakeEngine()

    def make(session_name, **_):
        made.append(FakeScheduler(session_name, engine))
        return made[-1]

    return Runner("ours", {"fake": make})


def test_the_block_of_a_session_closes_its_schedulers(runner, made) -> None:
    with Session("ours", runner) as session:
        session.run(an_app())
        assert [each.closed for each in made] == [0]

    assert [each.closed for each in made] == [1]


def test_a_session_stops_its_own_apps_only(runner) -> None:
    session = Session("ours", runner)
    handle = session.run(an_app())

    with pytest.raises(SessionMismatchException):
        session.stop(handle.replace("ours", "theirs"))
    session.stop(handle)

    status = session.status(handle)
    assert status is not None
    assert status.state is AppState.CANCELLED
