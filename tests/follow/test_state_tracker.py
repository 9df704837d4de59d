"""The meaning of answers for a follower of an app: pure."""

from __future__ import annotations

from airflow_provider_launch.follow.events import Reached, Unreachable
from airflow_provider_launch.follow.state_tracker import StateTracker
from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.specs import AppState, SchedulerUnavailableError
from airflow_provider_launch.specs.errors import UnknownOutcomeError

RUNNING = DescribeAppResponse(app_id="a", state=AppState.RUNNING)
AWAY = SchedulerUnavailableError("away")


def tracker() -> StateTracker:
    return StateTracker("a", unavailable_for_s=600, known=True)


def test_two_single_misses_are_not_a_vanished_app() -> None:
    """An engine may show an app a moment late, each time; only two misses in a row count."""
    tracked = tracker()

    assert [tracked.learn(answer).error for answer in (RUNNING, None, RUNNING, None, RUNNING)] == [None] * 5
    assert tracked.learn(None).error is None
    assert isinstance(tracked.learn(None).error, UnknownOutcomeError)


def test_each_outage_is_reported_once() -> None:
    """Also the second one, after the scheduler was reached again."""
    tracked = tracker()
    answers = (RUNNING, AWAY, AWAY, RUNNING, AWAY, AWAY, RUNNING)
    events = [type(event) for answer in answers for event in tracked.learn(answer).events]

    assert [kind for kind in events if kind in (Unreachable, Reached)] == [Unreachable, Reached, Unreachable, Reached]
