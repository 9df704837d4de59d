"""The links of a task: there while it runs, and still there when it has ended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import SetRenderedFields

from airflow_provider_launch._airflow import conf
from airflow_provider_launch.links.launch import (
    JobDefinitionLink,
    LauncherLink,
    QueueLink,
    RequestLink,
    SchedulerLink,
    SchedulerLogLink,
    show_ui_from_trigger,
)
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs import AppDef, SchedulerRejectedError
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from tests.airflow.guarantees import in_modes
from tests.airflow.guarantees import launch as place_task
from tests.airflow.support import FakeExecutionApi, a_dag, launch, run_task, run_to_end, run_trigger, sh
from tests.airflow.versions import deserialize
from tests.engines.aws_batch.names import REGION

UI, REQUEST = SchedulerLink().xcom_key, RequestLink().xcom_key
PAGE = "https://cluster.example/apps/1"
OTHERS = {"job definition": f"{PAGE}/definition", "queue": f"{PAGE}/queue", "log": f"{PAGE}/log"}
KEYS = {link.page: link.xcom_key for link in (JobDefinitionLink(), QueueLink(), SchedulerLogLink())}


@pytest.fixture
def pages():
    """The other pages of the app; filled by the test."""
    return {}


@pytest.fixture
def seen(engine, api, pages):
    """Lets the app name its page and end once the link is there; tells what was there while it ran."""
    found = {}

    def drive() -> None:
        deadline = time.monotonic() + 30
        while not engine.apps and time.monotonic() < deadline:
            time.sleep(0.01)
        (app_id,) = engine.apps
        engine.apps[app_id].ui_url, engine.apps[app_id].pages = PAGE, pages
        engine.state(app_id, AppState.RUNNING)
        named = time.monotonic()  # a trigger shows it elsewhere
        while PAGE not in [*api.xcoms.values()] and time.monotonic() < min(deadline, named + 2):
            time.sleep(0.01)
        time.sleep(0.1)  # the other pages follow
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
    engine.apps[app_id].ui_url, engine.apps[app_id].pages = PAGE, {"queue": OTHERS["queue"]}
    engine.state(app_id, AppState.RUNNING)
    run_trigger(AppStatusTrigger(**deserialize(ran.msg.trigger_kwargs)), cancel_after=3)

    where = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1}
    links = {UI, *KEYS.values()}
    assert [entry for entry in pushed if entry[0] in links] == [
        (UI, PAGE, where),
        (KEYS["queue"], OTHERS["queue"], where),
    ]


def test_the_links_of_a_deferred_task_stay_when_it_has_ended(api, seen) -> None:
    ran, events = run_to_end(launch(sh("true"), launch_conn_id="cluster", deferrable=True), api)

    assert (ran.state, len(events)) == ("success", 1)
    assert api.xcoms["t", UI] == PAGE
    assert api.xcoms["t", REQUEST].endswith("/rendered_templates")
    assert '"app_id": "test-dag-t-' in api.rendered["request"]


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
@pytest.mark.parametrize("named", [[*OTHERS], ["queue"]], ids=["all", "one"])
def test_other_pages_have_links_of_their_own(api, pages, seen, deferrable, named) -> None:
    """Job definition, queue and log, as the operator of AWS Batch in the amazon provider has them."""

    pages.update({name: OTHERS[name] for name in named})
    run_to_end(launch(sh("true"), launch_conn_id="cluster", deferrable=deferrable, defer_after_s=0), api)

    expected = {KEYS[name]: OTHERS[name] for name in named}
    # That of a deferred task, while it waits: see below.
    for xcoms in (api.xcoms,) if deferrable else (seen, api.xcoms):
        assert {key[1]: xcoms[key] for key in xcoms if key[1] in KEYS.values()} == expected


def test_without_a_page_there_is_no_link(engine, api) -> None:
    """The server answers null for it, and the user interface shows nothing."""
    run_task(launch(sh("true"), launch_conn_id="cluster", wait=False), api)

    assert not {UI, *KEYS.values()} & {key for _, key in api.xcoms}


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


def test_links_of_a_running_app_that_cannot_be_stored_change_no_outcome(engine, api) -> None:
    refused = set()

    def refuse(method, parts, body):
        kind = "request" if (method, parts[-1]) == ("PUT", "rtif") and engine.apps else parts[-1]
        if kind in {"request", UI, REQUEST} and kind not in refused:
            refused.add(kind)
            raise OSError("no links today")

    def start(app_id: str) -> None:
        engine.apps[app_id].ui_url = PAGE
        engine.state(app_id, AppState.RUNNING)
        threading.Timer(0.5, lambda: engine.state(app_id, AppState.SUCCEEDED)).start()

    api.on_call, engine.on_scheduled = refuse, start
    ran = run_task(launch(sh("true"), launch_conn_id="cluster"), api)

    assert ran.state == "success", ran.error
    assert refused == {"request", UI, REQUEST}


def test_links_that_a_trigger_cannot_store_do_not_end_it(monkeypatch) -> None:
    asked = []

    async def refuse(**what) -> None:
        asked.append(what["key"])
        raise OSError("no links today")

    monkeypatch.setattr("airflow_provider_launch.links.launch.set_xcom", refuse)
    ti = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1)
    asyncio.run(show_ui_from_trigger(ti, PAGE, {}))

    assert asked == [UI]


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
    assert written == {"handle": 1, REQUEST: 1, "app": 1, "return_value": 1, **cursor}
    assert {key for _, key in api.xcoms} == {"handle", REQUEST, "app", "return_value"}


@pytest.mark.parametrize(("script", "lasts"), [("true", True), ("exit 1", False)])
def test_the_record_of_an_app_lasts_as_long_as_its_run(script: str, lasts: bool) -> None:
    """Airflow drops other values after 30 days; a later clear would start a second app while the first one runs."""
    api = FakeExecutionApi()
    with a_dag():
        task = LaunchAppOperator(task_id=f"lasts_{lasts}".lower(), app=AppDef("app", [sh(script)]))
    run_task(task, api)

    assert (api.expires["launch"] is None) == lasts


@pytest.mark.parametrize("place", [pytest.param("aws_batch", marks=pytest.mark.engine("aws_batch"))], indirect=True)
@in_modes
def test_a_job_of_aws_batch_links_to_all_pages_of_the_console(place, deferrable) -> None:
    """As `BatchOperator` does with its four links."""
    api = FakeExecutionApi()
    task = place_task(place, place.role("true"), deferrable=deferrable, defer_after_s=0)
    ran, _ = run_to_end(task, api)
    (app_id,) = place.apps()
    home = f"https://console.aws.amazon.com/batch/home?region={REGION}#"
    found = {key: value for (_, key), value in api.xcoms.items() if key in {UI, *KEYS.values()}}

    assert ran.state == "success", ran.lines
    assert found.pop(UI).startswith(f"{home}jobs/detail/")
    assert found.pop(KEYS["job definition"]).startswith(f"{home}job-definition/detail/arn:aws:batch:")
    assert found.pop(KEYS["queue"]).startswith(f"{home}queues/detail/arn:aws:batch:")
    assert found.pop(KEYS["log"]).endswith(f"$3FlogStreamNameFilter$3Dlaunch-{app_id}")
    assert not found
