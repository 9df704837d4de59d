"""Effects of a retry, a clear and a fault: the real task runner, with an engine that the test drives."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from datetime import timedelta

import pytest

from airflow_provider_launch._task import task_run
from airflow_provider_launch._task.cancel_on_kill import AppKilledError
from airflow_provider_launch._task.task_log import TaskLog
from airflow_provider_launch.follow.events import LogLines
from airflow_provider_launch.follow.line_order import LineOrder
from airflow_provider_launch.operators._record import KILLED
from airflow_provider_launch.schedulers.result_document import parse_result
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    InvalidAppError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
    UnknownOutcomeError,
)
from airflow_provider_launch.specs.owner import OWNER
from airflow_provider_launch.specs.states import AppState, is_terminal
from tests.airflow.plugin import OPENED
from tests.airflow.support import launch, run_task, run_to_end, sh
from tests.support.fake_scheduler import FakeScheduler
from tests.support.follow import launch_threads


class WorkerDied(BaseException):
    """As if the worker were killed: nothing of ours runs afterwards."""


def on_cluster(script: str = "true", **kwargs):
    return launch(sh(script), launch_conn_id="cluster", **kwargs)


@pytest.fixture
def play(engine):
    """Lets each app of the engine end in the next of some states, from a thread of its own."""
    stop = threading.Event()

    def run(*ends: AppState, **kwargs) -> None:
        def drive() -> None:
            left = list(ends)
            while left and not stop.wait(0.02):
                for app_id, app in [*engine.apps.items()]:
                    if not is_terminal(app.state) and left:
                        engine.state(app_id, left.pop(0), **kwargs)

        threading.Thread(target=drive, daemon=True).start()

    yield run
    stop.set()


def test_a_retry_after_a_failure_launches_the_next_app(engine, make_api, play) -> None:
    api = make_api(retries=1)
    play(AppState.FAILED, AppState.SUCCEEDED, exit_codes={("worker", 0): 1})
    task = on_cluster()

    first = run_task(task, api)
    second = run_task(task, api, try_number=2)

    assert (first.state, second.state) == ("up_for_retry", "success")
    assert engine.started == 2
    assert api.store["launch"]["attempt"] == 1


@pytest.mark.parametrize(("end", "outcome"), [(AppState.FAILED, "FAILED"), (None, "UnknownOutcomeError")])
def test_the_record_of_an_app_that_did_not_succeed_is_closed(engine, api, play, end, outcome) -> None:
    """The next try launches another one without a question about this one."""
    if end is None:
        engine.on_scheduled = lambda app_id: threading.Timer(0.5, engine.forget, [app_id]).start()
    else:
        play(end)
    run_task(on_cluster(), api)

    assert (api.store["launch"]["state"], api.store["launch"]["outcome"]) == ("closed", outcome)


@pytest.mark.parametrize("how", ["fails", "is killed"])
def test_an_end_that_cannot_be_stored_is_still_the_end(engine, api, play, how) -> None:
    """After a kill Airflow refuses whatever the task wants to store."""
    refused = []

    def refuse(method, parts, body):
        if (method, parts[-1]) == ("PUT", "launch") and body["value"]["outcome"]:
            refused.append(body)
            raise OSError("no more values today")

    api.on_call = refuse
    before = signal.getsignal(signal.SIGTERM)
    if how == "fails":
        play(AppState.FAILED, exit_codes={("worker", 0): 7})
    else:
        engine.on_schedule = lambda _app_id: signal.raise_signal(signal.SIGTERM)
    try:
        ran = run_task(on_cluster(on_kill="leave"), api)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert refused
    assert not isinstance(ran.error, OSError)
    assert ("exited with code 7" if how == "fails" else "was killed") in str(ran.error)


def test_an_outcome_that_cannot_be_pushed_changes_no_error(engine, api, play) -> None:
    refused = []

    def refuse(method, parts, body):
        if (method, parts[-1]) == ("POST", "app"):
            refused.append(body)
            raise OSError("no XComs today")

    api.on_call = refuse
    play(AppState.FAILED, exit_codes={("worker", 0): 7})
    ran = run_task(on_cluster(), api)

    assert refused
    assert "exited with code 7" in str(ran.error)


@pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "triggerer"])
def test_a_request_that_may_not_be_read_changes_no_outcome(engine, api, play, monkeypatch, deferrable) -> None:
    """A task that resumes shows it again, and needs its own permission for that."""

    def refuse(_self: FakeScheduler, _app_id: str) -> None:
        raise SchedulerRejectedError("no right to read it")

    monkeypatch.setattr(FakeScheduler, "describe_native", refuse)
    play(AppState.SUCCEEDED)
    ran, _ = run_to_end(on_cluster(deferrable=deferrable), api)

    assert ran.state == "success", ran.error


def test_a_retry_continues_with_a_running_app(engine, make_api, play) -> None:
    api = make_api(retries=1)
    run_task(on_cluster(wait=False), api)
    play(AppState.SUCCEEDED)
    second = run_task(on_cluster(), api, try_number=2)

    assert second.state == "success"
    assert engine.started == 1
    assert second.logged("continuing with app")


def test_a_retry_takes_the_result_of_an_app_that_succeeded_meanwhile(engine, make_api) -> None:
    api = make_api(retries=1)
    run_task(on_cluster(wait=False), api)
    (app_id,) = engine.apps
    engine.state(app_id, AppState.SUCCEEDED)
    engine.result(app_id, {"x": 1})
    second = run_task(on_cluster(), api, try_number=2)

    assert second.state == "success"
    assert engine.started == 1
    assert api.xcoms["t", "return_value"]["result"] == {"x": 1}


def test_a_retry_after_the_kill_of_a_worker_that_was_finishing_takes_the_result(engine, make_api) -> None:
    """The app has succeeded, and the worker is at the rest of its log."""
    api, reading, stalled = make_api(retries=1), threading.Event(), threading.Event()
    task = launch(sh("true"), launch_conn_id="cluster")

    def stall(*_: object) -> None:
        reading.set()
        stalled.wait(20)

    def kill() -> None:
        reading.wait(20)
        engine.state(next(iter(engine.apps)), AppState.SUCCEEDED)
        time.sleep(1)  # for the follower to see it
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
        # The task does not end before its reader, which waits for the engine.
        stalled.wait(0.5)
        stalled.set()

    engine.on_read = stall
    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=kill).start()
    try:
        first = run_task(task, api)
    finally:
        stalled.set()
        signal.signal(signal.SIGTERM, before)
    second = run_task(launch(sh("true"), launch_conn_id="cluster"), api, try_number=2)

    assert first.state != "success"
    assert second.state == "success", second.lines
    assert engine.started == 1


def test_a_retry_shows_that_the_dag_has_changed(engine, make_api, play) -> None:
    api = make_api(retries=1)
    run_task(on_cluster("old", wait=False), api)
    play(AppState.SUCCEEDED)
    second = run_task(on_cluster("new"), api, try_number=2)

    assert second.state == "success"
    assert engine.started == 1
    assert second.logged("the DAG has changed")


@pytest.mark.parametrize("saves", [1, 2], ids=["between intent and submit", "between submit and handle"])
@pytest.mark.parametrize("changed", [False, True], ids=["same DAG", "changed DAG"])
def test_a_worker_that_dies_during_the_launch_leaves_one_app(engine, make_api, play, saves, changed) -> None:
    api = make_api(retries=1)
    intents = []

    def on_call(method, parts, body):
        if method == "PUT" and parts[-1] == "launch":
            intents.append(body["value"])
            if len(intents) >= 2:
                raise WorkerDied  # after the submit, before the handle is stored

    def on_schedule(_app_id):
        if saves == 1 and len(intents) == 1:
            intents.append({})
            raise WorkerDied

    api.on_call, engine.on_schedule = on_call, on_schedule
    with pytest.raises(WorkerDied):
        raise (run_task(on_cluster("old", on_kill="leave"), api).error or AssertionError("survived"))
    assert api.store["launch"]["state"] == "intent"
    assert engine.started == saves - 1

    api.on_call = lambda *_: None
    play(AppState.SUCCEEDED)
    second = run_task(on_cluster("new" if changed else "old"), api, try_number=2)

    assert second.state == "success"
    assert engine.started == 1
    assert api.store["launch"]["app_id"] == intents[0]["app_id"]


def test_a_retry_shows_that_it_follows_the_app_of_a_launch_that_was_interrupted(engine, make_api) -> None:
    api = make_api(retries=1)

    def die(method, parts, body):
        if method == "PUT" and parts[-1] == "launch" and engine.apps:
            raise WorkerDied

    def end_soon(app_id: str) -> None:
        threading.Timer(0.3, engine.state, [app_id, AppState.SUCCEEDED]).start()

    api.on_call = die
    run_task(on_cluster("old", on_kill="leave"), api)
    api.on_call, engine.on_schedule = lambda *_: None, end_soon
    second = run_task(on_cluster("new"), api, try_number=2)

    assert second.state == "success"
    assert engine.started == 1
    assert second.logged("from another version of the DAG; following it")


def test_an_id_of_another_owner_is_not_adopted(engine, make_api) -> None:
    run_task(on_cluster("one", wait=False), make_api())
    ran = run_task(on_cluster("two", wait=False), make_api())

    assert isinstance(ran.error, AppConflictError)


def test_an_app_of_another_owner_with_the_same_id_is_not_followed(engine, make_api) -> None:
    run_task(on_cluster("one", wait=False), make_api())
    (app_id,) = engine.apps
    engine.state(app_id, AppState.RUNNING)
    engine.apps[app_id].request.app.metadata[OWNER]["deployment"] = "elsewhere"
    api = make_api(retries=1)
    errors = [run_task(on_cluster("two"), api, try_number=number).error for number in (1, 2)]

    assert [type(error) for error in errors] == [AppConflictError] * 2
    assert engine.apps[app_id].state is AppState.RUNNING
    assert engine.started == 1


@pytest.fixture
def foreign(engine, make_api) -> str:
    """The id of a running app of another task."""
    run_task(on_cluster(wait=False), make_api(), map_index=7)
    (app_id,) = engine.apps
    return app_id


@pytest.mark.parametrize("state", ["intent", "scheduled"])
@pytest.mark.parametrize("how", ["retry", "clear"])
def test_an_app_of_another_task_in_the_record_is_left_alone(engine, make_api, foreign, how, state) -> None:
    """Users who may edit a task instance can write any id into the task state store."""
    api = make_api()
    run_task(on_cluster(wait=False), api)
    engine.state(api.store["launch"]["app_id"], AppState.FAILED)
    api.store["launch"] |= {"app_id": foreign, "state": state}
    if how == "clear":
        api.clear()
    ran = run_task(on_cluster(wait=False), api, try_number=2)

    assert engine.apps[foreign].state is not AppState.CANCELLED
    if how == "clear":
        assert ran.state == "success"
        assert engine.started == 3
    else:
        assert "does not belong to this task" in str(ran.error)
        assert engine.started == 2


def test_an_id_that_does_not_exist_is_not_taken_from_the_record(engine, make_api, play) -> None:
    """The next app of another task could not be launched."""
    api = make_api()
    run_task(on_cluster(wait=False), api)
    api.store["launch"] |= {"app_id": "the-next-app-of-payroll", "state": "intent"}
    engine.state(next(iter(engine.apps)), AppState.FAILED)
    play(AppState.SUCCEEDED)
    ran = run_task(on_cluster(), api, try_number=2)

    assert ran.state == "success"
    assert "the-next-app-of-payroll" not in engine.apps


def test_an_app_from_before_the_run_was_cleared_is_adopted_by_its_owner(engine, make_api, play, monkeypatch) -> None:
    """The start of the run, which is part of the id, is a new one."""
    api = make_api()
    run_task(on_cluster(wait=False), api)
    (app_id,) = engine.apps
    monkeypatch.setattr("airflow_provider_launch.operators._attempt.app_id_for", lambda **_parts: "another-id")
    play(AppState.SUCCEEDED)
    ran = run_task(on_cluster(), api, try_number=2)

    assert ran.state == "success"
    assert [*engine.apps] == [app_id]


def test_a_cleared_task_ends_the_old_app_and_launches_a_new_one(engine, make_api, play) -> None:
    api = make_api()
    run_task(on_cluster(wait=False), api)
    (old,) = engine.apps
    api.clear()
    ran = run_task(on_cluster(wait=False), api, try_number=2)

    assert ran.state == "success"
    assert engine.apps[old].state == AppState.CANCELLED
    assert engine.started == 2
    assert engine.cancelled == [old]


def test_a_clear_of_another_task_of_the_run_is_none_of_ours(engine, make_api, play) -> None:
    """Airflow counts the clears of a run; an app that has run for hours is not ended by that of its neighbour."""
    api = make_api(retries=2)
    run_task(on_cluster(wait=False), api)
    api.clear(another=True)
    second = run_task(on_cluster(wait=False), api, try_number=2)
    api.clear(another=True)
    play(AppState.SUCCEEDED)
    third = run_task(on_cluster(), api, try_number=3)

    assert second.logged("continuing with app")
    assert third.state == "success"
    assert (engine.started, engine.cancelled) == (1, [])


def test_a_retry_after_a_time_limit_waits_for_the_end_of_the_app(engine, make_api, monkeypatch) -> None:
    """The programs have their grace time after the cancel, and both apps have one checkpoint directory."""
    api, ended = make_api(retries=1), threading.Event()
    monkeypatch.setattr(FakeScheduler, "_cancel_existing", lambda _, app_id: engine.cancelled.append(app_id))
    run_task(on_cluster(execution_timeout=timedelta(seconds=0.5)), api)
    (old,) = engine.apps
    state_at_launch = []

    def end() -> None:
        engine.state(old, AppState.CANCELLED)
        ended.set()

    engine.on_schedule = lambda _: state_at_launch.append(engine.apps[old].state)
    threading.Timer(1.0, end).start()
    second = run_task(on_cluster(wait=False), api, try_number=2)
    ended.wait(20)

    assert second.state == "success"
    assert old in engine.cancelled
    assert state_at_launch == [AppState.CANCELLED]


def test_an_app_that_the_engine_omits_for_a_moment_has_not_ended(engine, make_api, monkeypatch) -> None:
    api = make_api(retries=1)
    monkeypatch.setattr(FakeScheduler, "_cancel_existing", lambda _, app_id: engine.cancelled.append(app_id))
    run_task(on_cluster(execution_timeout=timedelta(seconds=0.5)), api)
    (old,) = engine.apps
    answers, describe_many = [], FakeScheduler.describe_many

    def omit(self, app_ids):
        answers.append(app_ids)
        # The answers: running, omitted, running, ended.
        if len(answers) == 2:
            return dict.fromkeys(app_ids)
        if len(answers) == 4:
            engine.state(old, AppState.CANCELLED)
        return describe_many(self, app_ids)

    state_at_launch = []
    engine.on_schedule = lambda _: state_at_launch.append(engine.apps[old].state)
    monkeypatch.setattr(FakeScheduler, "describe_many", omit)
    run_task(on_cluster(wait=False), api, try_number=2)

    assert state_at_launch == [AppState.CANCELLED]


def test_a_clear_that_kills_a_task_with_leave_ends_its_app(engine, make_api) -> None:
    api = make_api()
    before = signal.getsignal(signal.SIGTERM)
    killing = threading.Timer(0.5, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM))
    killing.start()
    try:
        run_task(on_cluster(on_kill="leave"), api)
    finally:
        signal.signal(signal.SIGTERM, before)
    (old,) = engine.apps
    assert engine.cancelled == []
    api.clear(running=True)
    ran = run_task(on_cluster(wait=False), api, try_number=2)

    assert ran.state == "success"
    assert engine.cancelled == [old]
    assert engine.started == 2


@pytest.mark.parametrize(
    "error", [OSError("too many open files"), RuntimeError("a bug of a plug-in"), InvalidAppError("x")]
)
def test_an_error_that_does_not_concern_the_app_starts_no_second_one(engine, make_api, play, error) -> None:
    """The task fails, and the app may be running: the next try looks for it."""
    api = make_api(retries=1)

    def fail(_ids) -> None:
        raise error

    def break_down() -> None:
        engine.on_describe = fail

    threading.Timer(0.5, break_down).start()
    first = run_task(on_cluster(), api)
    engine.heal()
    play(AppState.SUCCEEDED)
    second = run_task(on_cluster(), api, try_number=2)

    assert first.state != "success"
    assert second.state == "success"
    assert engine.started == 1


def test_an_app_that_was_adopted_is_shown_from_now_on(engine, make_api, play) -> None:
    api = make_api(retries=1)
    run_task(on_cluster(wait=False), api)
    (app_id,) = engine.apps
    engine.state(app_id, AppState.RUNNING)
    engine.write(app_id, "worker", 0, "early\n")
    threading.Timer(1.0, lambda: engine.write(app_id, "worker", 0, "late\n")).start()
    threading.Timer(1.3, lambda: engine.state(app_id, AppState.SUCCEEDED)).start()
    ran = run_task(on_cluster(logs_from="now"), api, try_number=2)

    assert ran.state == "success"
    assert [line for line in ran.lines if line.startswith("[")] == ["[worker/0] late"]


def test_a_wrong_result_of_an_app_that_succeeded_is_final(engine, make_api, play) -> None:
    """The next app would hand back no better one."""

    def refuse(_app_id):
        return parse_result(b"no JSON", 7)

    api = make_api(retries=3)
    play(AppState.SUCCEEDED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeScheduler, "result", lambda _self, app_id: refuse(app_id))
        ran = run_task(on_cluster(), api)

    assert ran.state == "failed"
    assert "the document is not JSON" in str(ran.error)
    assert engine.started == 1


def test_the_result_is_read_while_the_rest_of_the_log_is(engine, api, play, monkeypatch) -> None:
    read, asked = threading.Event(), []

    def result(_scheduler, app_id):
        asked.append(app_id)
        read.set()
        return len(asked)

    def last_lines(*_: object) -> None:
        app = next(iter(engine.apps.values()))
        if is_terminal(app.state):
            assert read.wait(10)

    monkeypatch.setattr(FakeScheduler, "result", result)
    engine.on_read = last_lines
    play(AppState.SUCCEEDED)
    ran = run_task(on_cluster(), api)

    assert ran.state == "success"
    assert api.xcoms["t", "return_value"]["result"] == 1
    assert not ran.logged("cannot read the log")


def test_an_outage_while_the_result_is_read_is_survived(engine, api, play, monkeypatch) -> None:
    answers = [SchedulerUnavailableError("away"), SchedulerUnavailableError("still away"), {"x": 1}]

    def result(_scheduler, _app_id):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(FakeScheduler, "result", result)
    play(AppState.SUCCEEDED)
    ran = run_task(on_cluster(), api)

    assert ran.state == "success"
    assert api.xcoms["t", "return_value"]["result"] == {"x": 1}
    assert ran.logged("the scheduler does not answer")


def test_a_cleared_success_runs_again(engine, make_api, play) -> None:
    api = make_api()
    play(AppState.SUCCEEDED, AppState.SUCCEEDED)
    run_task(on_cluster(), api)
    api.clear()
    run_task(on_cluster(), api, try_number=2)

    assert engine.started == 2


def test_a_cleared_success_runs_again_though_the_dag_allows_fewer_retries(engine, make_api, play) -> None:
    """Airflow computes the limit again from the tries so far and the current DAG: here it is the same."""
    api = make_api(retries=1)
    play(AppState.SUCCEEDED, AppState.SUCCEEDED)
    run_task(on_cluster(retries=1), api)
    api.clear()
    api.tries["max_tries"] = 1
    second = run_task(on_cluster(retries=0), api, try_number=2)

    assert second.state == "success"
    assert engine.started == 2


def test_a_kill_while_the_app_from_before_a_clear_is_searched_ends_it(engine, make_api) -> None:
    api = make_api()
    run_task(on_cluster(wait=False), api)
    (old,) = engine.apps
    api.clear()
    before = signal.getsignal(signal.SIGTERM)

    def killed(_ids: object) -> None:
        engine.heal()
        signal.raise_signal(signal.SIGTERM)
        raise SchedulerUnavailableError("for a moment")

    engine.on_describe = killed
    try:
        ran = run_task(on_cluster(wait=False), api, try_number=2)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert ran.state == "failed"
    assert engine.apps[old].state == AppState.CANCELLED
    assert engine.started == 1


def test_a_slow_answer_is_not_an_outage(engine, api, play) -> None:
    """Even with `unavailable_for_s=0` a task waits for answers."""
    play(AppState.SUCCEEDED)
    engine.on_describe = lambda _ids: time.sleep(0.2)

    assert run_task(on_cluster(unavailable_for_s=0), api).state == "success"


def test_another_scheduler_behind_the_connection_is_refused(engine, make_api) -> None:
    """Otherwise a retry would call the app gone, and launch a second one."""
    api = make_api(retries=1)
    run_task(on_cluster(wait=False), api)
    make_api(adopts=False)
    ran = run_task(on_cluster(), api, try_number=2)

    assert "restore the connection" in str(ran.error)
    assert engine.started == 1


def test_without_adopt_the_operator_warns(make_api) -> None:
    ran = run_task(on_cluster(wait=False), make_api(adopts=False))

    assert ran.state == "success"
    assert ran.logged("cannot adopt")


def test_an_app_that_vanished_is_an_unknown_outcome(engine, api) -> None:
    engine.on_scheduled = lambda app_id: threading.Timer(0.5, engine.forget, [app_id]).start()
    ran = run_task(on_cluster(), api)

    assert ran.state == "failed"
    assert isinstance(ran.error, UnknownOutcomeError)


def test_an_outage_is_survived_and_reported_once(engine, api, play) -> None:
    def begin(app_id: str) -> None:
        threading.Timer(0.3, engine.cut).start()
        threading.Timer(1.2, heal, [app_id]).start()

    def heal(app_id: str) -> None:
        engine.heal()
        engine.state(app_id, AppState.SUCCEEDED)

    engine.on_scheduled = begin
    ran = run_task(on_cluster(), api)

    assert ran.state == "success"
    assert sum("does not answer" in line for line in ran.lines) == 1


def test_an_outage_that_is_too_long_fails_and_the_retry_continues(engine, make_api, play) -> None:
    api = make_api(retries=1)
    threading.Timer(0.3, engine.cut).start()
    started = time.monotonic()
    first = run_task(on_cluster(unavailable_for_s=1), api)
    engine.heal()
    play(AppState.SUCCEEDED)
    second = run_task(on_cluster(), api, try_number=2)

    assert isinstance(first.error, SchedulerUnavailableError)
    assert time.monotonic() - started < 10
    assert (first.state, second.state) == ("up_for_retry", "success")
    assert engine.started == 1


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"app": lambda context, jinja_env: {"name": "x"}}, "roles"),
        ({"app": lambda context, jinja_env: 3}, "not int"),
        ({"cfg": {"qeue": "a"}}, "queue"),
        ({"time_limit_s": 5}, "time_limit_s"),
    ],
)
def test_a_permanent_error_is_not_retried(engine, make_api, kwargs, message) -> None:
    api = make_api(retries=3)
    role = [] if "app" in kwargs else [sh("true")]
    ran = run_task(launch(*role, launch_conn_id="cluster", **kwargs), api)

    assert ran.state == "failed"
    assert message in str(ran.error)
    assert isinstance(ran.error, InvalidAppError)
    assert engine.started == 0


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"on_kill": "stop"}, "on_kill"),
        ({"logs_from": "end"}, "logs_from"),
        ({"streams": "stdoutt"}, "streams"),
        ({"poll_interval_s": 0}, "poll_interval_s"),
        ({"app": {"name": "a", "roles": [{"name": "w", "imgae": ""}]}}, "roles.0"),
        ({"app": 3}, "AppDef"),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(kwargs, message) -> None:
    with pytest.raises(InvalidAppError, match=message):
        launch(sh("true"), **kwargs)


def test_a_broken_log_source_does_not_change_the_outcome(engine, api, play, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__LAUNCH__LOG_DRAIN_S", "2")

    def refuse(*_):
        raise RuntimeError("log server is down")

    engine.on_read = refuse
    play(AppState.SUCCEEDED)
    ran = run_task(on_cluster(), api)

    assert ran.state == "success"


def test_the_reduced_log_follows_the_request(engine, api, play) -> None:
    def start(app_id):
        def write() -> None:
            time.sleep(0.2)
            engine.write(app_id, "a", 0, "from a\n")
            engine.write(app_id, "b", 0, "from b\n")
            engine.state(app_id, AppState.SUCCEEDED)

        threading.Thread(target=write, daemon=True).start()

    engine.on_schedule = start
    ran = run_task(launch(sh("x", name="a"), sh("x", name="b"), launch_conn_id="cluster", log_roles=["b"]), api)

    assert ran.logged("[b/0] from b")
    assert not ran.logged("from a")


def test_a_dry_run_closes_its_client(engine, api) -> None:
    launch(sh("x"), launch_conn_id="cluster").dry_run()

    assert [scheduler.closed for scheduler in OPENED] == [1]


def test_a_task_that_is_killed_before_its_run_launches_nothing(engine, api) -> None:
    """Airflow may call `on_kill` while it renders the fields."""
    task = on_cluster(wait=False)
    task.on_kill()
    ran = run_task(task, api)

    assert isinstance(ran.error, AppKilledError)
    assert engine.started == 0


def test_a_kill_while_the_app_is_submitted_ends_it(engine, api) -> None:
    """The thread that cancels comes before the app exists, so the task cancels it again."""
    before = signal.getsignal(signal.SIGTERM)
    engine.on_schedule = lambda _app_id: signal.raise_signal(signal.SIGTERM)
    try:
        ran = run_task(on_cluster(), api)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert ran.state == "failed"
    assert [app.state for app in engine.apps.values()] == [AppState.CANCELLED]
    assert (api.store["launch"]["state"], api.store["launch"]["outcome"]) == ("closed", "AppKilledError")


@pytest.mark.parametrize("error", [SchedulerRejectedError("no right to cancel"), RuntimeError("no right to cancel")])
def test_a_killed_task_names_the_app_that_it_could_not_cancel(engine, api, monkeypatch, error) -> None:
    def refuse(_self: FakeScheduler, _app_id: str) -> None:
        raise error

    monkeypatch.setattr("airflow_provider_launch.operators._attempt._KILLED_CANCEL_S", 0.3)
    monkeypatch.setattr(FakeScheduler, "_cancel_existing", refuse)
    before = signal.getsignal(signal.SIGTERM)
    engine.on_schedule = lambda _app_id: signal.raise_signal(signal.SIGTERM)
    try:
        ran = run_task(on_cluster(), api)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert isinstance(ran.error, AppKilledError)
    assert ran.logged("could not be cancelled: no right to cancel; cancel it, or it runs to its end")
    assert (api.store["launch"]["state"], api.store["launch"]["outcome"]) == ("scheduled", KILLED)


def test_a_kill_does_not_need_the_state_of_the_app(engine, api, monkeypatch) -> None:
    """It is asked for only because the app may have succeeded."""
    cancel = FakeScheduler._cancel_existing

    def cancel_and_fail(self: FakeScheduler, app_id: str) -> None:
        cancel(self, app_id)

        def fail(_ids) -> None:
            raise RuntimeError("a bug of a plug-in")

        if threading.current_thread() is threading.main_thread():
            engine.on_describe = fail

    monkeypatch.setattr(FakeScheduler, "_cancel_existing", cancel_and_fail)
    before = signal.getsignal(signal.SIGTERM)
    engine.on_schedule = lambda _app_id: signal.raise_signal(signal.SIGTERM)
    try:
        ran = run_task(on_cluster(), api)
    finally:
        signal.signal(signal.SIGTERM, before)
    engine.heal()

    assert isinstance(ran.error, AppKilledError)
    assert ran.logged("was cancelled")
    assert api.store["launch"]["state"] == "closed"


class Clock:
    """Time that passes only in a sleep."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 6)


