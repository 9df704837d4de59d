"""A deferred task: the trigger follows, the worker ends it, and nothing else is different."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk._shared.secrets_masker import _secrets_masker, reset_secrets_masker
from airflow.sdk.execution_time.comms import DeferTask

from airflow_provider_launch._task.progress import FollowProgress
from airflow_provider_launch.follow.poller import Poller
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.schedulers.api import DescribeAppResponse, Stream
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs import AppDef, AppState
from airflow_provider_launch.triggers.checkpoint import Checkpoint
from airflow_provider_launch.triggers.connections import Connections
from airflow_provider_launch.triggers.hub import hub
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from tests.airflow.guarantees import resumed
from tests.airflow.support import (
    USER_ACTION,
    FakeExecutionApi,
    a_dag,
    launch,
    logged,
    rendered,
    run_task,
    run_to_end,
    run_trigger,
    run_triggers,
    sh,
)
from tests.airflow.test_reconciler import NOT_FOUND, deny, refusal
from tests.airflow.versions import deserialize
from tests.support.apps import until
from tests.support.fake_scheduler import FakeEngine, FakeScheduler, an_app

WAIT = "for i in 1 2 3; do echo line $i; sleep 0.6; done"


@pytest.fixture(autouse=True, scope="module")
def _triggerer() -> None:
    """Import it before the first app runs: on a busy machine that takes longer than the app."""
    importlib.import_module("airflow.jobs.triggerer_job_runner")


def deferred(**kwargs: Any) -> tuple[AppStatusTrigger, FakeExecutionApi]:
    """The trigger of a task that waits for a long app."""
    api = FakeExecutionApi()
    ran = run_task(launch(sh("echo here; sleep 60"), deferrable=True, **kwargs), api)
    assert isinstance(ran.msg, DeferTask), ran.error
    return AppStatusTrigger(**deserialize(ran.msg.trigger_kwargs)), api


def test_a_deferred_task_ends_as_the_app_does_and_shows_each_line_once() -> None:
    ran, events = run_to_end(launch(sh(WAIT, num_replicas=2), deferrable=True), api := FakeExecutionApi())

    assert ran.state == "success", ran.error
    assert len(events) == 1
    assert api.xcoms["t", "return_value"]["state"] == "SUCCEEDED"
    assert api.xcoms["t", "handle"].startswith("local://")
    for k in range(2):
        shown = [line for line in ran.lines if line.startswith(f"[worker/{k}]")]
        assert shown == [f"[worker/{k}] line {n}" for n in (1, 2, 3)]
    assert sum(line.endswith("RUNNING") for line in ran.lines) == 1
    assert sum("-> SUCCEEDED" in line for line in ran.lines) == 1
    assert "echo line" in str(api.rendered)


@pytest.mark.parametrize("is_sensor", [False, True])
def test_where_the_log_of_a_triggerer_is_lost_the_worker_writes_all_of_it(
    monkeypatch: pytest.MonkeyPatch, is_sensor: bool
) -> None:
    """Here both logs are kept, so each line is there twice: once of the trigger, and once more at the end."""
    monkeypatch.setenv("AIRFLOW__LAUNCH__TRIGGER_LOGS_LAST", "False")
    task = sensor(launched(WAIT)) if is_sensor else launch(sh(WAIT), deferrable=True)
    ran, _ = run_to_end(task, FakeExecutionApi())
    shown = [line for line in ran.lines if line.startswith("[worker/0]")]

    assert ran.state == "success", ran.error
    assert shown == 2 * [f"[worker/0] line {n}" for n in (1, 2, 3)]


def test_data_between_processes_is_plain_json_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeExecutionApi()
    ran = run_task(launch(sh(WAIT, env={"API_TOKEN": "hush"}), deferrable=True), api)
    assert isinstance(ran.msg, DeferTask)
    text = json.dumps(deserialize(ran.msg.trigger_kwargs))

    assert "hush" not in text
    assert ran.msg.trigger_timeout is None
    classpath, kwargs = AppStatusTrigger(**deserialize(ran.msg.trigger_kwargs)).serialize()
    assert classpath == ran.msg.classpath
    assert json.loads(json.dumps(kwargs)) == kwargs
    # An older triggerer refuses what it does not know.
    assert not {"max_log_bytes", "log_roles", "timeout_s"} & set(kwargs)
    again = AppStatusTrigger(**kwargs)
    assert vars(again).keys() == vars(AppStatusTrigger("local://c/a")).keys()
    assert again.serialize() == (classpath, kwargs)


def test_a_failed_app_fails_the_deferred_task_with_the_same_message() -> None:
    script = "echo why; sleep 0.5; exit 3"
    errors = [
        re.sub("test-dag-t-\\w+", "", str(run_to_end(launch(sh(script), deferrable=mode), FakeExecutionApi())[0].error))
        for mode in (True, False)
    ]

    assert errors[0] == errors[1]
    assert "exited with code 3" in errors[0]
    assert "why" in errors[0]


def test_the_deadline_is_in_the_trigger_and_cancels_the_app() -> None:
    api = FakeExecutionApi()
    task = launch(sh("sleep 600"), deferrable=True, execution_timeout=timedelta(seconds=300), cfg={"grace_s": 1})
    begun = time.time()
    asked = run_task(task, api).msg
    assert isinstance(asked, DeferTask)
    trigger = AppStatusTrigger(**deserialize(asked.trigger_kwargs))
    assert begun + 290 < trigger.deadline < time.time() + 310
    trigger.deadline = time.time()
    (event,) = run_trigger(trigger)
    ran = resumed(task, api, asked, event.payload)

    assert event.payload["reason"] == "deadline"
    assert "is cancelled" in event.payload["text"]
    assert ran.state == "failed"
    assert "AirflowTaskTimeout" in repr(ran.error)


@pytest.mark.parametrize(
    ("states", "is_cancelled"),
    [
        ({"r": {"t": "failed"}}, True),
        ({"r": {"t": "success"}}, True),
        ({"r": {}}, False),
        ({}, False),
        ({"r": {"t": "deferred"}}, False),
        ({"r": {"t": None}}, False),
        ({"r": {"t": "queued"}}, False),
    ],
)
def test_on_kill_cancels_only_if_the_task_is_over(
    monkeypatch: pytest.MonkeyPatch, states: dict[str, Any], is_cancelled: bool
) -> None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_: states))
    # A task that may have been cleared is asked about again until then, because Airflow does not answer here.
    monkeypatch.setattr("airflow_provider_launch.triggers.kills.KILL_S", 1.5)
    trigger, _ = deferred(cfg={"grace_s": 1})
    cancelled: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(LocalScheduler, "cancel", lambda _self, app_id: cancelled.append(app_id))
        assert run_trigger(trigger, cancel_after=1.0, message=USER_ACTION) == []

    assert bool(cancelled) is is_cancelled
    _end(trigger)


@pytest.mark.parametrize(
    ("error", "is_cancelled"),
    [
        (refusal(404, NOT_FOUND), True),
        (refusal(404, {"detail": "Not Found"}), False),
        (refusal(500, NOT_FOUND), False),
        (TimeoutError(), False),
    ],
)
def test_on_kill_cancels_without_a_state_only_if_the_run_was_deleted(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_cancelled: bool
) -> None:
    """An empty answer alone proves nothing: another triggerer may follow the app, and the answer be a bug."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    monkeypatch.setattr(RuntimeTaskInstance, "get_dagrun_state", staticmethod(deny(error)))
    test_on_kill_cancels_only_if_the_task_is_over(monkeypatch, {}, is_cancelled)


