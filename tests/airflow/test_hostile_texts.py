"""Texts and numbers of programs and engines, on their way into what Airflow stores.

`FakeExecutionApi` and `run_to_end` refuse what PostgreSQL or a message between Airflow's processes refuses. There it
ends the triggerer of all tasks, so one letter of one program must not get so far.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from airflow_provider_launch._task.outcome import as_xcom
from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.statuses import ReplicaStatus, RoleStatus
from tests.airflow.support import FakeExecutionApi, a_dag, launch, run_task, run_to_end, sh

HUGE = 10**23
BAD = "bo\0om \udcff"
CLEAN = "bo\ufffdom \ufffd"


def sensor(handle: object, **kwargs: Any) -> AppStatusSensor:
    with a_dag():
        return AppStatusSensor(task_id="s", handle=handle, **kwargs)


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("is_sensor", [False, True])
def test_a_nul_in_the_last_lines_of_a_program_is_replaced(is_sensor: bool, deferrable: bool) -> None:
    """A core dump, UTF-16 or `cat` of a binary: no intent is needed."""
    api = FakeExecutionApi()
    role = sh(r"printf 'boom\0\377\n'; sleep 1; exit 1")
    if is_sensor:
        run_task(launch(role, wait=False), api)
        ran, events = run_to_end(sensor(api.xcoms["t", "handle"], deferrable=deferrable), api)
    else:
        ran, events = run_to_end(launch(role, deferrable=deferrable, defer_after_s=0.1), api)

    assert ran.state == "failed"
    assert "boom" in str(ran.error)
    assert [event["tails"] for event in events] == [{"worker/0": ["boom\ufffd\ufffd"]}] * deferrable


@pytest.fixture
def hostile(engine):
    """Let each app of the engine run, write and fail with texts and numbers that no database takes."""

    def drive() -> None:
        while not engine.apps:
            time.sleep(0.01)
        (app_id,) = engine.apps
        app = engine.apps[app_id]
        app.ui_url, app.pages = f"http://ui/{BAD}", {"queue": f"http://queue/{BAD}"}
        engine.state(app_id, AppState.RUNNING, BAD)
        engine.write(app_id, "worker", 0, f"{BAD}\n", attempt=HUGE)
        assert ended.wait(60)
        engine.state(app_id, AppState.FAILED, BAD, exit_codes={("worker", 0): HUGE}, num_restarts=HUGE)

    ended = threading.Event()
    thread = threading.Thread(target=drive, daemon=True)
    thread.start()
    yield ended
    ended.set()
    thread.join(30)


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("is_sensor", [False, True])
def test_any_text_of_an_engine_can_be_stored(api, hostile, is_sensor: bool, deferrable: bool) -> None:
    task = launch(sh("true"), launch_conn_id="cluster", deferrable=deferrable, defer_after_s=0.5)
    if is_sensor:
        run_task(launch(sh("true"), launch_conn_id="cluster", wait=False), api)
        task = sensor(api.xcoms["t", "handle"], deferrable=deferrable)
    threading.Timer(1.5, hostile.set).start()
    ran, events = run_to_end(task, api)

    assert ran.state == "failed", ran.error
    value = api.xcoms[task.task_id, "app"]
    assert value["state"] == "FAILED"
    assert value["attempts"] == value["roles"]["worker"][0] == 2**63 - 1
    assert api.xcoms[task.task_id, "launch_link_scheduler"] == f"http://ui/{CLEAN}"
    assert api.xcoms[task.task_id, "launch_link_queue"] == f"http://queue/{CLEAN}"
    assert len(events) == deferrable


def test_the_text_of_an_outage_is_stored(engine, api) -> None:
    """It is in the event, where the trigger gives up."""
    engine.on_schedule = lambda _app_id: engine.cut(BAD)
    task = launch(sh("true"), launch_conn_id="cluster", deferrable=True, defer_after_s=0, unavailable_for_s=0.5)
    ran, (event,) = run_to_end(task, api)

    assert ran.state == "failed"
    assert event["reason"] == "unreachable"
    assert CLEAN in event["text"]


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("is_sensor", [False, True])
@pytest.mark.parametrize("key", ["__classname__", "__type"])
def test_a_result_with_a_key_of_airflow_fails_the_task_for_good(is_sensor: bool, deferrable: bool, key: str) -> None:
    """Without: for ever up for retry, or an object of the program's choice where the XCom is read."""
    api = FakeExecutionApi(retries=3)
    role = sh(f"""echo '{{"a": [{{"{key}": "x"}}]}}' > $LAUNCH_RESULT_PATH""")
    if is_sensor:
        run_task(launch(role, wait=False), api)
        ran, _ = run_to_end(sensor(api.xcoms["t", "handle"], deferrable=deferrable), api)
    else:
        ran, _ = run_to_end(launch(role, deferrable=deferrable, defer_after_s=0), api)

    assert ran.state == "failed"
    assert f"the key {key!r} in a[0], which Airflow reserves" in str(ran.error)


def test_a_plug_in_cannot_return_a_reserved_key(engine, api) -> None:
    def finish(app_id: str) -> None:
        threading.Timer(
            0.3, lambda: (engine.result(app_id, {"__id__": 1}), engine.state(app_id, AppState.SUCCEEDED))
        ).start()

    engine.on_schedule = finish
    ran = run_task(launch(sh("true"), launch_conn_id="cluster"), api)

    assert ran.state == "failed"
    assert "'__id__'" in str(ran.error)


def test_a_replica_with_an_impossible_number_takes_no_memory() -> None:
    """A plug-in may report any number; a list with an item for each lower one would not fit into memory."""
    replicas = [ReplicaStatus(k, AppState.FAILED, "w", "host", exit_code=3) for k in (1, -1, 10**12)]
    response = DescribeAppResponse("a", AppState.FAILED, roles_statuses=[RoleStatus("w", replicas)])

    assert as_xcom("fake://c/a", response)["roles"] == {"w": [None, 3]}
