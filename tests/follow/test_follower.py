"""Guarantees of a follower for its consumer."""

from __future__ import annotations

import itertools
import json
import threading
import time

import pytest

from airflow_provider_launch.follow.events import Ended, LogGap, LogLines, Reached, StateChanged, Tick, Unreachable
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.follow.poller import Poller
from airflow_provider_launch.schedulers.api import DescribeAppResponse, Stream
from airflow_provider_launch.specs.errors import (
    SchedulerRejectedError,
    SchedulerUnavailableError,
    UnknownAppException,
    UnknownOutcomeError,
)
from airflow_provider_launch.specs.states import AppState
from tests.support import apps
from tests.support.fake_scheduler import FakeEngine, FakeScheduler, an_app
from tests.support.follow import collect, launch_threads, states, texts, until


@pytest.fixture
def engine():
    engine = FakeEngine()
    yield engine
    # Release threads that hang on purpose, so that no thread outlives its test.
    engine.heal()


@pytest.fixture
def scheduler(engine):
    return FakeScheduler("session", engine)


@pytest.fixture
def app_id(scheduler):
    return scheduler.schedule(scheduler.submit_dryrun(an_app(replicas=2), {}, app_id="app-1"))


@pytest.fixture
def follow(scheduler, app_id):
    made = []

    def make(**options):
        follower = Follower(scheduler, options.pop("app_id", app_id), **options)
        made.append(follower)
        return follower

    yield make
    for follower in made:
        follower.close()


def is_running(event):
    return isinstance(event, StateChanged) and event.new == AppState.RUNNING


def is_tick(event):
    return isinstance(event, Tick)


# ---- states ----------------------------------------------------------------------------------------------------


def test_each_state_is_reported_once_and_in_order(engine, follow, app_id):
    follower = follow()
    events = until(follower, lambda event: isinstance(event, StateChanged))
    engine.state(app_id, AppState.RUNNING)
    events += until(follower, is_running)
    time.sleep(0.1)
    engine.state(app_id, AppState.SUCCEEDED)
    events += collect(follower)

    assert states(events) == ["PENDING", "RUNNING", "SUCCEEDED"]
    assert next(event.old for event in events if isinstance(event, StateChanged)) is None
    assert isinstance(events[-1], Ended)
    assert events[-1].response.state == AppState.SUCCEEDED


def test_a_new_reason_for_waiting_is_reported(engine, follow, app_id):
    """Whoever waits for a cluster wants to read why."""
    follower = follow()
    until(follower, lambda event: isinstance(event, StateChanged))
    engine.state(app_id, AppState.PENDING, "no node has 8 GPUs")

    event = until(follower, lambda event: isinstance(event, StateChanged))[-1]

    assert (event.old, event.new, event.response.msg) == (AppState.PENDING, AppState.PENDING, "no node has 8 GPUs")


@pytest.mark.parametrize("end", [AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED])
def test_an_end_is_final(engine, follow, app_id, end):
    """An engine that changes its answer must not change a reported outcome."""
    engine.state(app_id, end)
    follower = follow()
    events = until(follower, lambda event: isinstance(event, StateChanged))
    engine.state(app_id, AppState.RUNNING)
    events += collect(follower)

    assert states(events) == [str(end)]
    assert events[-1].response.state == end


def test_unknown_is_a_state_and_not_an_end(engine, follow, app_id):
    follower = follow()
    engine.state(app_id, AppState.UNKNOWN)
    events = until(follower, lambda event: isinstance(event, StateChanged))
    engine.state(app_id, AppState.SUCCEEDED)
    events += collect(follower)

    assert states(events) == ["UNKNOWN", "SUCCEEDED"]


def test_ticks_come_while_nothing_happens(follow):
    follower = follow()
    until(follower, is_tick)
    began = time.monotonic()
    for _ in range(3):
        until(follower, is_tick)

    assert time.monotonic() - began < 1.0


def test_ticks_come_while_every_request_hangs(engine, follow):
    """The consumer looks at its kill flag on a tick; a dead cluster must not take that away."""
    let_go = threading.Event()
    engine.on_describe = lambda ids: let_go.wait(10)
    engine.on_read = lambda *_: let_go.wait(10)
    follower = follow(roles=an_app().roles)
    began = time.monotonic()
    for _ in range(3):
        until(follower, is_tick)
    took = time.monotonic() - began
    follower.close()
    closed = time.monotonic() - began - took
    let_go.set()

    assert took < 1.5
    assert closed < 1.0


