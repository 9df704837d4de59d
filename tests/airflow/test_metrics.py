"""Metrics for the dashboards and alerts of a platform."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import uuid
from typing import Any

import pytest

from airflow_provider_launch._airflow import Stats
from airflow_provider_launch._task import metrics
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.specs.owner import TaskKey
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.triggers import reconciler
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from tests.airflow.support import FakeExecutionApi, TaskInstance, launch, run_task, run_to_end, sh
from tests.airflow.test_reconciler import ABSENT, Airflow, Driven, airflow, answer_with, submit
from tests.support.apps import until
from tests.support.fake_scheduler import FakeEngine

__all__ = ["airflow"]
CANCELLED = ("incr", "launch.apps_ended", 1, {"backend": "fake", "state": "CANCELLED"})


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any, dict[str, str]]]:
    """The calls of Airflow's `Stats`: method, name, value, tags."""
    found: list[tuple[str, str, Any, dict[str, str]]] = []

    def keep(method: str) -> Any:
        plain = getattr(Stats, method)

        def kept(stat: str, value: Any, *, tags: Any = None) -> None:
            found.append((method, stat, value, tags or {}))
            # Airflow checks names and tags too.
            plain(stat, value, tags=tags)

        return staticmethod(kept)

    for method in ("incr", "gauge", "timing"):
        monkeypatch.setattr(Stats, method, keep(method))
    return found


@pytest.mark.parametrize(("code", "state"), [(0, "SUCCEEDED"), (3, "FAILED")])
@pytest.mark.parametrize("deferrable", [False, True])
def test_a_task_counts_its_app_and_its_lines(sent: Any, code: int, state: str, deferrable: bool) -> None:
    run_to_end(launch(sh(f"echo one; echo two; exit {code}"), deferrable=deferrable), FakeExecutionApi())

    assert ("incr", "launch.apps_launched", 1, {"backend": "local"}) in sent
    assert [entry for entry in sent if entry[1] == "launch.apps_ended"] == [
        ("incr", "launch.apps_ended", 1, {"backend": "local", "state": state})
    ]
    assert sum(entry[2] for entry in sent if entry[1] == "launch.log_lines") == 2
    (submit,) = [entry for entry in sent if entry[1] == "launch.submit"]
    assert 0 < submit[2] < 60_000


def test_an_outage_counts_with_its_duration(sent: Any, engine: FakeEngine, api: FakeExecutionApi) -> None:
    errors = iter([SchedulerUnavailableError("connection refused")] * 3)

    def answer(app_ids: list[str]) -> None:
        for error in errors:
            raise error
        for app_id in app_ids:
            engine.state(app_id, AppState.SUCCEEDED)

    engine.on_scheduled = lambda _: setattr(engine, "on_describe", answer)
    task = launch(sh("true"), launch_conn_id="cluster", poll_interval_s=0.05)
    assert run_task(task, api).state == "success"

    assert ("incr", "launch.outages", 1, {}) in sent
    (lasted_ms,) = [value for _, name, value, _ in sent if name == "launch.unreachable"]
    assert 0 < lasted_ms < 60_000


def test_metrics_that_fail_do_not_change_how_a_task_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fail(stat: str, *_: Any, **__: Any) -> None:
        asked.append(stat)
        raise OSError("no statsd")

    for method in ("incr", "gauge", "timing"):
        monkeypatch.setattr(Stats, method, staticmethod(fail))
    metrics.gauge("log_bytes_held", 1)

    assert run_task(launch(sh("exit 0")), FakeExecutionApi()).state == "success"
    assert "launch.apps_launched" in asked


def test_a_host_whose_name_airflow_cannot_find_has_that_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__HOSTNAME_CALLABLE", "no_such_module.hostname")
    metrics._hostname.cache_clear()
    try:
        assert metrics._hostname() == socket.getfqdn()
    finally:
        metrics._hostname.cache_clear()


