"""How long an app may wait, at first and again."""

from __future__ import annotations

import time

import pytest

from airflow_provider_launch.follow import state_tracker
from airflow_provider_launch.follow.state_tracker import StartLimit
from airflow_provider_launch.schedulers.responses import DescribeAppResponse
from airflow_provider_launch.specs.states import AppState


def answer(state: AppState, *, stuck: bool = False, restarts: int = 0) -> DescribeAppResponse:
    return DescribeAppResponse("a", state, msg="Secret gone", is_stuck=stuck, num_restarts=restarts)


def test_the_limit_ends_an_app_that_has_never_started() -> None:
    error = StartLimit("name", time.time() - 1).check(answer(AppState.PENDING))

    assert error is not None
    assert "start_limit_s; it waited for: Secret gone" in str(error)


@pytest.mark.parametrize("seen", [True, False], ids=["this process saw it run", "another process saw it run"])
def test_a_retry_may_wait_longer_than_the_limit(seen: bool) -> None:
    limit = StartLimit("name", time.time() - 1)
    if seen:
        assert limit.check(answer(AppState.RUNNING)) is None

    assert limit.check(answer(AppState.PENDING, restarts=0 if seen else 1)) is None


@pytest.mark.parametrize("state", [AppState.PENDING, AppState.RUNNING])
def test_a_retry_that_cannot_start_ends_after_a_minute(state: AppState, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = StartLimit("name")
    assert limit.check(answer(AppState.RUNNING)) is None
    assert limit.check(answer(state, stuck=True)) is None
    monkeypatch.setattr(state_tracker, "STUCK_S", 0.0)
    error = limit.check(answer(state, stuck=True))

    assert error is not None
    assert "a replica of the app cannot start; it waited for: Secret gone" in str(error)
    assert limit.check(answer(AppState.RUNNING)) is None
