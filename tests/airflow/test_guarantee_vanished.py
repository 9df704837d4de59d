"""Guarantee 6: how an app ended whose record vanished is not known, and that is a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_launch.specs.errors import UnknownOutcomeError
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from tests.airflow.guarantees import (
    WAIT,
    Heard,
    Place,
    deferred,
    in_modes,
    launch,
    meanwhile,
    on_places,
    resumed,
)
from tests.airflow.support import FakeExecutionApi, Ran, run_to_end, run_trigger


def check(ran: Ran, api: FakeExecutionApi, mark: str) -> None:
    """See a failure that says what is not known, and nothing of a success."""
    assert ran.state == "failed", ran.lines
    assert isinstance(ran.error, UnknownOutcomeError), ran.error
    assert "unknown" in str(ran.error)
    assert (mark, "return_value") not in api.xcoms


@on_places
@in_modes
def test_an_app_that_vanishes_while_it_is_followed_is_a_failure(place: Place, deferrable: bool) -> None:
    """Guarantee 6."""
    task = launch(place, place.role(WAIT), deferrable=deferrable, poll_interval_s=0.05)

    def act() -> None:
        heard.until("[main/0] begun")
        place.vanish(place.apps()[0])

    with Heard() as heard, meanwhile(act, place):
        ran, events = run_to_end(task, api := FakeExecutionApi())

    check(ran, api, place.mark)
    assert [event["reason"] for event in events] == ["error"] * deferrable
    assert ran.logged("[main/0] begun")


def _ended(trigger: AppStatusTrigger, place: Place, vanish: Callable[[], None]) -> dict[str, Any]:
    place.go()
    (event,) = run_trigger(trigger)
    assert event.payload["reason"] == "ended"
    vanish()
    return dict(event.payload)


def _never_followed(trigger: AppStatusTrigger, _place: Place, vanish: Callable[[], None]) -> dict[str, Any]:
    vanish()
    (event,) = run_trigger(trigger)
    assert event.payload["reason"] == "error"
    return dict(event.payload)


@on_places
@pytest.mark.parametrize("follow", [_ended, _never_followed], ids=["trigger to worker", "worker to trigger"])
def test_an_app_that_vanishes_between_two_followers_is_a_failure(
    place: Place, follow: Callable[..., dict[str, Any]]
) -> None:
    """Guarantee 6: the end that the trigger has seen is not enough either; the worker asks the scheduler itself."""
    task = launch(place, place.role(WAIT), deferrable=True, poll_interval_s=0.05)
    api = FakeExecutionApi()
    trigger, asked = deferred(task, api)

    event = follow(trigger, place, lambda: place.vanish(place.apps()[0]))

    check(resumed(task, api, asked, event), api, place.mark)
