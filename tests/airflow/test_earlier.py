"""Airflow without a task state store: a try finds the app of earlier tries in the scheduler, by its id."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_launch._task.errors import FinalAppError
from airflow_provider_launch.operators import _earlier
from airflow_provider_launch.pipelines.attempt import Attempt
from airflow_provider_launch.specs.owner import COUNTS
from airflow_provider_launch.specs.states import AppState
from tests.airflow import support
from tests.airflow.support import FakeExecutionApi, launch, run_task, sh
from tests.airflow.test_operator_tries import on_cluster, play
from tests.airflow.test_reconciler import failed_trigger
from tests.airflow.versions import HAS_STORE

__all__ = ["play"]

needs_store = pytest.mark.skipif(not HAS_STORE, reason="this Airflow has no task state store to be upgraded to")


@pytest.fixture(autouse=True)
def upgrade(monkeypatch) -> Callable[[], None]:
    """As Airflow 3.1 and 3.2; with a short wait for an app that a kill may be ending. Calling it upgrades Airflow."""
    plain = RuntimeTaskInstance.get_template_context

    def context_without_store(self):
        found = plain(self)
        found.pop("task_state_store", None)
        return found

    monkeypatch.setattr(RuntimeTaskInstance, "get_template_context", context_without_store)
    monkeypatch.setenv("AIRFLOW__LAUNCH__REPLACE_WAIT_S", "1")
    monkeypatch.setenv("AIRFLOW__LAUNCH__DEPLOYMENT_ID", "tests")
    return lambda: monkeypatch.setattr(RuntimeTaskInstance, "get_template_context", plain)


def after_describes(engine, number: int, act) -> None:
    """Call `act` when the scheduler was asked so many times: twice for the app, then while the try waits."""
    left = [act]
    before = len(engine.describe_calls)

    def count(_ids) -> None:
        if left and len(engine.describe_calls) - before >= number:
            left.pop()()

    engine.on_describe = count


def test_a_retry_after_a_failure_launches_the_next_app(engine, make_api, play) -> None:
    api = make_api(retries=1)
    play(AppState.FAILED, AppState.SUCCEEDED, exit_codes={("worker", 0): 1})

    first = run_task(on_cluster(), api)
    second = run_task(on_cluster(), api, try_number=2)

    assert (first.state, second.state) == ("up_for_retry", "success")
    assert engine.started == 2
    assert api.store == {}


def test_a_retry_continues_with_a_running_app(engine, make_api, play) -> None:
    api = make_api(retries=3)
    run_task(on_cluster(wait=False), api)
    (app_id,) = engine.apps
    engine.state(app_id, AppState.RUNNING)
    second = run_task(on_cluster(wait=False), api, try_number=2)
    play(AppState.SUCCEEDED)
    # The second try launched nothing, so the third one has to look further back.
    third = run_task(on_cluster("changed"), api, try_number=3)

    assert second.logged(f"continuing with app {app_id} of the last try, which is RUNNING")
    assert not second.logged("the DAG has changed")
    assert third.state == "success"
    assert (engine.started, engine.cancelled) == (1, [])


def test_a_retry_completes_a_submission(engine, make_api, play) -> None:
    """An app that has not started may have been submitted in part; the same id is submitted again."""
    api = make_api(retries=1)
    run_task(on_cluster(wait=False), api)
    (app_id,) = engine.apps
    engine.state(app_id, AppState.PENDING)
    again: list[str] = []
    engine.on_schedule = again.append
    second = run_task(on_cluster(wait=False), api, try_number=2)

    assert second.state == "success"
    assert (again, engine.started) == ([app_id], 1)


def test_a_retry_takes_the_result_of_an_app_that_succeeded_meanwhile(engine, make_api) -> None:
    api = make_api(retries=1)
    run_task(on_cluster(wait=False), api)
    (app_id,) = engine.apps
    engine.state(app_id, AppState.SUCCEEDED)
    engine.result(app_id, {"x": 1})

    assert run_task(on_cluster(), api, try_number=2).state == "success"
    assert engine.started == 1
    assert api.xcoms["t", "return_value"]["result"] == {"x": 1}


@pytest.mark.parametrize("state", [AppState.RUNNING, AppState.PENDING, AppState.SUCCEEDED])
def test_a_cleared_task_ends_the_old_app_and_launches_a_new_one(engine, make_api, state) -> None:
    """Airflow 3.1 does not count this clear; it raises the limit of tries."""
    api = make_api()
    run_task(on_cluster(wait=False), api)
    (old,) = engine.apps
    engine.state(old, state)
    api.clear()
    api.clear_number = 0
    ran = run_task(on_cluster(wait=False), api, try_number=2)

    assert ran.state == "success"
    assert engine.started == 2
    assert engine.cancelled == ([] if state == AppState.SUCCEEDED else [old])


def test_a_clear_of_another_task_of_the_run_is_none_of_ours(engine, make_api, play) -> None:
    api = make_api(retries=2)
    run_task(on_cluster(wait=False), api)
    engine.state(next(iter(engine.apps)), AppState.RUNNING)
    api.clear(another=True)
    second = run_task(on_cluster(wait=False), api, try_number=2)

    assert second.logged("continuing with app")
    assert (engine.started, engine.cancelled) == (1, [])


def test_an_app_that_a_kill_is_ending_is_not_followed(engine, make_api, monkeypatch) -> None:
    """A clear of a running task kills it: its app may need seconds to end, and the next try starts at once."""
    monkeypatch.setenv("AIRFLOW__LAUNCH__REPLACE_WAIT_S", "20")
    api = make_api()
    run_task(on_cluster(wait=False), api)
    (old,) = engine.apps
    engine.state(old, AppState.RUNNING)
    after_describes(engine, 5, lambda: engine.state(old, AppState.CANCELLED))
    api.clear(running=True)
    ran = run_task(on_cluster(wait=False), api, try_number=2)

    assert ran.state == "success"
    assert ran.logged("a kill may be ending it")
    assert engine.started == 2


def test_a_clear_of_a_finished_run_ends_the_app_from_before(engine, make_api, monkeypatch) -> None:
    """Airflow then gives the run another start, which is a part of the ids."""
    api = make_api()
    run_task(on_cluster(wait=False), api)
    run_task(on_cluster(wait=False), api, map_index=3)
    old, another = engine.apps
    for app_id in engine.apps:
        engine.state(app_id, AppState.RUNNING)
    api.clear()
    monkeypatch.setitem(support.RUN, "start_date", "2026-01-02T00:00:00Z")
    ran = run_task(on_cluster(wait=False), api, try_number=2)

    assert ran.state == "success"
    assert engine.cancelled == [old]
    assert engine.apps[another].state == AppState.RUNNING
    assert engine.started == 3


def test_two_running_apps_become_one(engine, make_api, play) -> None:
    """An older one can only be left by a try that could not reach the scheduler."""
    api = make_api(retries=5)
    run_task(on_cluster(wait=False), api)
    engine.state(next(iter(engine.apps)), AppState.RUNNING)
    run_task(on_cluster(wait=False), api, try_number=2)
    (old,) = engine.apps
    engine.state(old, AppState.FAILED)
    run_task(on_cluster(wait=False), api, try_number=3)
    (new,) = engine.apps.keys() - {old}
    for app_id in (old, new):
        engine.state(app_id, AppState.RUNNING)
    ran = run_task(on_cluster(wait=False), api, try_number=4)

    assert ran.logged(f"continuing with app {new}")
    assert engine.cancelled == [old]


@pytest.mark.parametrize("text", ["[1", "[1, 2]", '["a", 1, 1, 1]', "[true, 1, 1, 1]", "9" * 5000, "null"])
def test_damaged_counts_are_unknown(text) -> None:
    assert _earlier._counts_of({COUNTS: text}) == _earlier._UNKNOWN


def test_with_leave_a_running_app_is_followed_at_once(engine, make_api, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__LAUNCH__REPLACE_WAIT_S", "60")
    api = make_api(retries=1)
    run_task(on_cluster(wait=False, on_kill="leave"), api)
    engine.state(next(iter(engine.apps)), AppState.RUNNING)
    second = run_task(on_cluster(wait=False, on_kill="leave"), api, try_number=2)

    assert second.logged("continuing with app")
    assert not second.logged("a kill may be ending it")


def test_a_kill_while_the_app_is_polled_ends_it(engine, make_api, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__LAUNCH__REPLACE_WAIT_S", "60")
    api = make_api(retries=1)
    run_task(on_cluster(wait=False), api)
    (app_id,) = engine.apps
    engine.state(app_id, AppState.RUNNING)
    before = signal.getsignal(signal.SIGTERM)
    after_describes(engine, 5, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM))
    try:
        ran = run_task(on_cluster(), api, try_number=2)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert ran.state != "success"
    assert engine.cancelled == [app_id]


def test_an_engine_keeps_the_counts(monkeypatch) -> None:
    """The same with local processes, whose `describe` has what was stored with the app."""
    api = FakeExecutionApi(retries=1)
    run_task(launch(sh("sleep 60"), wait=False, cfg={"grace_s": 1}), api)
    second = run_task(launch(sh("sleep 60"), wait=False, cfg={"grace_s": 1}), api, try_number=2)
    api.clear()
    third = run_task(launch(sh("true"), cfg={"grace_s": 1}), api, try_number=3)

    assert second.logged("continuing with app")
    assert third.logged("the task was cleared: cancelling app")
    assert third.state == "success"


@pytest.mark.parametrize(("catalog", "objects"), [("*", []), ("", ["model"])])
def test_a_step_with_a_catalog_is_refused(catalog, objects) -> None:
    """A retry that follows the app, or the worker after a deferral, could not find the folder of the files."""
    operator = SimpleNamespace(step=SimpleNamespace(catalog=catalog, command_type="shell", returns=None))
    attempt = Attempt(operator, {"ti": SimpleNamespace(task_id="train")}, None, None)

    with pytest.raises(FinalAppError, match=r"task 'train' .* objects of the catalog, which needs Airflow 3\.3"):
        attempt.prepare_files(objects)


@needs_store
def test_a_retry_after_an_upgrade_follows_the_app_from_before(engine, make_api, play, upgrade) -> None:
    """It was launched without a record; from this try on there is one."""
    api = make_api(retries=3)
    run_task(on_cluster(wait=False), api)
    (app_id,) = engine.apps
    engine.state(app_id, AppState.RUNNING)
    upgrade()
    second = run_task(on_cluster(wait=False), api, try_number=2)
    play(AppState.SUCCEEDED)
    third = run_task(on_cluster(), api, try_number=3)

    assert second.logged(f"continuing with app {app_id} of the last try, which is RUNNING")
    assert api.store["launch"]["app_id"] == app_id
    assert third.state == "success"
    assert (engine.started, engine.cancelled) == (1, [])


@needs_store
def test_a_clear_after_an_upgrade_replaces_the_app_from_before(engine, make_api, upgrade) -> None:
    api = make_api()
    run_task(on_cluster(wait=False), api)
    (old,) = engine.apps
    engine.state(old, AppState.RUNNING)
    upgrade()
    api.clear()
    ran = run_task(on_cluster(wait=False), api, try_number=2)

    assert ran.state == "success"
    assert (engine.started, engine.cancelled) == (2, [old])
    assert api.store["launch"]["app_id"] != old


def test_a_worker_follows_the_app_of_a_trigger_that_failed(engine, make_api) -> None:
    """The event of such a trigger does not name the app."""
    engine.on_scheduled = lambda app_id: engine.state(app_id, AppState.RUNNING)
    api = make_api(retries=1)
    task = on_cluster(deferrable=True)
    assert run_task(task, api).state == "deferred"
    (app_id,) = engine.apps
    engine.state(app_id, AppState.SUCCEEDED, exit_codes={("worker", 0): 0})
    api.resume = failed_trigger()
    ran = run_task(task, api)

    assert ran.state == "success", ran.error
    assert ran.logged("the trigger has failed")
    assert engine.started == 1