# ---- outages ---------------------------------------------------------------------------------------------------


def test_an_outage_is_shown_once_and_survived(engine, follow, app_id):
    follower = follow()
    events = until(follower, lambda event: isinstance(event, StateChanged))
    engine.cut()
    events += until(follower, lambda event: isinstance(event, Unreachable))
    for _ in range(3):
        events += until(follower, is_tick)
    engine.heal()
    engine.state(app_id, AppState.SUCCEEDED)
    events += collect(follower)

    assert [type(event) for event in events if isinstance(event, (Unreachable, Reached))] == [Unreachable, Reached]
    assert states(events) == ["PENDING", "SUCCEEDED"]
    assert next(event for event in events if isinstance(event, Reached)).after_s > 0.3


def test_an_outage_beyond_the_bound_is_raised(engine, follow):
    follower = follow(unavailable_for_s=0.3)
    until(follower, lambda event: isinstance(event, StateChanged))
    engine.cut("no route to host")
    began = time.monotonic()

    with pytest.raises(SchedulerUnavailableError):
        collect(follower)
    assert 0.2 < time.monotonic() - began < 1.5


def test_a_request_that_hangs_for_ever_is_an_outage(engine, follow):
    let_go = threading.Event()
    engine.on_describe = lambda ids: let_go.wait(10)
    follower = follow(unavailable_for_s=0.3)

    with pytest.raises(SchedulerUnavailableError, match="has been unknown"):
        collect(follower)
    let_go.set()


def test_a_refusal_is_raised_at_once(engine, follow):
    def refuse(ids):
        raise SchedulerRejectedError("token expired")

    engine.on_describe = refuse

    with pytest.raises(SchedulerRejectedError, match="token expired"):
        collect(follow())


def test_an_error_ends_a_log_that_grows_faster_than_it_is_shown(engine, follow, app_id):
    """Lines that were read before the error are shown, and no others, or the task would never end."""

    def refuse(_ids):
        raise SchedulerUnavailableError("connection refused")

    def show(_event):
        apps.until(lambda: follower._reader or not any("logs" in name for name in launch_threads()))

    engine.state(app_id, AppState.RUNNING)
    engine.on_read = lambda _app_id, role, k: engine.write(app_id, role, k, "line\n")
    follower = follow(unavailable_for_s=0.2)
    until(follower, lambda event: isinstance(event, LogLines))
    engine.on_describe = refuse

    with pytest.raises(SchedulerUnavailableError, match="has been unknown"):
        until(follower, show)


def test_an_app_that_vanishes_has_an_unknown_outcome(engine, follow, app_id):
    engine.state(app_id, AppState.RUNNING)
    engine.write(app_id, "worker", 0, "last words\n")
    follower = follow()
    events = until(follower, lambda event: isinstance(event, LogLines))
    engine.forget(app_id)

    with pytest.raises(UnknownOutcomeError, match="app-1"):
        collect(follower)
    assert texts(events) == ["last words\n"]


def test_a_state_that_stays_unknown_is_an_unknown_outcome(engine, follow, app_id):
    """A scheduler that lost track of the app says so; its task must not wait for ever."""
    engine.state(app_id, AppState.UNKNOWN, "lost: removed from outside")

    with pytest.raises(UnknownOutcomeError, match="removed from outside"):
        collect(follow(unavailable_for_s=0.3))


def test_a_state_that_is_unknown_for_a_moment_is_survived(engine, follow, app_id):
    engine.state(app_id, AppState.UNKNOWN)
    follower = follow()
    until(follower, lambda event: isinstance(event, StateChanged))
    engine.state(app_id, AppState.SUCCEEDED)

    assert states(collect(follower))[-1] == "SUCCEEDED"


def test_an_app_that_was_never_there_is_unknown(follow):
    with pytest.raises(UnknownAppException, match="no-such-app"):
        collect(follow(app_id="no-such-app"))


def test_an_app_that_we_launched_and_is_not_there_has_an_unknown_outcome(follow):
    with pytest.raises(UnknownOutcomeError, match="s://x/no-such-app"):
        collect(follow(app_id="no-such-app", app_handle="s://x/no-such-app", scheduled=True))