def test_a_call_is_repeated_with_longer_pauses_up_to_the_limit(monkeypatch) -> None:
    clock, asked, warnings = Clock(), [], []

    def refuse() -> None:
        asked.append(clock.now)
        assert len(asked) < 50
        raise SchedulerUnavailableError("connection refused")

    monkeypatch.setattr(task_run, "time", clock)
    with pytest.raises(SchedulerUnavailableError, match="connection refused"):
        task_run.OutageRetry(lambda: None, 20.0, warnings.append)(refuse)

    assert asked == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 20]
    assert warnings == ["the scheduler does not answer, asking again for up to 20 s: connection refused"]


# ---- the follower of a worker ----------------------------------------------------------------------------------------


def test_a_task_that_defers_leaves_no_thread(engine, api) -> None:
    """`dag.test()` runs all tasks of a DAG in one process."""
    engine.on_scheduled = lambda app_id: engine.state(app_id, AppState.RUNNING)
    ran = run_task(on_cluster(deferrable=True, defer_after_s=0.3), api)

    assert ran.state == "deferred"
    assert launch_threads() == []


def test_a_log_that_cannot_be_finished_changes_no_outcome(api, play, monkeypatch) -> None:
    finished = []

    def fail(_self: TaskLog) -> None:
        finished.append("a log")
        raise OSError("no space left")

    monkeypatch.setattr(TaskLog, "finish", fail)
    play(AppState.SUCCEEDED)
    ran = run_task(on_cluster(), api)

    assert ran.state == "success"
    assert finished


