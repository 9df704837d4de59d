"""An app that has not started in time is cancelled, and the error names the reason; in both modes."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from airflow_provider_launch._task.cancel_on_kill import AppKilledError, CancelThread
from airflow_provider_launch.follow import state_tracker
from airflow_provider_launch.operators._record import KILLED
from airflow_provider_launch.specs.errors import (
    AppNotStartedError,
    InvalidAppError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.specs.states import AppState
from tests.airflow.guarantees import launch as launch_at
from tests.airflow.support import FakeExecutionApi, launch, run_task, run_to_end, sh
from tests.airflow.versions import serialize
from tests.support.apps import until
from tests.support.fake_scheduler import FakeScheduler

in_modes = pytest.mark.parametrize(
    "how", [{}, {"deferrable": True, "defer_after_s": 0}, {"deferrable": True, "defer_after_s": 0.4}], ids=str
)


@pytest.fixture
def pending(engine):
    """Each app that is launched waits in a queue."""
    launched = []

    def wait_in_queue(app_id: str) -> None:
        launched.append(app_id)
        engine.state(app_id, AppState.PENDING, "queue research is full")

    engine.on_scheduled = wait_in_queue
    return launched


@in_modes
def test_an_app_that_does_not_start_is_cancelled(engine, api, pending, how) -> None:
    """The time runs on from worker to triggerer and back."""
    began = time.monotonic()
    task = launch(sh("true"), launch_conn_id="cluster", start_limit_s=1.5, poll_interval_s=0.05, **how)
    ran, _ = run_to_end(task, api)

    assert ran.state in {"failed", "up_for_retry"}
    assert "has not started within its start_limit_s; it waited for: queue research is full" in str(ran.error)
    assert engine.cancelled == pending
    assert time.monotonic() - began > 1.0
    assert ran.logged("did not start within its limit and was cancelled")


@in_modes
def test_an_app_that_has_started_has_no_limit(engine, api, how) -> None:
    def begin(app_id: str) -> None:
        engine.state(app_id, AppState.RUNNING)
        threading.Timer(1.5, lambda: engine.state(app_id, AppState.SUCCEEDED)).start()

    engine.on_scheduled = begin
    task = launch(sh("true"), launch_conn_id="cluster", start_limit_s=0.6, poll_interval_s=0.05, **how)
    ran, _ = run_to_end(task, api)

    assert ran.state == "success"
    assert engine.cancelled == []


def test_an_app_that_waits_again_has_started_also_for_another_process(engine, api) -> None:
    """A job that Slurm puts back into its queue; the worker saw it run, the triggerer never did."""

    def begin(app_id: str) -> None:
        engine.state(app_id, AppState.RUNNING)
        seen = len(engine.describe_calls)

        def go_on() -> None:
            until(lambda: len(engine.describe_calls) > seen + 3)
            engine.state(app_id, AppState.PENDING, "requeued")
            time.sleep(2)
            engine.state(app_id, AppState.SUCCEEDED)

        threading.Thread(target=go_on, daemon=True).start()

    engine.on_scheduled = begin
    how = {"deferrable": True, "defer_after_s": 0.5, "start_limit_s": 0.6, "poll_interval_s": 0.05}
    ran, _ = run_to_end(launch(sh("true"), launch_conn_id="cluster", **how), api)

    assert ran.state == "success", ran.error
    assert engine.cancelled == []


def test_a_build_does_not_count_as_waiting(engine, api, monkeypatch) -> None:
    dryrun, built = FakeScheduler.submit_dryrun, []

    def build(self, *args, **kwargs):
        info = dryrun(self, *args, **kwargs)
        time.sleep(0.2)
        built.append(time.time())
        return info

    monkeypatch.setattr(FakeScheduler, "submit_dryrun", build)
    run_task(launch(sh("true"), launch_conn_id="cluster", wait=False), api)

    assert api.store["launch"]["since"] >= built[-1]


@in_modes
def test_the_time_runs_on_over_lost_workers(engine, make_api, pending, how) -> None:
    """An app waited for as long again in each try that adopted it."""
    api = make_api(retries=1)
    run_task(launch(sh("true"), launch_conn_id="cluster", wait=False), api)
    api.store["launch"]["since"] -= 1000.0
    began = time.monotonic()
    task = launch(sh("true"), launch_conn_id="cluster", start_limit_s=900, poll_interval_s=0.05, **how)
    ran, _ = run_to_end(task, api, try_number=2)

    assert isinstance(ran.error, AppNotStartedError)
    assert engine.cancelled == pending
    assert len(pending) == 1
    assert time.monotonic() - began < 600


def test_the_time_runs_on_where_a_trigger_has_failed(engine, make_api, pending) -> None:
    """Its event says nothing of the past."""
    api = make_api(retries=1)
    how = {"deferrable": True, "defer_after_s": 0, "start_limit_s": 900, "poll_interval_s": 0.05}
    run_task(launch(sh("true"), launch_conn_id="cluster", **how), api)
    api.store["launch"]["since"] -= 1000.0
    event = {"handle": "", "reason": "error", "text": "the triggerer does not know the class"}
    api.resume = {"next_method": "resume", "next_kwargs": serialize({"event": event})}
    ran = run_task(launch(sh("true"), launch_conn_id="cluster", **how), api)

    assert isinstance(ran.error, AppNotStartedError)
    assert engine.cancelled == pending


@pytest.mark.parametrize("end", [None, AppState.SUCCEEDED])
def test_an_app_that_started_at_the_last_moment_is_not_forgotten(engine, make_api, pending, monkeypatch, end) -> None:
    """Its cancel comes too late; a retry would launch another one next to it."""
    monkeypatch.setenv("AIRFLOW__LAUNCH__REPLACE_WAIT_S", "0.5")
    monkeypatch.setattr(
        FakeScheduler,
        "_cancel_existing",
        lambda self, app_id: self.engine.state(app_id, end or AppState.RUNNING),
    )
    api = make_api(retries=1)
    how = {"start_limit_s": 0.5, "poll_interval_s": 0.05}
    first = run_task(launch(sh("true"), launch_conn_id="cluster", **how), api)
    assert isinstance(first.error, AppNotStartedError)
    assert api.store["launch"]["state"] == "scheduled"

    threading.Timer(0.5, lambda: engine.state(pending[0], AppState.SUCCEEDED)).start()
    second = run_task(launch(sh("true"), launch_conn_id="cluster", **how), api, try_number=2)

    assert second.state == "success", second.lines
    assert engine.started == 1


@in_modes
def test_an_app_that_cannot_start_fails_by_itself(engine, api, pending, how, monkeypatch) -> None:
    """Without any limit: a refused image does not appear by itself."""
    monkeypatch.setattr(state_tracker, "STUCK_S", 0.5)
    plain = FakeScheduler.describe_many

    def stuck(self, app_ids):
        found = plain(self, app_ids)
        for response in filter(None, found.values()):
            response.is_stuck = response.state is AppState.PENDING
        return found

    monkeypatch.setattr(FakeScheduler, "describe_many", stuck)
    task = launch(sh("true"), launch_conn_id="cluster", poll_interval_s=0.05, **how)
    ran, _ = run_to_end(task, api)

    assert "the app cannot start; it waited for: queue research is full" in str(ran.error)
    assert engine.cancelled == pending


def test_a_task_that_does_not_wait_for_the_end_waits_for_the_start(engine, api) -> None:
    def begin(app_id: str) -> None:
        threading.Timer(0.5, lambda: engine.state(app_id, AppState.RUNNING)).start()

    engine.on_scheduled = begin
    how = {"wait": False, "poll_interval_s": 0.05}
    ran, _ = run_to_end(launch(sh("true"), launch_conn_id="cluster", start_limit_s=30, **how), api)

    assert ran.state == "success"
    assert [app.state for app in engine.apps.values()] == [AppState.RUNNING]


def test_an_app_that_does_not_start_is_cancelled_by_a_task_that_does_not_wait(engine, api, pending) -> None:
    how = {"wait": False, "poll_interval_s": 0.05}
    ran, _ = run_to_end(launch(sh("true"), launch_conn_id="cluster", start_limit_s=0.5, **how), api)

    assert "it waited for: queue research is full" in str(ran.error)
    assert engine.cancelled == pending


@pytest.mark.parametrize("place", [pytest.param("aws_batch", marks=pytest.mark.engine("aws_batch"))], indirect=True)
@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
def test_a_queue_that_starts_nothing_is_not_waited_for(place, deferrable, monkeypatch) -> None:
    """On the engine: all compute environments of the queue are disabled."""
    monkeypatch.setattr("airflow_provider_launch.schedulers.aws_batch.queues._WAITS_S", 0.0)
    queue = place.queue_that_starts_nothing()
    how = {"deferrable": deferrable, "defer_after_s": 0, "poll_interval_s": 0.2, "cfg": {"queue": queue}}
    ran, _ = run_to_end(launch_at(place, place.role("true"), start_limit_s=4, **how), FakeExecutionApi())

    assert ran.state in {"failed", "up_for_retry"}
    assert "has not started within its start_limit_s" in str(ran.error)
    assert f"RUNNABLE: position 1 in queue {queue!r}" in str(ran.error)
    until(lambda: [job["status"] for job in place.jobs(queue)] == ["FAILED"])
    assert place.jobs(queue)[0]["statusReason"] == "launch: cancelled"
    assert place.starts() == []


def test_a_limit_is_a_duration() -> None:
    with pytest.raises(InvalidAppError, match="start_limit_s=0 must be more than 0 seconds"):
        launch(sh("true"), start_limit_s=0)


@pytest.mark.parametrize(
    ("becomes", "text"),
    [
        (AppState.CANCELLED, "did not start within its limit and was cancelled"),
        (AppState.FAILED, "started while it was being cancelled, and ended as FAILED"),
        (AppState.SUCCEEDED, "succeeded before it was cancelled; the next try uses its result"),
        (None, "was cancelled but has not ended yet; the next try will check it"),
    ],
)
def test_the_end_of_an_app_that_did_not_start_is_logged(engine, api, pending, monkeypatch, becomes, text) -> None:
    """Only one whose end was seen counts as cancelled: the next try would count the others again."""
    counted: list[str] = []
    monkeypatch.setattr("airflow_provider_launch._task.metrics.count_cancelled", counted.append)
    monkeypatch.setenv("AIRFLOW__LAUNCH__REPLACE_WAIT_S", "1")

    def cancel(_self: FakeScheduler, app_id: str) -> None:
        engine.cancelled.append(app_id)
        engine.state(app_id, becomes or AppState.PENDING)

    monkeypatch.setattr(FakeScheduler, "_cancel_existing", cancel)
    how = {"start_limit_s": 0.5, "poll_interval_s": 0.05}
    ran, _ = run_to_end(launch(sh("true"), launch_conn_id="cluster", **how), api)

    assert isinstance(ran.error, AppNotStartedError)
    assert ran.logged(text)
    assert len(counted) == (becomes is AppState.CANCELLED)
    is_closed = becomes in (AppState.CANCELLED, AppState.FAILED)
    assert api.store["launch"]["state"] == ("closed" if is_closed else "scheduled")


@pytest.mark.parametrize("error", [SchedulerRejectedError("no right to cancel"), RuntimeError("no right to cancel")])
def test_an_app_that_did_not_start_and_could_not_be_cancelled_is_named(
    engine, api, pending, monkeypatch, error
) -> None:
    def refuse(_self: FakeScheduler, _app_id: str) -> None:
        raise error

    monkeypatch.setattr(FakeScheduler, "_cancel_existing", refuse)
    how = {"start_limit_s": 0.5, "poll_interval_s": 0.05}
    ran, _ = run_to_end(launch(sh("true"), launch_conn_id="cluster", **how), api)

    assert isinstance(ran.error, AppNotStartedError)
    assert ran.logged(f"app {pending[0]} could not be cancelled: no right to cancel; cancel it")


def test_a_kill_before_the_cancel_of_an_app_that_did_not_start_cancels_it(engine, api, pending, monkeypatch) -> None:
    cancel, asked = FakeScheduler._cancel_existing, []

    def be_killed(self: FakeScheduler, app_id: str) -> None:
        asked.append(app_id)
        if len(asked) == 1:
            signal.raise_signal(signal.SIGTERM)
            raise SchedulerUnavailableError("for a moment")
        cancel(self, app_id)

    monkeypatch.setattr(FakeScheduler, "_cancel_existing", be_killed)
    before = signal.getsignal(signal.SIGTERM)
    try:
        ran = run_task(launch(sh("true"), launch_conn_id="cluster", start_limit_s=0.5, poll_interval_s=0.05), api)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert ran.logged(f"the task was killed; app {pending[0]} was cancelled")
    assert engine.cancelled == pending
    assert api.store["launch"]["state"] == "closed"


def test_a_kill_while_the_cancel_is_awaited_does_not_fail_the_cancel(engine, api, pending, monkeypatch) -> None:
    check = CancelThread.check

    def killed(self: CancelThread) -> None:
        check(self)
        if engine.cancelled:
            raise AppKilledError("the task was killed")

    monkeypatch.setattr(CancelThread, "check", killed)
    monkeypatch.setattr(FakeScheduler, "_cancel_existing", lambda _self, app_id: engine.cancelled.append(app_id))
    how = {"start_limit_s": 0.5, "poll_interval_s": 0.05}
    ran, _ = run_to_end(launch(sh("true"), launch_conn_id="cluster", **how), api)

    assert isinstance(ran.error, AppNotStartedError)
    assert ran.logged("the task was killed while app")
    assert not ran.logged("could not be cancelled")
    assert (api.store["launch"]["state"], api.store["launch"]["outcome"]) == ("scheduled", KILLED)
