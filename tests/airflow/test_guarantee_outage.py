"""Guarantee 5: a scheduler out of reach, for the worker and for the triggerer."""

from __future__ import annotations

import threading
import time

import pytest

from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from tests.airflow.guarantees import WAIT, Heard, Place, in_modes, launch, meanwhile
from tests.airflow.support import FakeExecutionApi, run_to_end

_LOCAL = ["root is missing", "root is unreadable"]
_KUBERNETES = ["connections are refused", "credentials have expired", "credentials are refused", "429", "500"]
_SLURM = ["connections are refused", "commands hang", "root is unreadable"]
_BATCH = ["connections are refused", "credentials have expired", "credentials are refused", "429", "500"]
_DOCKER = ["connections are refused", "credentials have expired"]


def on_outages(*docker: str) -> pytest.MarkDecorator:
    """Give the test each outage; some of Docker's concern only one."""
    cases = [("local", outage) for outage in _LOCAL] + [("docker", outage) for outage in (*_DOCKER, *docker)]
    cases += [("kubernetes", outage) for outage in _KUBERNETES] + [("slurm", outage) for outage in _SLURM]
    cases += [("aws_batch", outage) for outage in _BATCH]
    params = [
        pytest.param(engine, outage, marks=pytest.mark.engine(engine), id=f"{engine}-{outage}".replace(" ", "-"))
        for engine, outage in cases
    ]
    return pytest.mark.parametrize(("place", "outage"), params, indirect=["place"])


@on_outages("429", "credentials are unknown")
@in_modes
def test_an_outage_is_reported_once_and_survived(place: Place, outage: str, deferrable: bool) -> None:
    """Guarantee 5: the task waits, says so once, and goes on with the app and its log where they were."""
    task = launch(place, place.role(WAIT), deferrable=deferrable, poll_interval_s=0.05, unavailable_for_s=60)

    def act() -> None:
        heard.until("[main/0] begun")
        with place.outages[outage]():
            heard.until("the scheduler does not answer")
            # Long enough for some more looks.
            time.sleep(1)
        heard.until("the scheduler answers again")
        place.go()

    with Heard() as heard, meanwhile(act, place):
        ran, events = run_to_end(task, FakeExecutionApi())

    assert ran.state == "success", (ran.error, ran.lines)
    assert [event["why"] for event in events] == ["ended"] * deferrable
    for told in ("the scheduler does not answer", "the scheduler answers again", "[main/0] begun", "[main/0] done"):
        assert sum(told in line for line in ran.lines) == 1, (told, ran.lines)
    assert place.starts() == ["0"]


@on_outages("500")
@in_modes
def test_an_outage_beyond_the_bound_fails_and_the_app_is_left(place: Place, outage: str, deferrable: bool) -> None:
    """Guarantee 5: the error says who must act, nothing is cancelled unseen, and the next try goes on with the app."""
    task = launch(place, place.role(WAIT), deferrable=deferrable, poll_interval_s=0.05, unavailable_for_s=1)
    api, is_over = FakeExecutionApi(retries=1), threading.Event()

    def act() -> None:
        heard.until("[main/0] begun")
        with place.outages[outage]():
            is_over.wait(60)

    with Heard() as heard, meanwhile(act, place):
        first, events = run_to_end(task, api)
        is_over.set()

    assert first.state == "up_for_retry"
    assert isinstance(first.error, SchedulerUnavailableError), first.error
    assert "ask the administrator of the scheduler to" in str(first.error)
    assert [event["why"] for event in events] == ["unreachable"] * deferrable, events
    assert sum("the scheduler does not answer" in line for line in first.lines) == 1
    assert api.store["launch"]["state"] == "scheduled"
    assert place.alive() == 1
    place.go()
    second, _ = run_to_end(task, api, try_number=2)

    assert second.state == "success", second.error
    assert place.starts() == ["0"]
    assert len(place.apps()) == 1