@pytest.mark.parametrize("message", [None, "something else"])
def test_the_end_of_the_triggerer_cancels_nothing(monkeypatch: pytest.MonkeyPatch, message: str | None) -> None:
    trigger, _ = deferred(cfg={"grace_s": 1})
    cancelled: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(LocalScheduler, "cancel", lambda _self, app_id: cancelled.append(app_id))
        assert run_trigger(trigger, cancel_after=1.0, message=message) == []

    assert cancelled == []
    _end(trigger)


def test_a_stop_while_the_end_is_stored_keeps_the_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the next trigger would show all lines since the last checkpoint once more."""
    noting = threading.Event()
    kept: list[FollowProgress] = []

    async def slowly(_self: Checkpoint, _progress: Any, **_: bool) -> None:
        noting.set()
        await asyncio.sleep(60)

    async def at_last(_self: Checkpoint, progress: FollowProgress) -> None:
        kept.append(progress)

    def during(cancel: Callable[[int, str | None], None]) -> None:
        assert noting.wait(30)
        cancel(0, None)

    monkeypatch.setattr(Checkpoint, "save", slowly)
    monkeypatch.setattr(Checkpoint, "save_on_shutdown", at_last)

    assert run_triggers(AppStatusTrigger(launched(WAIT)), during=during) == [[]]
    assert kept
    assert "worker/0" in kept[0].cursors


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> list[FollowProgress]:
    """Checkpoints of triggers, of which the next one finds the last; the end stores none, as after SIGKILL."""
    kept: list[FollowProgress] = []

    async def save(_self: Checkpoint, progress: FollowProgress, **_: bool) -> None:
        kept.append(FollowProgress.from_json(json.loads(json.dumps(progress.to_json()))))

    async def load(_self: Checkpoint) -> FollowProgress | None:
        return kept[-1] if kept else None

    async def killed(_self: Checkpoint, _progress: Any) -> None: ...

    for name, how in {"save": save, "load": load, "save_on_shutdown": killed}.items():
        monkeypatch.setattr(Checkpoint, name, how)
    return kept


def test_a_duration_continues_in_another_trigger_even_if_nothing_is_shown(store: list[FollowProgress]) -> None:
    handle = launched("sleep 30", grace_s=1)
    kwargs = {"timeout_s": 4.0, "log_roles": [], "cancels_at_deadline": False}
    assert run_trigger(AppStatusTrigger(handle, **kwargs), cancel_after=2.0) == []
    count = len(store)
    (event,) = run_trigger(AppStatusTrigger(handle, **kwargs))

    assert event.payload["reason"] == "deadline"
    assert 0 < count < len(store)
    assert len({progress.deadline for progress in store}) == 1


def test_reports_are_not_repeated_by_another_trigger(
    store: list[FollowProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the last words of its last attempt stand in the error, whoever has shown them."""
    script = "echo try $LAUNCH_ATTEMPT; [ $LAUNCH_ATTEMPT = 1 ] && sleep 3; exit 3"
    handle = launched(script, max_retries=1)

    async def at_last(self: Checkpoint, progress: FollowProgress) -> None:
        await self.save(progress)

    monkeypatch.setattr(Checkpoint, "save_on_shutdown", at_last)
    with logged() as lines:
        assert run_trigger(AppStatusTrigger(handle), cancel_after=2.0) == []
        (event,) = run_trigger(AppStatusTrigger(handle))

    assert event.payload["reason"] == "ended"
    assert event.payload["tails"] == {"worker/0": ["try 1"]}
    assert sum("--- attempt 1 ---" in line["event"] for line in lines) == 1


