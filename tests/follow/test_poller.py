"""One question for many apps."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from airflow_provider_launch.follow.poller import Poller, poll_many
from airflow_provider_launch.specs.errors import AppUnavailableError, SchedulerUnavailableError
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


@pytest.mark.parametrize("field", ["roles", "roles_statuses"])
def test_an_answer_without_lists_is_an_error_and_does_not_end_polling(scheduler, field):
    """The polling thread serves others too, and whoever waits for an answer must get one."""
    describe_many = scheduler.describe_many

    def incomplete(ids):
        found = describe_many(ids)
        if "b" in found:
            setattr(found["b"], field, None)
        return found

    scheduler.describe_many = incomplete
    answers = {"a": [], "b": []}
    enough = threading.Event()

    def hear(app_id, answer):
        answers[app_id].append(answer)
        if all(len(each) >= 3 for each in answers.values()):
            enough.set()

    callbacks = {app_id: partial(hear, app_id) for app_id in answers}
    poller = Poller(scheduler, 0.01)
    for app_id, callback in callbacks.items():
        poller.subscribe(app_id, callback)
    try:
        assert enough.wait(10)
    finally:
        for app_id, callback in callbacks.items():
            poller.unsubscribe(app_id, callback)

    assert {answer.state for answer in answers["a"]} == {AppState.PENDING}
    assert all("with None for its roles or their states" in str(answer) for answer in answers["b"])


def test_an_answer_that_is_not_a_mapping_is_an_error_for_each(scheduler):
    scheduler.describe_many = lambda _ids: None

    answers = poll_many(scheduler, ["a", "b"])

    assert all(isinstance(answer, AttributeError) for answer in answers.values())


def test_a_follower_that_fails_does_not_stop_others(scheduler):
    """Triggers of one connection share the polling thread."""
    heard = threading.Event()
    seen = []

    def fail(_answer):
        raise TypeError("a wrong argument of another task")

    def hear(answer):
        seen.append(answer)
        if len(seen) >= 3:
            heard.set()

    poller = Poller(scheduler, 0.01)
    poller.subscribe("a", fail)
    poller.subscribe("b", hear)
    try:
        assert heard.wait(10)
    finally:
        poller.unsubscribe("a", fail)
        poller.unsubscribe("b", hear)


def test_one_app_that_fails_does_not_slow_down_others(scheduler):
    def fail(ids):
        if "b" in ids:
            raise AppUnavailableError("b cannot be looked at")

    scheduler.engine.on_describe = fail
    heard = threading.Event()
    seen = []

    def hear(answer):
        seen.append(answer)
        if len(seen) >= 10:
            heard.set()

    def hear_nothing(_answer):
        pass

    poller = Poller(scheduler, 0.01)
    poller.subscribe("b", hear_nothing)
    poller.subscribe("a", hear)
    try:
        # After an outage the pauses grow to half a second and more.
        assert heard.wait(3)
    finally:
        poller.unsubscribe("a", hear)
        poller.unsubscribe("b", hear_nothing)


def test_an_app_that_needs_an_observer_is_asked_for_in_time(scheduler):
    """If ends are reported elsewhere, rounds are rare, and a time limit falls between two of them."""
    describe_many = scheduler.describe_many
    began = time.monotonic()
    asked_at = []

    def limited(ids):
        found = describe_many(ids)
        asked_at.append(time.monotonic() - began)
        found["a"].act_in_s = 1.0 - asked_at[-1] if asked_at[-1] < 1 else None
        return found

    scheduler.describe_many = limited
    scheduler.poll_interval_s = 0.5
    acted = threading.Event()

    def hear(_answer):
        poller.set_ends_reported("a", is_reported=True)
        if asked_at[-1] >= 1:
            acted.set()

    poller = Poller(scheduler)
    poller.subscribe("a", hear)
    try:
        assert acted.wait(3)
        assert asked_at[-1] < 1.5
    finally:
        poller.unsubscribe("a", hear)


def test_a_scheduler_that_does_not_answer_is_polled_less_and_less(scheduler):
    """A server that comes up again must not meet all that has waited for it."""
    scheduler.engine.cut()
    poller = Poller(scheduler, 0.02)
    callback = [].append
    poller.subscribe("a", callback)
    time.sleep(2)
    poller.unsubscribe("a", callback)
    poller.join(5)

    assert 2 <= len(scheduler.engine.describe_calls) <= 6


def test_join_waits_for_a_request_that_is_under_way(scheduler):
    """After it the client may be closed."""
    asked, may_answer = threading.Event(), threading.Event()

    def answer_late(_ids):
        asked.set()
        may_answer.wait(20)

    scheduler.engine.on_describe = answer_late
    poller = Poller(scheduler)
    callback = [].append
    poller.subscribe("a", callback)
    assert asked.wait(20)
    thread = poller._thread
    poller.unsubscribe("a", callback)
    threading.Timer(0.3, may_answer.set).start()
    poller.join(20)

    assert not thread.is_alive()