def test_one_poll_without_the_app_is_survived(engine, scheduler, follow, app_id):
    """Some engines show an app a moment after it was accepted."""
    record = engine.apps.pop(app_id)

    def appear(ids):
        if len(engine.describe_calls) > 1:
            engine.apps[app_id] = record

    engine.on_describe = appear
    follower = follow(scheduled=True)

    assert states(until(follower, lambda event: isinstance(event, StateChanged))) == ["PENDING"]


# ---- logs ------------------------------------------------------------------------------------------------------


def test_lines_of_all_replicas_come_in_their_order(engine, follow, app_id):
    for k in range(2):
        engine.write(app_id, "worker", k, "".join(f"{k}:{n}\n" for n in range(250)))
    engine.state(app_id, AppState.SUCCEEDED)

    events = collect(follow())

    for k in range(2):
        assert texts(events, replica=k) == [f"{k}:{n}\n" for n in range(250)]


def test_the_first_line_comes_soon(engine, follow, app_id):
    engine.state(app_id, AppState.RUNNING)
    follower = follow()
    until(follower, is_tick)
    engine.write(app_id, "worker", 0, "hello\n")
    began = time.monotonic()
    until(follower, lambda event: isinstance(event, LogLines))

    assert time.monotonic() - began < 0.5


def test_nothing_is_asked_about_the_log_of_a_replica_that_waits(engine, follow, app_id):
    """Hundreds of tasks may wait in a queue for days."""
    follower = follow(poll_interval_s=0.05)
    until(follower, is_tick)
    until(follower, is_tick)
    asked = engine.log_calls
    engine.state(app_id, AppState.RUNNING)
    engine.write(app_id, "worker", 1, "up\n")

    assert asked == 0
    until(follower, lambda event: isinstance(event, LogLines))


def test_lines_written_while_the_app_ends_are_reported(engine, follow, app_id):
    follower = follow()
    until(follower, lambda event: isinstance(event, StateChanged))
    engine.write(app_id, "worker", 0, "".join(f"{n}\n" for n in range(1000)))
    engine.write(app_id, "worker", 1, "no newline at the end")
    engine.state(app_id, AppState.FAILED)
    events = collect(follower)

    assert texts(events) == [f"{n}\n" for n in range(1000)]
    assert texts(events, replica=1) == ["no newline at the end"]
    assert not [event for event in events if isinstance(event, LogGap)]


def test_the_end_is_reported_before_queued_lines(engine, follow, app_id):
    """An operator behind a flood of lines must still learn at once that the app failed."""
    engine.state(app_id, AppState.RUNNING)
    engine.write(app_id, "worker", 0, "x\n" * 50_000)
    follower = follow()
    until(follower, lambda event: isinstance(event, LogLines))
    engine.state(app_id, AppState.FAILED)
    time.sleep(0.2)
    events = collect(follower)

    assert states(events[:2]) == ["FAILED"]
    assert isinstance(events[-1], Ended)


def test_a_flood_stays_bounded(engine, follow, app_id):
    """Memory must not grow with the log, however slow the consumer is."""
    engine.chunk_lines = 1000
    engine.write(app_id, "worker", 0, "x" * 99 + "\n")
    engine.apps[app_id].lines["worker", 0] *= 100_000
    engine.state(app_id, AppState.SUCCEEDED)
    follower = follow()
    until(follower, lambda event: isinstance(event, LogLines))
    time.sleep(0.5)
    read = engine.log_calls

    events = collect(follower)

    assert read < 10
    assert len(texts(events)) + 1000 >= 99_000


def test_a_log_source_that_hangs_does_not_delay_the_end(engine, follow, app_id):
    let_go = threading.Event()
    engine.on_read = lambda *_: let_go.wait(10)
    follower = follow(log_drain_s=0.5)
    until(follower, lambda event: isinstance(event, StateChanged))
    engine.state(app_id, AppState.SUCCEEDED)
    began = time.monotonic()
    events = until(follower, lambda event: isinstance(event, StateChanged))
    told = time.monotonic() - began
    events += collect(follower)
    let_go.set()

    assert states(events) == ["SUCCEEDED"]
    assert told < 0.5
    assert time.monotonic() - began < 2
    assert "may be missing" in next(event for event in events if isinstance(event, LogGap)).message