def test_a_trigger_that_fails_shows_why_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared objects live for months, and a feed that is not removed would be read for as long."""

    async def fails(_self: Checkpoint, _progress: Any, **_: bool) -> None:
        raise RuntimeError("no room for a place")

    monkeypatch.setattr(Checkpoint, "save", fails)
    (event,) = run_trigger(AppStatusTrigger(launched(WAIT)))

    assert (event.payload["reason"], event.payload["text"]) == ("error", "RuntimeError: no room for a place")
    assert not hub().pump._feeds
    assert not hub().ticker._timers


def test_left_alone_on_kill_where_the_user_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trigger, _ = deferred(cfg={"grace_s": 1}, on_kill="leave")
    cancelled: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(LocalScheduler, "cancel", lambda _self, app_id: cancelled.append(app_id))
        run_trigger(trigger, cancel_after=0.8, message=USER_ACTION)

    assert cancelled == []
    _end(trigger)


def test_a_trigger_that_has_fired_ends_nothing(engine, api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow may end it as if it were killed right after its event, which leaves the app to the worker."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_: {"r": {"t": "failed"}}))
    engine.on_schedule = lambda _app_id: engine.cut()
    task = launch(sh("true"), launch_conn_id="cluster", deferrable=True, unavailable_for_s=0.2, poll_interval_s=0.05)
    asked = run_task(task, api).msg
    assert isinstance(asked, DeferTask)
    trigger = AppStatusTrigger(**deserialize(asked.trigger_kwargs))
    (event,) = run_trigger(trigger)
    engine.heal()
    asyncio.run(trigger.on_kill())

    assert event.payload["reason"] == "unreachable"
    assert engine.cancelled == []


def test_the_scheduler_of_a_connection_stays_open_for_other_users(engine, api) -> None:
    shared, again = hub().join("cluster"), hub().join("cluster")
    scheduler = shared.scheduler
    hub().leave(again)
    assert shared is again
    assert scheduler.closed == 0

    hub().leave(shared)
    assert scheduler.closed == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_starts_with_a_new_hub() -> None:
    """The threads of a hub stay in the process that has started them."""
    before = hub()
    read_fd, write_fd = os.pipe()
    if not (pid := os.fork()):
        os.write(write_fd, b"same" if hub() is before else b"anew")
        os._exit(0)
    os.waitpid(pid, 0)

    assert os.read(read_fd, 4) == b"anew"
    assert hub() is before
    os.close(read_fd)
    os.close(write_fd)


def test_a_wrong_connection_is_reported_by_the_worker() -> None:
    trigger = AppStatusTrigger("local://no_such_connection/app-1")
    (event,) = run_trigger(trigger)

    assert event.payload["reason"] == "error"
    assert "no_such_connection" in event.payload["text"]


def test_an_app_of_another_scheduler_keeps_no_connection(engine, api) -> None:
    (event,) = run_trigger(AppStatusTrigger("local://cluster/app"))

    assert event.payload["reason"] == "error"
    assert "is not an app of connection 'cluster'" in event.payload["text"]
    assert not hub()._shared


@pytest.mark.parametrize("message", [USER_ACTION, None])
def test_a_trigger_that_is_ended_while_it_joins_keeps_no_connection(
    engine, api, monkeypatch: pytest.MonkeyPatch, message: str | None
) -> None:
    """The thread that joins cannot be stopped."""
    join, joining, may_join = Connections.join, threading.Event(), threading.Event()
    joined: list[Any] = []

    def slowly(self: Connections, conn_id: str) -> Any:
        if threading.current_thread().name.startswith("asyncio"):
            joining.set()
            assert may_join.wait(30)
        joined.append(join(self, conn_id))
        return joined[-1]

    def during(cancel: Callable[[int, str | None], None]) -> None:
        assert joining.wait(30)
        cancel(0, message)
        time.sleep(0.2)
        may_join.set()
        until(lambda: joined, 30)

    monkeypatch.setattr(Connections, "join", slowly)

    assert run_triggers(AppStatusTrigger("fake://cluster/app", kill_policy="leave"), during=during) == [[]]
    until(lambda: not hub()._shared, 30)


def test_a_connection_is_closed_after_its_last_poll(engine, api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that is under way would fail at a closed client."""
    calls: list[str] = []
    monkeypatch.setattr(Poller, "join", lambda *_: calls.append("the poll has ended"))
    close = FakeScheduler.close
    monkeypatch.setattr(FakeScheduler, "close", lambda self: (calls.append("closed"), close(self)))
    shared = hub().join("cluster")
    shared.for_kills()
    hub().leave(shared)

    assert calls == ["the poll has ended", "closed", "closed"]