def test_the_gauges_of_a_triggerer_name_its_host_and_end_at_0(sent: Any) -> None:
    """Else a dashboard shows the last values for ever, and of two triggerers either one."""
    run_to_end(launch(sh("true"), deferrable=True), FakeExecutionApi())
    names = ("launch.deferred_apps", "launch.log_bytes_held")
    until(lambda: {name for _, name, *_ in sent} >= {*names}, 30)

    for name in names:
        *_, (_, _, value, tags) = [entry for entry in sent if entry[1] == name]
        assert value == 0
        assert tags == {"hostname": metrics._hostname()}
        assert tags["hostname"]


def test_the_gauge_of_unseen_apps_ends_at_0(sent: Any, engine: FakeEngine, api: FakeExecutionApi) -> None:
    driven = Driven({submit(engine, "unseen"): ABSENT})
    driven.wait()
    driven.now += reconciler.USED_FOR_S
    driven.it.run_round()

    assert [(value, tags["conn_id"]) for _, name, value, tags in sent if name == "launch.orphans_unseen"] == [
        (1, "cluster"),
        (0, "cluster"),
    ]


# Apps launched, less those that ended, are those that are alive: each cancel counts once.


def test_an_orphan_counts_as_an_app_that_ended(sent: Any, engine: FakeEngine, api: FakeExecutionApi) -> None:
    driven = Driven({submit(engine, "over"): "failed"})
    for _ in range(3):
        driven.wait()

    assert sent.count(CANCELLED) == 1


def test_the_app_of_a_deferred_task_that_a_user_ends_counts(
    sent: Any, engine: FakeEngine, api: FakeExecutionApi, monkeypatch: Any
) -> None:
    submit(engine, "app")
    answer_with(monkeypatch, {TaskKey("d", "r", "t"): "failed"})
    trigger = AppStatusTrigger("fake://cluster/app", known=True)
    ids = {"id": uuid.uuid4(), "dag_version_id": uuid.uuid4(), "dag_id": "d", "run_id": "r", "task_id": "t"}
    trigger.task_instance = TaskInstance(**ids, try_number=1, map_index=-1)
    asyncio.run(trigger.on_kill())

    assert sent.count(CANCELLED) == 1


def test_the_app_of_a_killed_task_counts(sent: Any) -> None:
    task = launch(sh("exec sleep 600"), cfg={"grace_s": 0.2})
    main = threading.main_thread().ident
    timer = threading.Timer(1.0, lambda: signal.pthread_kill(main, signal.SIGTERM))
    # Before the task runner has its own handler the signal would end pytest.
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    timer.start()
    try:
        ran = run_task(task, FakeExecutionApi())
    finally:
        timer.join()
        signal.signal(signal.SIGTERM, before)

    assert ran.logged("was cancelled")
    assert sent.count(("incr", "launch.apps_ended", 1, {"backend": "local", "state": "CANCELLED"})) == 1


def test_the_app_of_a_refused_deferral_counts(sent: Any, engine: FakeEngine, airflow: Airflow) -> None:
    engine.on_scheduled = lambda _: setattr(airflow, "state", "failed")
    run_task(launch(sh("sleep 60"), launch_conn_id="cluster", deferrable=True), airflow)

    assert sent.count(CANCELLED) == 1


def test_an_app_that_does_not_start_counts(sent: Any, engine: FakeEngine, api: FakeExecutionApi) -> None:
    engine.on_scheduled = lambda app_id: engine.state(app_id, AppState.PENDING)
    run_task(launch(sh("sleep 60"), launch_conn_id="cluster", start_limit_s=0.5), api)

    assert sent.count(CANCELLED) == 1


@pytest.mark.parametrize(("on_kill", "count"), [("leave", 1), ("cancel", 0)])
def test_an_app_that_only_the_new_try_ends_counts(
    sent: Any, engine: FakeEngine, api: FakeExecutionApi, on_kill: str, count: int
) -> None:
    """With `on_kill="leave"` a clear left it; else the kill has counted it."""
    engine.on_scheduled = lambda app_id: engine.state(app_id, AppState.RUNNING)
    task = launch(sh("sleep 60"), launch_conn_id="cluster", deferrable=True, on_kill=on_kill)
    assert run_task(task, api).state == "deferred"
    api.clear()
    assert run_task(task, api, 2).state == "deferred"

    assert len(engine.cancelled) == 1
    assert sent.count(CANCELLED) == count
