"""The links of a task: there while it runs, and still there when it has ended."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from airflow.sdk import conf
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import SetRenderedFields
from airflow.sdk.serde import deserialize

from airflow_provider_launch.links.launch import LauncherLink, RequestLink, SchedulerLink
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs import AppDef, SchedulerRejectedError
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from tests.airflow.support import FakeExecutionApi, a_dag, launch, run_task, run_to_end, run_trigger, sh

UI, REQUEST = SchedulerLink().xcom_key, RequestLink().xcom_key
PAGE = "https://cluster.example/apps/1"


@pytest.fixture
def seen(engine, api):
    """Lets the app name its page and end once the link is there; tells what was there while it ran."""
    found = {}

    def drive() -> None:
        deadline = time.monotonic() + 30
        while not engine.apps and time.monotonic() < deadline:
            time.sleep(0.01)
        (app_id,) = engine.apps
        engine.apps[app_id].ui_url = PAGE
        engine.state(app_id, AppState.RUNNING)
        named = time.monotonic()  # a trigger shows it elsewhere
        while PAGE not in [*api.xcoms.values()] and time.monotonic() < min(deadline, named + 2):
            time.sleep(0.01)
        found.update(api.xcoms, rendered=dict(api.rendered))
        engine.state(app_id, AppState.SUCCEEDED)

    thread = threading.Thread(target=drive, daemon=True)
    thread.start()
    yield found
    thread.join(30)


def test_both_links_appear_while_the_app_runs(api, seen) -> None:
    """Airflow itself asks for links when a worker is done (T11), which may be days later."""
    ran = run_task(launch(sh("true"), launch_conn_id="cluster"), api)

    assert ran.state == "success"
    assert seen["t", UI] == PAGE
    assert seen["t", REQUEST].endswith("/dags/test_dag/runs/test_run/tasks/t/rendered_templates")
    assert (api.xcoms["t", UI], api.xcoms["t", REQUEST]) == (PAGE, seen["t", REQUEST])


def test_the_request_stands_where_its_link_leads_while_the_app_runs(api, seen) -> None:
    run_task(launch(sh("true"), launch_conn_id="cluster"), api)

    assert '"app_id": "test-dag-t-' in seen["rendered"]["request"]


def test_the_request_that_was_refused_is_shown_too(engine, api) -> None:
    """It is what one looks at to see why."""

    def refuse(_app_id: str) -> None:
        raise SchedulerRejectedError("no quota")

    engine.on_schedule = refuse
    ran = run_task(launch(sh("true"), launch_conn_id="cluster"), api)

    assert ran.state != "success"
    assert '"app_id": "test-dag-t-' in api.rendered["request"]
    assert api.xcoms["t", REQUEST].endswith("/rendered_templates")


def test_a_sensor_links_to_the_scheduler_too(api, seen) -> None:
    run_task(launch(sh("true"), launch_conn_id="cluster", wait=False), api)
    with a_dag():
        sensor = AppStatusSensor(task_id="s", handle=api.xcoms["t", "handle"])

    assert run_task(sensor, api).state == "success"
    assert seen["s", UI] == api.xcoms["s", UI] == PAGE


def test_the_link_of_a_deferred_task_appears_while_it_waits(engine, api, monkeypatch) -> None:
    pushed = []

    async def keep(key, value, **where):
        pushed.append((key, value, where))

    monkeypatch.setattr(BaseXCom, "aset", keep)
    ran = run_task(launch(sh("true"), launch_conn_id="cluster", deferrable=True), api)
    (app_id,) = engine.apps
    engine.apps[app_id].ui_url = PAGE
    engine.state(app_id, AppState.RUNNING)
    run_trigger(AppStatusTrigger(**deserialize(ran.msg.trigger_kwargs)), cancel_after=3)

    where = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1}
    assert [entry for entry in pushed if entry[0] == UI] == [(UI, PAGE, where)]


def test_the_links_of_a_deferred_task_stay_when_it_has_ended(api, seen) -> None:
    ran, events = run_to_end(launch(sh("true"), launch_conn_id="cluster", deferrable=True), api)

    assert (ran.state, len(events)) == ("success", 1)
    assert api.xcoms["t", UI] == PAGE
    assert api.xcoms["t", REQUEST].endswith("/rendered_templates")
    assert '"app_id": "test-dag-t-' in api.rendered["request"]


def test_without_a_page_there_is_no_link(engine, api) -> None:
    """The server answers null for it, and the user interface shows nothing."""
    run_task(launch(sh("true"), launch_conn_id="cluster", wait=False), api)

    assert ("t", UI) not in api.xcoms


def test_a_mapped_task_links_to_its_own_page(engine, api) -> None:
    apps = [AppDef("a", [sh("true")])] * 2
    with a_dag():
        task = LaunchAppOperator.partial(task_id="t", launch_conn_id="cluster", wait=False).expand(app=apps)
    run_task(task, api, map_index=1)

    assert api.xcoms["t", REQUEST, 1].endswith("/tasks/t/mapped/1/rendered_templates")


def test_a_sensor_links_to_the_task_that_launched(engine, api) -> None:
    with a_dag():
        task = LaunchAppOperator(task_id="t", launch_conn_id="cluster", app=AppDef("a", [sh("true")]), wait=False)
        sensor = AppStatusSensor(task_id="s", handle=task.output)
    run_task(task, api)
    (app_id,) = engine.apps
    engine.state(app_id, AppState.SUCCEEDED)
    run_task(sensor, api)

    assert api.xcoms["s", LauncherLink().xcom_key].endswith("/runs/test_run/tasks/t")


def test_odd_ids_stay_one_part_of_the_path(monkeypatch) -> None:
    class Key:
        dag_id, run_id, task_id, map_index = "d", "manual__2026-01-01T00:00:00+00:00 a/b?c#d", "g.t", -1

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/sub/")
    url = RequestLink().get_link(None, ti_key=Key)

    assert conf.get("api", "base_url") == "https://airflow.example/sub/"
    assert url == (
        "https://airflow.example/sub/dags/d/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00%20a%2Fb%3Fc%23d"
        "/tasks/g.t/rendered_templates"
    )


def test_a_store_that_refuses_links_changes_no_outcome(engine, api) -> None:
    def refuse(method, parts, body):
        if method == "POST" and parts[-1] in (UI, REQUEST):
            raise OSError("no links today")

    api.on_call = refuse

    assert run_task(launch(sh("true"), launch_conn_id="cluster", wait=False), api).state == "success"


def test_the_private_parts_of_airflow_are_still_there() -> None:
    """Without them the request appears when the task has ended; this notices the change."""
    assert callable(task_runner._serialize_rendered_fields)
    assert SetRenderedFields(rendered_fields={"request": "text"})


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
def test_a_task_writes_each_xcom_once_and_leaves_no_cursor(deferrable: bool) -> None:
    """A thousand apps are a thousand times what one of them writes into Airflow's database."""
    api = FakeExecutionApi()
    ran, _ = run_to_end(launch(sh("sleep 1"), deferrable=deferrable, defer_after_s=0), api)

    assert ran.state == "success"
    written = Counter(
        path.rpartition("/")[2] for method, path in api.calls if (method, "/xcoms/" in path) == ("POST", True)
    )
    cursor = {"launch_cursor_1": 1} if deferrable else {}
    assert written == {"handle": 1, REQUEST: 1, "return_value": 1, **cursor}
    assert {key for _, key in api.xcoms} == {"handle", REQUEST, "return_value"}


@pytest.mark.parametrize(("script", "lasts"), [("true", True), ("exit 1", False)])
def test_the_record_of_an_app_lasts_as_long_as_its_run(script: str, lasts: bool) -> None:
    """Airflow drops other values after 30 days; a clear after that would start a second app beside the first."""
    api = FakeExecutionApi()
    with a_dag():
        task = LaunchAppOperator(task_id=f"lasts_{lasts}".lower(), app=AppDef("app", [sh(script)]))
    run_task(task, api)

    assert (api.expires["launch"] is None) == lasts