def test_a_log_that_may_not_be_read_does_not_delay_the_end(engine, follow, app_id):
    def refuse(*_):
        raise SchedulerRejectedError("may not get pods/log")

    engine.on_read = refuse
    engine.state(app_id, AppState.RUNNING)
    follower = follow(log_drain_s=30.0)
    until(follower, lambda event: isinstance(event, LogGap))
    began = time.monotonic()
    engine.state(app_id, AppState.SUCCEEDED)
    events = collect(follower, limit_s=40.0)

    assert states(events) == ["SUCCEEDED"]
    assert time.monotonic() - began < 15
    gaps = [event.message for event in events if isinstance(event, LogGap)]
    assert "giving up" in gaps[-1]
    assert "may not get pods/log" in gaps[-1]


def test_a_log_that_was_refused_for_long_is_read_at_the_end(engine, follow, app_id):
    """The renewed access may reach the log a moment after the state."""
    refused, left = threading.Event(), [1, 1]

    def refuse(_app_id, _role, k):
        if not refused.is_set():
            raise SchedulerRejectedError("token expired")
        if left[k]:
            left[k] -= 1
            raise SchedulerRejectedError("token expired")

    engine.on_read = refuse
    engine.state(app_id, AppState.RUNNING)
    follower = follow()
    until(follower, lambda _: engine.log_calls > 8, limit_s=30.0)
    engine.write(app_id, "worker", 0, "done\n")
    refused.set()
    engine.state(app_id, AppState.SUCCEEDED)

    assert texts(collect(follower, limit_s=20.0)) == ["done\n"]


def test_a_log_source_that_fails_is_reported_once_per_replica(engine, follow, app_id):
    def fail(app_id, role, k):
        raise OSError("disk on fire")

    engine.state(app_id, AppState.RUNNING)
    engine.on_read = fail
    follower = follow(log_drain_s=0.2)
    events = []
    for _ in range(5):
        events += until(follower, is_tick)
    gaps = [event for event in events if isinstance(event, LogGap)]
    engine.state(app_id, AppState.SUCCEEDED)
    events += collect(follower)

    assert sorted((gap.role, gap.replica) for gap in gaps) == [("worker", 0), ("worker", 1)]
    assert "disk on fire" in gaps[0].message
    assert events[-1].response.state == AppState.SUCCEEDED


def test_a_log_source_that_recovers_loses_no_line(engine, follow, app_id):
    failures = iter(range(3))

    def fail(app_id, role, k):
        if next(failures, None) is not None:
            raise SchedulerUnavailableError("log server restarts")

    engine.on_read = fail
    engine.write(app_id, "worker", 0, "a\nb\n")
    engine.state(app_id, AppState.SUCCEEDED)

    events = collect(follow())

    assert texts(events) == ["a\n", "b\n"]
    assert len([event for event in events if isinstance(event, LogGap)]) == 1


def test_logs_that_the_scheduler_does_not_have_are_given_up(engine, follow, app_id):
    def fail(app_id, role, k):
        raise NotImplementedError("no logs")

    engine.on_read = fail
    engine.state(app_id, AppState.SUCCEEDED)
    began = time.monotonic()

    events = collect(follow())

    assert time.monotonic() - began < 1
    assert isinstance(events[-1], Ended)


def test_only_the_asked_roles_and_stream_are_read(engine, scheduler, follow):
    app = an_app(roles=["a", "b"])
    app_id = scheduler.schedule(scheduler.submit_dryrun(app, {}, app_id="two-roles"))
    for role in "ab":
        engine.write(app_id, role, 0, "out\n")
        engine.write(app_id, role, 0, "err\n", stream=Stream.STDERR)
    engine.state(app_id, AppState.SUCCEEDED)

    events = collect(follow(app_id=app_id, log_roles=["b"], streams=Stream.STDERR))

    assert texts(events, "a") == []
    assert texts(events, "b") == ["err\n"]


def test_no_log_is_read_when_none_is_wanted(engine, follow, app_id):
    engine.write(app_id, "worker", 0, "a\n")
    engine.state(app_id, AppState.SUCCEEDED)
    events = collect(follow(logs=False))

    assert engine.log_calls == 0
    assert isinstance(events[-1], Ended)


def test_from_now_leaves_the_past_out(engine, follow, app_id):
    engine.state(app_id, AppState.RUNNING)
    engine.write(app_id, "worker", 0, "".join(f"old {n}\n" for n in range(1000)))
    follower = follow(logs_from="now")
    until(follower, is_tick)
    until(follower, is_tick)
    engine.write(app_id, "worker", 0, "new\n")
    engine.state(app_id, AppState.SUCCEEDED)

    assert texts(collect(follower)) == ["new\n"]


# ---- resume ----------------------------------------------------------------------------------------------------


