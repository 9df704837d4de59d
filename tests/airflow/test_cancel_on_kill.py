"""The thread that cancels an app for a signal handler, on local processes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_provider_launch._task.cancel_on_kill import AppKilledError, CancelThread
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import AppDef, AppState, Role
from tests.airflow.support import FakeExecutionApi, launch, run_task, sh
from tests.engines.kubernetes.process import until
from tests.support.fake_scheduler import FakeScheduler

END_S = 30


@pytest.fixture
def runner():
    with Runner("kills") as runner:
        yield runner


@pytest.fixture
def handle(runner):
    """A running app."""
    app = AppDef("sleeps", [Role("r", "", entrypoint="sleep", args=["60"])])
    handle = runner.schedule(runner.dryrun(app, "local", {}))
    until(lambda: state(runner, handle) is AppState.RUNNING, END_S, "it runs")
    yield handle
    runner.cancel(handle)


@pytest.fixture
def make_thread():
    made = []

    def make(app_id: str, scheduler=lambda: create_scheduler("kills")) -> CancelThread:
        thread = CancelThread()
        thread.start(scheduler)
        thread.app_id = app_id
        made.append(thread)
        return thread

    yield make
    for thread in made:
        thread.close()


def state(runner, handle):
    return runner.status(handle).state


def id_of(handle):
    return handle.rpartition("/")[2]


def end(thread):
    thread._thread.join(END_S)
    assert not thread._thread.is_alive()


def test_an_app_whose_task_left_runs_on(runner, handle, make_thread):
    made = []
    thread = make_thread(id_of(handle), lambda: made.append("a client"))
    thread.close()
    end(thread)

    assert made == []
    assert thread.error is None
    assert state(runner, handle) is AppState.RUNNING


def test_a_kill_returns_when_the_app_is_cancelled(runner, handle, make_thread):
    """Airflow sends SIGKILL some seconds after SIGTERM, so that nothing can be sent later."""
    thread = make_thread(id_of(handle))
    thread.fire()

    assert not thread._thread.is_alive()
    until(lambda: state(runner, handle) is AppState.CANCELLED, END_S, "it is cancelled")


def test_a_second_kill_changes_nothing(runner, handle, make_thread):
    thread = make_thread(id_of(handle))
    thread.fire()
    thread.fire()
    end(thread)

    assert thread.error is None


def test_a_kill_before_there_is_an_app_asks_no_scheduler(make_thread):
    made = []
    thread = make_thread("", lambda: made.append("a client"))
    thread.fire()
    end(thread)

    assert made == []


def test_a_kill_before_the_thread_starts_is_seen_by_the_run():
    thread = CancelThread()
    thread.check()
    thread.fire()

    with pytest.raises(AppKilledError, match="the task was killed"):
        thread.check()


def test_a_task_that_keeps_its_app_has_no_thread():
    before = threading.active_count()
    thread = CancelThread()
    thread.start(None)
    thread.fire()
    thread.close()

    assert threading.active_count() == before


def test_the_error_of_the_client_is_kept_for_the_task(make_thread):
    def refuse():
        raise PermissionError("no access")

    thread = make_thread("an-app", refuse)
    thread.fire()
    end(thread)

    assert isinstance(thread.error, PermissionError)


@pytest.mark.parametrize("fails", [False, True], ids=["cancelled", "refused"])
def test_the_client_of_the_thread_is_closed(make_thread, fails):
    """`dag.test()` runs all tasks of a DAG in one process."""

    class Refusing(FakeScheduler):
        def cancel(self, app_id: str) -> None:
            if fails:
                raise PermissionError("no access")

    scheduler = Refusing()
    thread = make_thread("an-app", lambda: scheduler)
    thread.fire()
    end(thread)

    assert scheduler.closed == 1
    assert (thread.error is not None) == fails


def test_the_thread_leaves_no_open_pipe():
    def count() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    before = count()
    for number in range(20):
        thread = CancelThread()
        thread.start(FakeScheduler)
        if number % 2:
            thread.fire()
        thread.close()
        end(thread)

    # Threads of other tests may open or close some meanwhile.
    assert count() < before + 10


@pytest.mark.parametrize("script", ["true", "exit 3"])
def test_a_task_that_has_ended_leaves_no_thread(script):
    """`dag.test()` runs all tasks of a DAG in one process."""

    def count() -> int:
        return sum(thread.name == "launch-killer" for thread in threading.enumerate())

    before = count()
    run_task(launch(sh(script)), FakeExecutionApi())

    until(lambda: count() <= before, END_S, "the thread ends")
