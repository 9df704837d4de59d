"""The sensor through the real task runner."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from airflow_provider_launch.hooks.cursors import pack, unpack
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.states import AppState
from tests.airflow.support import a_dag, launch, run_task, sh


def sensor(handle, **kwargs) -> AppStatusSensor:
    with a_dag():
        return AppStatusSensor(task_id="s", handle=handle, **kwargs)


@pytest.fixture
def launched(engine, api):
    """An app that was launched without waiting: its id and the XCom."""
    run_task(launch(sh("true"), launch_conn_id="cluster", wait=False), api)
    return next(iter(engine.apps)), api.xcoms["t", "return_value"]


def test_it_waits_for_success_and_shows_the_log(engine, api, launched) -> None:
    app_id, xcom = launched
    engine.write(app_id, "worker", 0, "early\n")
    threading.Timer(0.5, lambda: engine.write(app_id, "worker", 0, "late\n")).start()
    threading.Timer(0.8, lambda: engine.state(app_id, AppState.SUCCEEDED)).start()
    ran = run_task(sensor(xcom), api)

    assert ran.state == "success"
    assert [line for line in ran.lines if line.startswith("[")] == ["[worker/0] early", "[worker/0] late"]
    assert api.xcoms["s", "return_value"] == {**xcom, "state": "SUCCEEDED"}


def test_logs_from_now_skips_what_was_before(engine, api, launched) -> None:
    app_id, xcom = launched
    engine.write(app_id, "worker", 0, "early\n")
    threading.Timer(0.8, lambda: engine.write(app_id, "worker", 0, "late\n")).start()
    threading.Timer(1.0, lambda: engine.state(app_id, AppState.SUCCEEDED)).start()
    ran = run_task(sensor(xcom["handle"], logs_from="now"), api)

    assert [line for line in ran.lines if line.startswith("[")] == ["[worker/0] late"]


@pytest.mark.parametrize("state", [AppState.FAILED, AppState.CANCELLED])
@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_an_app_that_did_not_succeed_fails_it_for_good(engine, make_api, launched, state, mode) -> None:
    app_id, xcom = launched
    engine.write(app_id, "worker", 0, "why\n")
    engine.state(app_id, state, exit_codes={("worker", 0): 7})
    ran = run_task(sensor(xcom, mode=mode), make_api(retries=3))

    assert ran.state == "failed"
    assert f"{state}: role 'worker' replica 0" in str(ran.error)
    assert "exited with code 7" in str(ran.error)
    assert "  why" in str(ran.error)


def test_soft_fail_skips(engine, api, launched) -> None:
    app_id, xcom = launched
    engine.state(app_id, AppState.FAILED)

    assert run_task(sensor(xcom, soft_fail=True), api).state == "skipped"


def test_reschedule_goes_on_with_the_log_where_it_was(engine, api, launched) -> None:
    app_id, xcom = launched
    task = sensor(xcom, mode="reschedule", poke_interval=5)
    shown = []
    for number in range(3):
        engine.write(app_id, "worker", 0, f"line {number}\n")
        ran = run_task(task, api)
        assert ran.state == "up_for_reschedule"
        shown += ran.lines
    engine.write(app_id, "worker", 0, "last\n")
    engine.state(app_id, AppState.SUCCEEDED)
    ran = run_task(task, api)
    shown += ran.lines

    assert ran.state == "success"
    assert [line for line in shown if line.startswith("[")] == [
        *(f"[worker/0] line {number}" for number in range(3)),
        "[worker/0] last",
    ]
    assert sum("PENDING" in line and "->" not in line for line in shown if line.startswith("app ")) == 1


def test_reschedule_bears_an_outage_over_looks(engine, api, launched) -> None:
    _, xcom = launched
    engine.cut()
    task = sensor(xcom, mode="reschedule", unavailable_for_s=2)
    first = run_task(task, api)
    time.sleep(2)
    second = run_task(task, api)

    assert (first.state, second.state) == ("up_for_reschedule", "failed")


def test_reschedule_refuses_short_intervals() -> None:
    """Airflow 3.3 loses track of tasks that are rescheduled faster."""
    with pytest.raises(InvalidAppError, match="at least 5"):
        sensor("fake://c/x", mode="reschedule", poke_interval=4)


def test_timeout_ends_the_wait(api, launched) -> None:
    ran = run_task(sensor(launched[1], timeout=1), api)

    assert ran.state == "failed"
    assert "timed out" in str(ran.error)


@pytest.mark.parametrize(("policy", "cancelled"), [("leave", 0), ("cancel", 1)])
def test_its_kill_leaves_the_app_unless_asked(engine, api, launched, policy, cancelled) -> None:
    main = threading.main_thread().ident
    threading.Timer(1, lambda: signal.pthread_kill(main, signal.SIGTERM)).start()
    before = signal.getsignal(signal.SIGTERM)
    try:
        ran = run_task(sensor(launched[1], on_kill=policy), api)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert ran.state == "failed"
    assert len(set(engine.cancelled)) == cancelled


@pytest.mark.parametrize("handle", ["nonsense", "local://cluster/x", None, {"state": "x"}])
def test_a_wrong_handle_is_not_tried_again(engine, make_api, handle) -> None:
    assert run_task(sensor(handle), make_api(retries=3)).state == "failed"


def test_an_app_nobody_knows_fails(engine, api) -> None:
    assert "unknown app" in str(run_task(sensor("fake://cluster/none"), api).error)


def test_packed_cursors_of_a_large_app_fit_the_store() -> None:
    cursors = {f"worker/{k}": {"attempt": 0, "stdout": 1000 + k * 37, "stderr": k} for k in range(3000)}

    assert len(pack(cursors)) < 60_000
    assert unpack(pack(cursors)) == cursors


@pytest.mark.parametrize("packed", [None, 3, "", "x", "eJw="])
def test_broken_cursors_mean_the_start(packed) -> None:
    assert unpack(packed) == {}