def test_another_follower_continues_without_loss_or_repetition(engine, follow, app_id):
    """Worker and triggerer hand over through JSON, at any moment."""
    engine.chunk_lines = 7
    expected = [f"{n}\n" for n in range(200)]
    engine.write(app_id, "worker", 0, "".join(expected[:100]))
    told, cursors = [], {}
    for handover in range(12):
        if handover == 5:
            engine.write(app_id, "worker", 0, "".join(expected[100:]))
        follower = follow(cursors=json.loads(json.dumps(cursors)))
        events = until(follower, lambda event: isinstance(event, (LogLines, Tick)))
        told += texts(events)
        cursors = follower.cursors
        follower.close()
    engine.state(app_id, AppState.SUCCEEDED)
    events = collect(follow(cursors=cursors))

    assert told + texts(events) == expected
    assert events[-1].cursors == {"worker/0": 200, "worker/1": 0}


def test_a_loop_that_was_left_continues(engine, follow, app_id):
    engine.write(app_id, "worker", 0, "a\n")
    follower = follow()
    for event in follower:
        if isinstance(event, Tick):
            break
    engine.state(app_id, AppState.SUCCEEDED)

    assert states(collect(follower)) == ["SUCCEEDED"]


def test_between_lines_there_is_no_replica_to_leave(engine, follow, app_id):
    """The lines that were shown before belong to a replica that is still read."""
    engine.state(app_id, AppState.RUNNING)
    engine.write(app_id, "worker", 0, "one\n")
    follower = follow()
    events = until(follower, lambda event: isinstance(event, LogLines))
    events += until(follower, is_tick)
    follower.leave(0)
    engine.write(app_id, "worker", 0, "two\n")
    engine.write(app_id, "worker", 1, "other\n")
    engine.state(app_id, AppState.SUCCEEDED)
    events += collect(follower)

    assert texts(events) == ["one\n", "two\n"]
    assert texts(events, replica=1) == ["other\n"]


def test_a_loop_ends_when_its_follower_is_closed(follow):
    """Another thread may close it, such as that of a kill."""
    follower = follow()
    until(follower, is_tick)
    follower.close()

    assert next(iter(follower), None) is None


# ---- threads ---------------------------------------------------------------------------------------------------


def test_close_ends_all_threads(follow):
    follower = follow()
    until(follower, is_tick)
    assert launch_threads()
    follower.close()
    follower.close()

    assert launch_threads() == []


def test_close_waits_for_a_poll_that_is_under_way(engine, follow, monkeypatch):
    """After it the client may be closed."""
    monkeypatch.setattr("airflow_provider_launch.follow.follower._CLOSE_S", 20.0)
    follower = follow()
    until(follower, is_tick)
    polling = threading.Event()

    def answer_after_the_close(_ids):
        polling.set()
        apps.until(lambda: follower._closed, 30, 0.001)
        time.sleep(0.1)

    engine.on_describe = answer_after_the_close
    assert polling.wait(30)
    follower.close()

    assert launch_threads() == []


def test_the_end_of_the_loop_ends_all_threads(engine, follow, app_id):
    engine.state(app_id, AppState.SUCCEEDED)
    collect(follow())

    assert launch_threads() == []


def test_an_exception_in_the_consumer_ends_all_threads(follow):
    def consume():
        with follow() as follower:
            for _ in follower:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()

    assert launch_threads() == []


@pytest.mark.parametrize(
    ("state", "ended", "is_soon"),
    [
        (AppState.RUNNING, [], True),
        (AppState.PENDING, [0], False),
        (AppState.PENDING, [0, 1], True),
    ],
    ids=["another state", "one replica has ended", "all replicas have ended"],
)
def test_an_app_that_is_about_to_change_is_polled_soon(engine, scheduler, app_id, state, ended, is_soon):
    """The scheduler will say of the app in a moment that it has ended; but of many replicas one always changes."""
    scheduler.poll_interval_s = 4
    poller = Poller(scheduler)
    heard: list[float] = []

    def hear(_: object) -> None:
        heard.append(time.monotonic())

    poller.subscribe(app_id, hear)
    time.sleep(2)
    engine.state(app_id, state, exit_codes={("worker", k): 0 for k in ended})
    known = len(heard)
    # The first poll that sees the change, and five more.
    apps.until(lambda: len(heard) >= known + 6, 30)
    poller.unsubscribe(app_id, hear)
    gaps = [later - earlier for earlier, later in itertools.pairwise(heard[known + 1 :])]

    # At the age of two seconds a step is a quarter of a second, or a tenth if the app is about to change. On a busy
    # machine steps only become longer.
    assert min(gaps) < 0.2 if is_soon else min(gaps) > 0.2