def test_a_log_that_fails_again_and_again_is_given_up(engine, api, monkeypatch) -> None:
    """Each attempt may take a while, and the outcome would come later and later."""
    tried = []

    def fail(_self: TaskLog, event: object) -> None:
        tried.append(event)
        if len(tried) == 5:
            threading.Timer(1.5, engine.state, [next(iter(engine.apps)), AppState.SUCCEEDED]).start()
        raise OSError("no space left")

    monkeypatch.setattr(TaskLog, "write_event", fail)
    engine.on_scheduled = lambda app_id: engine.state(app_id, AppState.RUNNING)
    ran = run_task(on_cluster(), api)

    assert ran.state == "success"
    assert len(tried) == 5


def test_lines_that_wait_for_their_order_are_shown_when_the_task_is_killed(engine, api, monkeypatch) -> None:
    add, waiting = LineOrder.add, []

    def killed(self: LineOrder, event: object):
        yield from add(self, event)
        if isinstance(event, LogLines):
            waiting.append(event)
            signal.raise_signal(signal.SIGTERM)

    def start(app_id: str) -> None:
        engine.state(app_id, AppState.RUNNING)
        engine.write(app_id, "worker", 0, "last words\n")

    monkeypatch.setattr(LineOrder, "add", killed)
    engine.on_scheduled = start
    before = signal.getsignal(signal.SIGTERM)
    try:
        ran = run_task(on_cluster(), api)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert waiting
    assert isinstance(ran.error, AppKilledError)
    assert ran.logged("[worker/0] last words")


def test_an_app_that_hangs_is_cancelled_again_after_another_silence(engine, api, monkeypatch) -> None:
    cancel, asked, ends = FakeScheduler._cancel_existing, [], []

    def refuse(self: FakeScheduler, app_id: str) -> None:
        asked.append(time.monotonic())
        if len(asked) < 3:
            raise SchedulerRejectedError("no right to cancel")
        cancel(self, app_id)

    def start(app_id: str) -> None:
        engine.state(app_id, AppState.RUNNING)
        ends.append(threading.Timer(60, engine.state, [app_id, AppState.SUCCEEDED]))
        ends[0].start()

    monkeypatch.setattr(FakeScheduler, "_cancel_existing", refuse)
    engine.on_scheduled = start
    ran = run_task(on_cluster(silence_limit_s=1), api)
    ends[0].cancel()

    assert ran.state == "failed"
    assert "hangs: no replica has written a line" in str(ran.error)
    assert sum("it could not be cancelled: no right to cancel" in line for line in ran.lines) == 2
    assert min(later - earlier for earlier, later in itertools.pairwise(asked)) >= 1