def test_a_connection_that_was_joined_at_the_end_of_the_loop_is_left(engine, api) -> None:
    joining: Future[Any] = Future()
    joining.set_result(hub().join("cluster"))
    AppStatusTrigger._leave_joined(joining)  # type: ignore[arg-type]

    assert not hub()._shared


def test_a_trigger_that_fails_notes_that_it_has_fired(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise another trigger of the same deferral assumes a clear."""
    fired: list[bool] = []

    async def save(_self: Checkpoint, _progress: FollowProgress, **how: bool) -> None:
        fired.append(how.get("fired", False))

    monkeypatch.setattr(Checkpoint, "save", save)
    (event,) = run_trigger(AppStatusTrigger("local://no_such_connection/app-1"))

    assert event.payload["reason"] == "error"
    assert fired == [True]


@pytest.mark.parametrize("message", [USER_ACTION, None])
def test_only_a_user_who_ends_a_trigger_brings_the_next_check_forward(
    engine, api, monkeypatch: pytest.MonkeyPatch, message: str | None
) -> None:
    """The task may have lost its app, and the trigger may not know it."""
    checked: list[str | None] = []
    monkeypatch.setattr(hub().reconciler, "check_soon", checked.append)
    scheduler = FakeScheduler("cluster", engine)
    app_id = scheduler.submit(an_app(), {})
    trigger = AppStatusTrigger(f"fake://cluster/{app_id}", scheduled=True, kill_policy="leave")

    assert run_triggers(trigger, during=lambda cancel: (until(lambda: engine.describe_calls), cancel(0, message))) == [
        []
    ]
    assert checked == (["cluster"] if message else [])


def _end(trigger: AppStatusTrigger) -> None:
    from airflow_provider_launch.hooks.launch import LaunchHook
    from airflow_provider_launch.specs.handles import parse_app_handle

    parsed = parse_app_handle(trigger.handle)
    hook = LaunchHook.for_connection(parsed.session_name)
    hook.scheduler.cancel(parsed.app_id)
    hook.close()


# ---- sensor ------------------------------------------------------------------------------------------------------


def sensor(handle: Any, **kwargs: Any) -> AppStatusSensor:
    with a_dag():
        return AppStatusSensor(task_id="s", handle=handle, deferrable=True, **kwargs)


def launched(script: str, max_retries: int = 0, **cfg: Any) -> str:
    api = FakeExecutionApi()
    run_task(launch(sh(script, max_retries=max_retries), wait=False, cfg=cfg), api)
    return str(api.xcoms["t", "handle"])


def test_a_deferred_sensor_shows_the_log_and_ends_as_the_app_does() -> None:
    ran, events = run_to_end(sensor(launched(WAIT)), api := FakeExecutionApi())

    assert ran.state == "success", ran.error
    assert len(events) == 1
    assert api.xcoms["s", "return_value"]["state"] == "SUCCEEDED"
    assert [line for line in ran.lines if line.startswith("[worker/0]")] == [f"[worker/0] line {n}" for n in (1, 2, 3)]


def test_lines_of_a_deferred_sensor_are_not_lost_with_the_log_of_its_triggerer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__LAUNCH__TRIGGER_LOGS_LAST", "False")
    ran, _ = run_to_end(sensor(launched(WAIT), logs_from="now"), FakeExecutionApi())

    assert ran.state == "success", ran.error
    assert ran.lines.count("[worker/0] line 3") == 2  # by the trigger, and by the worker


def test_a_deferred_sensor_of_a_failed_app_fails_without_retries() -> None:
    ran, _ = run_to_end(sensor(launched("sleep 1; exit 4")), FakeExecutionApi(retries=2))

    assert ran.state == "failed"
    assert "exited with code 4" in str(ran.error)


def test_a_deferred_sensor_that_may_fail_softly_is_skipped() -> None:
    ran, _ = run_to_end(sensor(launched("sleep 1; exit 4"), soft_fail=True), FakeExecutionApi())

    assert ran.state == "skipped"


def test_the_timeout_of_a_deferred_sensor_ends_it_and_leaves_the_app() -> None:
    handle = launched("sleep 8", grace_s=1)
    ran, (event,) = run_to_end(sensor(handle, timeout=1), FakeExecutionApi())

    assert (event["reason"], ran.state) == ("deadline", "failed")
    assert "AirflowSensorTimeout" in repr(ran.error)


def test_a_sensor_starts_in_the_triggerer_where_the_handle_needs_no_worker() -> None:
    with a_dag():
        task = LaunchAppOperator(task_id="t", app=AppDef("app", [sh("true")]), wait=False)
        literal = AppStatusSensor(task_id="a", handle="local://c/x", deferrable=True)
        of_task = AppStatusSensor(task_id="b", handle=task.output, deferrable=True)
        limited = AppStatusSensor(
            task_id="c", handle="local://c/x", deferrable=True, execution_timeout=timedelta(seconds=9)
        )
        synchronous = AppStatusSensor(task_id="d", handle="local://c/x", deferrable=False)

    assert literal.start_from_trigger
    assert literal.start_trigger_args.trigger_kwargs["handle"] == "local://c/x"
    assert of_task.start_trigger_args.trigger_kwargs["handle"] == ["t", "return_value"]
    assert not limited.start_from_trigger
    assert not synchronous.start_from_trigger
    AppStatusTrigger(**literal.start_trigger_args.trigger_kwargs)


def test_the_default_of_airflow_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")

    assert launch(sh("true")).deferrable
    assert not launch(sh("true"), deferrable=False).deferrable


@pytest.mark.parametrize("alone", [True, False], ids=["roles when asked alone", "no roles"])
def test_secrets_are_hidden_where_answers_about_many_apps_lack_the_roles(
    engine: FakeEngine, api: FakeExecutionApi, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """Docker and Kubernetes read the record of an app only where they are asked about one."""
    describe_many = FakeScheduler.describe_many

    def without_roles(self: FakeScheduler, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        found = describe_many(self, app_ids)
        return {
            app_id: dataclasses.replace(answer, roles=[]) if answer is not None else None
            for app_id, answer in found.items()
        }

    monkeypatch.setattr(FakeScheduler, "describe_many", without_roles)
    if alone:
        monkeypatch.setattr(FakeScheduler, "describe", lambda self, app_id: describe_many(self, [app_id])[app_id])
    scheduler, app = FakeScheduler("tests", engine), an_app()
    app.roles[0].env["DB_PASS"] = "hush-1"
    app_id = scheduler.submit(app, {})
    reset_secrets_masker()
    engine.write(app_id, "worker", 0, "it is hush-1\n")
    engine.state(app_id, AppState.PENDING, "waits for hush-1")
    monkeypatch.setattr("airflow_provider_launch._task.task_log.PROGRESS_S", 0.0)
    trigger = AppStatusTrigger(
        f"fake://cluster/{app_id}", scheduled=True, secret_places=[("worker", "env", "DB_PASS", 0, 6)]
    )

    def end_it(_cancel: object) -> None:
        until(lambda: len(engine.describe_calls) > 3)
        engine.state(app_id, AppState.RUNNING, "runs with hush-1")
        # Without the roles no line comes before the end; then the poller has answered some times more.
        until(lambda: any("it is" in rendered(entry) for entry in [*entries]) or not alone)
        asked = len(engine.describe_calls)
        until(lambda: len(engine.describe_calls) > asked + 3)
        time.sleep(1.5)
        engine.state(app_id, AppState.SUCCEEDED, exit_codes={("worker", 0): 0})

    with logged() as entries:
        run_triggers(trigger, during=end_it)

    text = "\n".join(rendered(entry) for entry in entries)
    assert ("it is ***" in text) == alone
    assert "hush" not in text


def test_secrets_of_an_app_are_hidden_by_its_own_trigger_alone(engine: FakeEngine, api: FakeExecutionApi) -> None:
    """A triggerer follows apps for months: as Airflow's own masks, all their secrets would be searched in each line."""
    scheduler, app = FakeScheduler("tests", engine), an_app()
    app.roles[0].env["DB_PASS"] = "hush-1"
    app.roles[0].args[:] = ["--token", "hush-2"]
    app_id = scheduler.submit(app, {})
    reset_secrets_masker()
    engine.write(app_id, "worker", 0, "it is hush-1\n" + "hush-2 " + "x" * 50_000 + " hush-1\n")
    engine.write(app_id, "worker", 0, "err hush-2\n", stream=Stream.STDERR)
    engine.state(app_id, AppState.RUNNING, "runs with hush-1")
    trigger = AppStatusTrigger(f"fake://cluster/{app_id}", scheduled=True)

    def end_it(_cancel: object) -> None:
        until(lambda: any("err" in rendered(entry) for entry in [*entries]), 60, 0.05)
        engine.state(app_id, AppState.FAILED, "died of hush-1", exit_codes={("worker", 0): 3})

    with logged() as entries:
        ((event,),) = run_triggers(trigger, during=end_it)

    text = "\n".join(rendered(entry) for entry in entries)
    assert "[worker/0] it is ***" in text
    assert "hush" not in text
    assert "hush" not in str(event.payload["tails"])
    assert not [pattern for pattern in _secrets_masker().patterns if "hush" in pattern]