def test_new_apps_do_not_cause_more_polls_of_an_unreachable_scheduler(engine, scheduler, app_id):
    """A thousand tasks that start during an outage would keep the scheduler down."""
    scheduler.poll_interval_s = 1
    engine.cut()
    poller = Poller(scheduler)
    heard: list[object] = []
    poller.subscribe(app_id, heard.append)
    time.sleep(1.2)
    asked = len(heard)
    engine.heal()
    deadline = time.monotonic() + 5
    while not isinstance(heard[-1], DescribeAppResponse) and time.monotonic() < deadline:
        time.sleep(0.01)
    poller.unsubscribe(app_id, heard.append)

    # At once, and again after twice the interval; a new app with answers would be polled about twenty times.
    assert 1 <= asked <= 3
    assert isinstance(heard[-1], DescribeAppResponse)


def test_many_new_apps_wait_for_the_round(engine, scheduler):
    """In a triggerer some app has always just changed, and the scheduler would be polled all the time."""
    ids = [scheduler.schedule(scheduler.submit_dryrun(an_app(), {}, app_id=f"app-{n}")) for n in range(50)]
    poller = Poller(scheduler, 0.5)
    heard: dict[str, list[object]] = {app_id: [] for app_id in ids}
    callbacks = {app_id: heard[app_id].append for app_id in ids}
    for app_id, callback in callbacks.items():
        poller.subscribe(app_id, callback)
    until_heard = time.monotonic() + 60
    while not all(heard.values()) and time.monotonic() < until_heard:
        time.sleep(0.01)
    # Apps that were added while there were few are polled once more, within the interval.
    time.sleep(0.6)
    engine.describe_calls.clear()
    time.sleep(1.2)
    asked = list(engine.describe_calls)
    for app_id, callback in callbacks.items():
        poller.unsubscribe(app_id, callback)

    assert 1 <= len(asked) <= 3
    assert all(len(one) == 50 for one in asked)


def test_followers_may_share_a_poller(engine, scheduler):
    """A thousand apps are one question."""
    ids = [scheduler.schedule(scheduler.submit_dryrun(an_app(), {}, app_id=f"app-{n}")) for n in range(20)]
    poller = Poller(scheduler, 0.02)
    followers = [Follower(scheduler, app_id, logs=False, poller=poller) for app_id in ids]
    for follower in followers:
        until(follower, lambda event: isinstance(event, StateChanged))
    engine.describe_calls.clear()
    time.sleep(0.5)
    asked = list(engine.describe_calls)
    for app_id in ids:
        engine.state(app_id, AppState.SUCCEEDED)
    ends = [states(collect(follower)) for follower in followers]

    assert len(asked) < 40  # each follower for itself: 20 times as many
    assert all(len(one) == 20 for one in asked)
    assert ends == [["SUCCEEDED"]] * 20
    assert launch_threads() == []


def test_an_unknown_logs_from_is_refused(scheduler):
    with pytest.raises(ValueError, match="logs_from"):
        Follower(scheduler, "x", logs_from="end")


def test_a_scheduler_that_went_away_is_tried_by_one_replica(engine, scheduler):
    """Hundreds that try again together hit a server at the moment at which it starts."""
    count = 100
    app_id = scheduler.schedule(scheduler.submit_dryrun(an_app(replicas=count), {}, app_id="many"))
    engine.state(app_id, AppState.RUNNING)
    for k in range(count):
        engine.write(app_id, "worker", k, "before\n")
    with Follower(scheduler, app_id, unavailable_for_s=60) as follower:
        seen = 0
        for event in follower:
            seen += len(event.lines) if isinstance(event, LogLines) else 0
            if seen == count:
                break
        engine.cut()
        time.sleep(0.5)
        tried, began = engine.log_calls, time.monotonic()
        until(follower, lambda _: time.monotonic() > began + 3)
        tried = engine.log_calls - tried
        engine.heal()
        for k in range(count):
            engine.write(app_id, "worker", k, "after\n")
        engine.state(app_id, AppState.SUCCEEDED)
        rest = collect(follower, 20)

    assert tried <= 6
    assert [texts(rest, "worker", k) for k in range(count)] == [["after\n"]] * count
