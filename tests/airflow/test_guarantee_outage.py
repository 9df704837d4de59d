"""Guarantee 5: a scheduler out of reach, for the worker and for the triggerer."""

from __future__ import annotations

import threading
import time

import pytest

from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from tests.airflow.guarantees import WAIT, Heard, Place, launch, meanwhile
from tests.airflow.support import FakeExecutionApi, run_to_end
from tests.support.repeats import often

_UNREACHED, _DENIED = "connections are refused", "credentials have expired"
# Each is of another kind: no connection, no access, an answer that asks for patience, a call that hangs, no files.
OUTAGES = {
    "local": ["root is missing", "root is unreadable"],
    "docker": [_UNREACHED, _DENIED, "429"],
    "kubernetes": [_UNREACHED, _DENIED, "429"],
    "slurm": [_UNREACHED, "commands hang", "root is unreadable"],
    "aws_batch": [_UNREACHED, _DENIED, "429"],
}
# These are of the same kinds as others.
MORE = {
    "docker": ["500", "credentials are unknown"],
    "kubernetes": ["500", "credentials are refused"],
    "aws_batch": ["500", "credentials are refused"],
}


def on_outages(first: bool) -> pytest.MarkDecorator:
    """Give the test each outage of each engine, in one mode after the other; `make soak`: in both.

    Args:
        first: the mode of the first outage of an engine. The other test starts with the other mode.
    """
    cases = [
        (engine, outage, mode)
        for engine, outages in OUTAGES.items()
        for number, outage in enumerate([*outages, *often([], MORE.get(engine, []))])
        for mode in often([first ^ bool(number % 2)], [False, True])
    ]
    params = [
        pytest.param(*case, marks=pytest.mark.engine(case[0]), id="-".join(map(str, case)).replace(" ", "-"))
        for case in cases
    ]
    return pytest.mark.parametrize(("place", "outage", "deferrable"), params, indirect=["place"])


@on_outages(False)
def test_an_outage_is_reported_once_and_survived(place: Place, outage: str, deferrable: bool) -> None:
    """Guarantee 5: the task waits, reports it once, and continues with the app and its log."""
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
    assert [event["reason"] for event in events] == ["ended"] * deferrable
    for told in ("the scheduler does not answer", "the scheduler answers again", "[main/0] begun", "[main/0] done"):
        assert sum(told in line for line in ran.lines) == 1, (told, ran.lines)
    assert place.starts() == ["0"]


@on_outages(True)
def test_an_outage_beyond_the_bound_fails_and_the_app_is_left(place: Place, outage: str, deferrable: bool) -> None:
    """Guarantee 5: the error names the fix, no app is cancelled unseen, and the next try continues with the app."""
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
    assert [event["reason"] for event in events] == ["unreachable"] * deferrable, events
    assert sum("the scheduler does not answer" in line for line in first.lines) == 1
    assert api.store["launch"]["state"] == "scheduled"
    assert place.alive() == 1
    place.go()
    second, _ = run_to_end(task, api, try_number=2)

    assert second.state == "success", second.error
    assert place.starts() == ["0"]
    assert len(place.apps()) == 1
