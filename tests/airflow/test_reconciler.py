"""Apps that lost their task: requests to Airflow, cancels, and the gaps between two processes."""

from __future__ import annotations

import json
import random
import threading
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from airflow.sdk import Variable
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_launch._task.progress import pack
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.hooks.task_states import VARIABLE, ask_states, deployment_id, questions_for
from airflow_provider_launch.runner.orphans import ABSENT, CONFIRM_S, GONE
from airflow_provider_launch.schedulers.spec_hash import spec_hash
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs.errors import AppConflictError, SchedulerRejectedError
from airflow_provider_launch.specs.owner import OWNER, TaskKey
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.triggers import reconciler as reconciler_module
from airflow_provider_launch.triggers.connections import Connections
from airflow_provider_launch.triggers.hub import Ticker
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from airflow_provider_launch.triggers.reconciler import Reconciler
from tests.airflow.support import FakeExecutionApi, TaskInstance, a_dag, launch, logged, run_task, sh
from tests.airflow.versions import serialize
from tests.support.apps import until
from tests.support.fake_scheduler import FakeEngine, FakeScheduler, an_app

HERE = "here"


def alive(engine: FakeEngine) -> list[str]:
    return sorted(app_id for app_id, app in engine.apps.items() if not is_terminal(app.state))


def submit(engine: FakeEngine, app_id: str, **owner: Any) -> TaskKey:
    """A running app of a task."""
    key = TaskKey("d", "r", app_id)
    app = an_app()
    app.metadata[OWNER] = {**key._asdict(), "deployment": HERE, "policy": "cancel", **owner}
    scheduler = FakeScheduler("cluster", engine)
    scheduler.schedule(scheduler.submit_dryrun(app, {}, app_id=app_id))
    engine.state(app_id, AppState.RUNNING)
    return key


class Driven:
    """A reconciler whose rounds and clock the test drives."""

    def __init__(self, states: dict[TaskKey, str | None], interval_s: float = 60.0) -> None:
        self.now, self.states, self.asked = 0.0, states, 0
        self.it = Reconciler(Connections(), interval_s, ask=self.ask, deployment=lambda: HERE, clock=lambda: self.now)
        self.it._thread = threading.current_thread()
        self.it.use("cluster")

    def ask(self, keys: Any, has_seen: Any) -> dict[TaskKey, str | None]:
        self.asked += 1
        return {key: self.states[key] for key in keys if key in self.states}

    def wait(self) -> float:
        """Let the next round come; return how long that took."""
        wait_s = self.it._wait_s()
        self.now += max(wait_s, 0.0)
        self.it.run_round()
        return wait_s


def test_apps_whose_task_is_over_are_cancelled_and_no_others(engine: FakeEngine, api: FakeExecutionApi) -> None:
    states: dict[TaskKey, str | None] = {
        submit(engine, "over"): "failed", submit(engine, "runs"): "running", submit(engine, "retries"): "up_for_retry",
        submit(engine, "others", deployment="there"): "failed", submit(engine, "stays", policy="leave"): "success",
    }  # fmt: skip
    submit(engine, "unanswered")
    driven = Driven(states)

    first = driven.wait()
    assert engine.cancelled == []
    second = driven.wait()

    assert (first, second) == (60.0, CONFIRM_S)
    assert engine.cancelled == ["over"]
    assert driven.wait() == 60.0
    assert engine.cancelled == ["over"]


def test_a_connection_that_hangs_does_not_delay_others(
    engine: FakeEngine, api: FakeExecutionApi, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    driven = Driven({submit(engine, "over"): "failed"})
    driven.it.use("hangs")
    monkeypatch.setattr(reconciler_module, "_ROUND_S", 3.0)
    answered, rounds, check = threading.Event(), [], driven.it._check

    def hang(watched: Any) -> Any:
        rounds.append(watched.conn_id)
        if watched.conn_id == "hangs":
            assert answered.wait(60)
        return check(watched)

    monkeypatch.setattr(driven.it, "_check", hang)
    try:
        for _ in range(4):
            if "over" not in engine.cancelled:
                assert driven.wait() > 0
        assert engine.cancelled == ["over"]
        assert rounds.count("hangs") == 1
        assert "connection 'hangs' has not answered for 3 s" in caplog.text
    finally:
        answered.set()
    until(lambda: not driven.it._watched["hangs"].is_busy)
    driven.now += 60
    driven.it.run_round()
    assert rounds.count("hangs") == 2


def test_each_cancel_is_one_warning(engine: FakeEngine, api: FakeExecutionApi, caplog: Any) -> None:
    driven = Driven({submit(engine, "over"): "failed"})
    driven.wait()
    driven.wait()
    driven.wait()

    (warning,) = [record for record in caplog.records if record.name == reconciler_module.__name__]
    assert warning.getMessage() == (
        "fake://cluster/over has lost its task and is cancelled: task over is failed for 20 s or more (DAG d, run r)"
    )


def test_runs_that_were_never_seen_are_reported_and_kept(
    engine: FakeEngine, api: FakeExecutionApi, caplog: Any
) -> None:
    driven = Driven({submit(engine, "unseen"): ABSENT})
    driven.wait()
    driven.wait()

    assert engine.cancelled == []
    assert "1 running app(s) of connection 'cluster' name tasks that this Airflow does not know" in caplog.text


def test_workers_with_another_deployment_id_are_reported_once(
    engine: FakeEngine, api: FakeExecutionApi, caplog: Any
) -> None:
    """For example with two values of `[api] base_url`: their orphans would silently never be cancelled."""
    driven = Driven({submit(engine, "ours", deployment="there"): "failed", submit(engine, "theirs"): "running"})
    submit(engine, "another", deployment="elsewhere")
    driven.it.see_run("d", "r")
    driven.wait()
    assert "was launched for deployment" not in caplog.text, "another Airflow may have runs of the same name"

    shared = driven.it._connections.join("cluster")
    for app_id in ("ours", "theirs"):
        shared.poller.subscribe(app_id, print)
    driven.wait()
    driven.wait()
    for app_id in ("ours", "theirs"):
        shared.poller.unsubscribe(app_id, print)
    driven.it._connections.leave(shared)

    (warning,) = [record.getMessage() for record in caplog.records if "was launched for deployment" in record.msg]
    assert warning.startswith("app ours of connection 'cluster' was launched for deployment 'there'")
    assert engine.cancelled == []


def test_a_deleted_run_that_was_seen_ends_its_apps(engine: FakeEngine, api: FakeExecutionApi) -> None:
    driven = Driven({submit(engine, "deleted"): GONE})
    driven.it.see_run("d", "r")
    driven.wait()
    driven.wait()

    assert engine.cancelled == ["deleted"]


def test_an_orphan_that_could_not_be_cancelled_is_named_and_tried_again(
    engine: FakeEngine, api: FakeExecutionApi, monkeypatch: Any, caplog: Any
) -> None:
    cancel, asked = FakeScheduler._cancel_existing, []

    def refuse_once(self: FakeScheduler, app_id: str) -> None:
        asked.append(app_id)
        if len(asked) == 1:
            raise OSError("no socket")
        cancel(self, app_id)

    monkeypatch.setattr(FakeScheduler, "_cancel_existing", refuse_once)
    driven = Driven({submit(engine, "over"): "failed", submit(engine, "too"): "failed"})
    driven.wait()
    driven.wait()
    assert "has lost its task (task over is failed" in caplog.text
    assert "and could not be cancelled: no socket" in caplog.text
    assert engine.cancelled == ["too"]
    driven.wait()

    assert engine.cancelled == ["too", "over"]


def test_a_cancel_that_takes_a_while_is_not_repeated_at_once(
    engine: FakeEngine, api: FakeExecutionApi, monkeypatch: Any
) -> None:
    """A program may have a long grace time."""
    asked: list[str] = []
    monkeypatch.setattr(FakeScheduler, "_cancel_existing", lambda _self, app_id: asked.append(app_id))
    driven = Driven({submit(engine, "over"): "failed"})
    for _ in range(3):
        driven.wait()

    assert asked == ["over"]


def test_a_round_that_fails_does_not_end_the_checks(
    engine: FakeEngine, api: FakeExecutionApi, monkeypatch: Any
) -> None:
    rounds = threading.Event()

    def fail(self: Reconciler) -> None:
        if hasattr(self, "_has_failed"):
            rounds.set()
            self._watched.clear()
        self._has_failed = True  # type: ignore[attr-defined]
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(Reconciler, "run_round", fail)
    driven = Reconciler(Connections(), 0.01, ask=lambda *_: {}, deployment=lambda: HERE)
    driven.use("cluster")
    thread = driven._thread

    assert rounds.wait(30)
    thread.join(30)
    assert not thread.is_alive()


def test_an_engine_that_does_not_answer_is_asked_again(
    engine: FakeEngine, api: FakeExecutionApi, monkeypatch: Any, caplog: Any
) -> None:
    driven = Driven({submit(engine, "over"): "failed"})
    monkeypatch.setattr(FakeScheduler, "list", lambda *_: 1 / 0)
    assert driven.wait() == 60.0
    assert "the apps of connection 'cluster' were not compared with their tasks: division by zero" in caplog.text
    monkeypatch.undo()

    driven.it.use("cluster")
    assert driven.wait() == 60.0


def test_an_ended_trigger_brings_the_next_round_forward_but_not_each(engine: FakeEngine, api: FakeExecutionApi) -> None:
    """A thousand triggers that end at once cause one list each ten seconds."""
    driven = Driven({submit(engine, "runs"): "running"})
    for _ in range(1000):
        driven.it.check_soon("cluster")
    assert driven.wait() == reconciler_module.SOON_S
    driven.it.check_soon("cluster")

    assert driven.wait() == reconciler_module.PAUSE_S
    assert driven.wait() == 60.0
    assert driven.asked == 3


def test_a_connection_is_watched_for_an_hour_after_its_last_trigger(engine: FakeEngine, api: FakeExecutionApi) -> None:
    driven = Driven({submit(engine, "runs"): "running"}, interval_s=500.0)
    while driven.now < 3500:
        driven.wait()
    asked = driven.asked
    for _ in range(5):
        driven.wait()

    assert asked >= 6
    assert driven.asked <= asked + 1


def test_the_thread_checks_by_itself(engine: FakeEngine, api: FakeExecutionApi, monkeypatch: Any) -> None:
    key = submit(engine, "over")
    asked = threading.Event()

    def ask(*_: Any) -> dict[TaskKey, str | None]:
        asked.set()
        return {key: "failed"}

    monkeypatch.setattr(reconciler_module, "USED_FOR_S", 1.0)
    driven = Reconciler(Connections(), 0.05, ask=ask, deployment=lambda: HERE)
    driven.use("cluster")
    thread = driven._thread

    assert asked.wait(30)
    thread.join(30)
    assert not thread.is_alive(), "nothing is watched any more"


def test_an_interval_of_0_switches_it_off(engine: FakeEngine, api: FakeExecutionApi) -> None:
    off = Reconciler(Connections(), 0)
    off.use("cluster")

    assert off._thread is None


# ---- asking Airflow --------------------------------------------------------------------------------------------------


def answer_with(monkeypatch: Any, rows: dict[TaskKey, str | None], *, run: Any = "running") -> list[dict[str, Any]]:
    """Let Airflow have these rows, and give them as it does: under names in which `a[1]` and `a_1` are the same."""
    asked: list[dict[str, Any]] = []

    def get_task_states(**question: Any) -> dict[str, dict[str, str | None]]:
        asked.append(question)
        found: dict[str, dict[str, str | None]] = {}
        for key, state in sorted(rows.items()):
            if (
                key.dag_id == question["dag_id"]
                and key.run_id in question["run_ids"]
                and key.task_id in question["task_ids"]
            ):
                name = key.task_id if key.map_index < 0 else f"{key.task_id}_{key.map_index}"
                found.setdefault(key.run_id, {})[name] = state
        return found

    def get_dagrun_state(dag_id: str, run_id: str) -> str:
        if isinstance(run, Exception):
            raise run
        return run

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
    monkeypatch.setattr(RuntimeTaskInstance, "get_dagrun_state", staticmethod(get_dagrun_state))
    return asked


def refusal(status: int | None, detail: object) -> AirflowRuntimeError:
    body = {"status_code": status, "message": "Server returned error", "detail": detail}
    return AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=body))


def deny(error: Exception) -> Callable[..., Any]:
    """Return a function that raises the error."""

    def ask(*_: Any, **__: Any) -> Any:
        raise error

    return ask


NOT_FOUND = {"detail": {"reason": "not_found", "message": "Dag run with dag_id 'd' and run_id 'r' was not found"}}


def test_states_of_mapped_and_other_tasks_are_never_mixed_up(monkeypatch: Any) -> None:
    dice = random.Random(1)
    names = ["a", "a_1", "a_1_1", "a_2", "b"]
    for _ in range(100):
        rows = {
            TaskKey("d", run, task, index): dice.choice(["running", "failed", None])
            for run in ("r", "s") for task in names for index in (-1, 0, 1, 11) if dice.random() < 0.5
        }  # fmt: skip
        answer_with(monkeypatch, rows)
        assert ask_states(rows.keys()) == rows


def test_a_question_names_at_most_a_hundred_runs(monkeypatch: Any) -> None:
    """2000 run ids make an address that Airflow's client refuses."""
    rows = {TaskKey("d", f"r{k}", "t"): "running" for k in range(250)}
    asked = answer_with(monkeypatch, rows)

    assert ask_states(rows.keys()) == rows
    assert [len(question["run_ids"]) for question in asked] == [100, 100, 50]
    assert all(question["task_ids"] for question in asked), "an empty list is no filter"


@pytest.mark.parametrize("letter", ["x", "\u20ac"])
def test_many_tasks_of_a_dag_are_asked_for_in_addresses_that_the_client_takes(letter: str) -> None:
    """Names of foreign labels count, too: one of them must not keep the others of its DAG from an answer."""
    keys = {TaskKey("d", f"{k % 30}{letter * 240}", f"{k}{letter * 240}") for k in range(300)}
    questions = list(questions_for(keys))

    assert sorted(key for question in questions for key in question.keys) == sorted(keys)
    for question in questions:
        httpx.URL("http://airflow/execution/task-instances/states", params=question.arguments())


def test_one_index_of_a_large_map_is_asked_for_alone() -> None:
    (question,) = questions_for([TaskKey("d", "r", "t", 7)])

    assert question.arguments()["map_index"] == 7


@pytest.mark.parametrize(
    ("run", "seen", "expected"),
    [
        (refusal(404, NOT_FOUND), True, GONE),
        (refusal(404, NOT_FOUND), False, ABSENT),
        (refusal(404, {"detail": "Not Found"}), True, ABSENT),
        (refusal(404, None), True, ABSENT),
        (refusal(404, {"detail": {"reason": "not_found", "message": "run_id 'another' was not found"}}), True, ABSENT),
        (refusal(403, NOT_FOUND), True, ABSENT),
        (refusal(500, NOT_FOUND), True, ABSENT),
        (refusal(None, None), True, ABSENT),
        (TimeoutError(), True, ABSENT),
        ("failed", True, ABSENT),
    ],
)  # fmt: skip
def test_only_a_404_that_names_the_run_is_a_deleted_run(monkeypatch: Any, run: Any, seen: bool, expected: str) -> None:
    answer_with(monkeypatch, {}, run=run)
    key = TaskKey("d", "r", "t")

    assert ask_states([key], lambda *_: seen) == {key: expected}


def test_a_question_that_fails_gives_no_answer(monkeypatch: Any) -> None:
    answer_with(monkeypatch, {})
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_: 1 / 0))

    errors: list[Exception] = []

    assert ask_states([TaskKey("d", "r", "t")], report=errors.append) == {}
    assert [type(error) for error in errors] == [ZeroDivisionError]


# ---- the owner of an app ---------------------------------------------------------------------------------------------


class Airflow(FakeExecutionApi):
    """An API server with Variables, which refuses deferrals of tasks that are over."""

    def __init__(self, state: str = "running") -> None:
        super().__init__()
        self.variables: dict[str, str] = {}
        self.state = state
        self.refused: int | None = None
        """With this status the server refuses XComs."""

    def _answer(self, request: httpx.Request) -> httpx.Response:
        parts = request.url.path.strip("/").split("/")
        body = json.loads(request.content) if request.content else None
        match request.method, *parts:
            case "GET", "variables", name if name in self.variables:
                return httpx.Response(200, json={"key": name, "value": self.variables[name]})
            case "PUT", "variables", name:
                self.variables[name] = body["val"]
                return httpx.Response(201, json={})
            case "PATCH", "task-instances", _, "state" if self.state != "running" and body["state"] == "deferred":
                detail = {"reason": "invalid_state", "message": "not running", "previous_state": self.state}
                return httpx.Response(409, json={"detail": detail})
            case "POST", "xcoms", *_ if self.refused:
                return httpx.Response(self.refused, json={"detail": "DAG run not found"})
            case "GET", "task-instances", "states":
                return httpx.Response(200, json={"task_states": {"test_run": {"t": self.state}}})
        return super()._answer(request)


@pytest.fixture
def airflow(api: FakeExecutionApi, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    """An API server, with the connection of the fake engine."""
    monkeypatch.delenv("AIRFLOW__LAUNCH__DEPLOYMENT_ID")
    return Airflow()


def owner_of_only(engine: FakeEngine) -> dict[str, str]:
    (row,) = FakeScheduler("cluster", engine).list()
    return dict(row.owner)


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [({"wait": False}, "leave"), ({"on_kill": "leave"}, "leave"), ({}, "cancel")],
)
def test_an_app_stores_its_deployment_and_policy(
    engine: FakeEngine, airflow: Airflow, arguments: dict[str, Any], policy: str
) -> None:
    engine.on_scheduled = lambda app_id: engine.state(app_id, AppState.SUCCEEDED)
    ran = run_task(launch(sh("true"), launch_conn_id="cluster", **arguments), airflow)

    assert ran.state == "success", ran.error
    owner = owner_of_only(engine)
    assert owner["policy"] == policy
    assert owner["deployment"].startswith(airflow.variables[VARIABLE])


def test_without_a_variable_an_app_belongs_to_no_deployment(
    engine: FakeEngine, api: FakeExecutionApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW__LAUNCH__DEPLOYMENT_ID")
    engine.on_scheduled = lambda app_id: engine.state(app_id, AppState.SUCCEEDED)
    ran = run_task(launch(sh("true"), launch_conn_id="cluster"), api)

    assert ran.state == "success", ran.error
    assert owner_of_only(engine)["deployment"] == ""


def test_the_configuration_names_the_deployment(monkeypatch: Any) -> None:
    monkeypatch.setenv("AIRFLOW__LAUNCH__DEPLOYMENT_ID", "production")

    assert deployment_id() == "production"


def test_a_deployment_whose_id_cannot_be_read_has_none(monkeypatch: Any, caplog: Any) -> None:
    """The app starts nevertheless, and is only never cancelled as an orphan."""

    def refuse(*_: Any, **__: Any) -> str:
        raise PermissionError("no access to variables")

    monkeypatch.delenv("AIRFLOW__LAUNCH__DEPLOYMENT_ID")
    monkeypatch.setattr(Variable, "get", staticmethod(refuse))

    assert deployment_id() == ""
    assert "could not be read (no access to variables)" in caplog.text


def test_the_same_address_is_the_same_deployment(monkeypatch: Any) -> None:
    monkeypatch.delenv("AIRFLOW__LAUNCH__DEPLOYMENT_ID")
    monkeypatch.setattr(Variable, "get", staticmethod(lambda *_, **__: "kept"))
    found = []
    for address in ("http://one", "http://one/", "http://two"):
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", address)
        found.append(deployment_id())

    assert found == ["kept@http://one", "kept@http://one", "kept@http://two"]


def test_deployment_and_policy_are_not_part_of_the_spec_hash() -> None:
    """Else the first retry after an upgrade would be refused as another app."""
    app, owned = an_app(), an_app()
    owner = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}
    app.metadata[OWNER] = owner
    owned.metadata[OWNER] = {**owner, "try_number": 2, "deployment": HERE, "policy": "leave"}

    assert spec_hash(app, {}) == spec_hash(owned, {})


def test_the_hook_lists_orphans_for_a_maintenance_dag(
    engine: FakeEngine, api: FakeExecutionApi, monkeypatch: Any
) -> None:
    monkeypatch.setenv("AIRFLOW__LAUNCH__DEPLOYMENT_ID", HERE)
    rows = {
        submit(engine, "over"): "failed",
        submit(engine, "waits"): "up_for_retry",
        submit(engine, "goes"): "deferred",
    }
    submit(engine, "stays", policy="leave")
    submit(engine, "others", deployment="there")
    answer_with(monkeypatch, rows)
    hook = LaunchHook.for_connection("cluster")

    assert hook.runner.orphans("fake", ask_states, HERE, confirm_s=0.0) == ["fake://cluster/over"]
    hook.close()


# ---- ends between two processes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "reason"),
    [*((state, f"is {state}") for state in ("failed", "success", "removed")), ("restarting", "was cleared")],
)
def test_a_task_whose_deferral_is_refused_cancels_its_app(
    engine: FakeEngine, airflow: Airflow, state: str, reason: str
) -> None:
    """It was marked or cleared in the moment of the deferral: no trigger will ever follow the app."""
    airflow.on_call = lambda method, parts, body: None
    engine.on_scheduled = lambda app_id: setattr(airflow, "state", state)

    ran = run_task(launch(sh("sleep 60"), launch_conn_id="cluster", deferrable=True), airflow)

    assert alive(engine) == []
    assert ran.logged(f"the task {reason}, so its deferral was refused")


def listeners() -> int:
    from airflow.sdk.listener import get_listener_manager

    return sum("cancel_if_refused" in type(each).__qualname__ for each in get_listener_manager().pm.get_plugins())


def test_a_refused_deferral_is_checked_once(engine: FakeEngine, airflow: Airflow) -> None:
    """`dag.test()` runs all tasks of a DAG in one process."""
    before = listeners()
    engine.on_scheduled = lambda app_id: setattr(airflow, "state", "failed")
    run_task(launch(sh("sleep 60"), launch_conn_id="cluster", deferrable=True), airflow)

    assert listeners() == before


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize(
    ("error", "is_named"), [(SchedulerRejectedError("no right to cancel"), True), (OSError("no socket"), False)]
)
def test_a_cancel_that_fails_changes_no_error_of_the_task(
    engine: FakeEngine,
    airflow: Airflow,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    is_named: bool,
    deferrable: bool,
) -> None:
    """The reconciler finds the app later."""

    def end(_: str) -> None:
        airflow.state, airflow.refused = "failed", None if deferrable else 404

    def refuse(_self: FakeScheduler, _app_id: str) -> None:
        raise error

    engine.on_scheduled = end
    monkeypatch.setattr(FakeScheduler, "_cancel_existing", refuse)
    ran = run_task(launch(sh("sleep 60"), launch_conn_id="cluster", deferrable=deferrable), airflow)

    assert str(error) not in str(ran.error)
    assert ran.logged(f"could not be cancelled: {error}; cancel it, or it runs to its end") == is_named
    assert not ran.logged("error calling listener")


def test_without_listeners_a_task_defers(engine: FakeEngine, airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are a part of Airflow that has moved before."""
    import sys

    from airflow_provider_launch.operators._own_state import cancel_if_refused

    before = listeners()
    monkeypatch.setitem(sys.modules, "airflow.sdk.listener", None)
    monkeypatch.setitem(sys.modules, "airflow.listeners", None)
    cancel_if_refused(SimpleNamespace(), "fake://cluster/app", SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    monkeypatch.undo()

    assert listeners() == before


def test_a_task_that_defers_keeps_its_app(engine: FakeEngine, airflow: Airflow) -> None:
    engine.on_scheduled = lambda app_id: engine.state(app_id, AppState.RUNNING)

    ran = run_task(launch(sh("sleep 60"), launch_conn_id="cluster", deferrable=True), airflow)

    assert ran.state == "deferred"
    assert len(alive(engine)) == 1


def test_a_refused_deferral_leaves_an_app_that_is_to_stay(engine: FakeEngine, airflow: Airflow) -> None:
    engine.on_scheduled = lambda app_id: setattr(airflow, "state", "failed")

    run_task(launch(sh("sleep 60"), launch_conn_id="cluster", deferrable=True, on_kill="leave"), airflow)

    assert len(alive(engine)) == 1


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("state", ["failed", "success", "removed", "restarting", GONE])
def test_a_task_that_can_store_nothing_cancels_its_app_if_it_is_over(
    engine: FakeEngine, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, state: str, deferrable: bool
) -> None:
    """Airflow refuses the XComs of a task whose run was deleted while it launched: this try fails, and none follows."""
    if state == GONE:
        message = "The DagRun with run_id: 'test_run' was not found"
        # The supervisor turns refusals of the server into such errors, but not the one of the tests.
        answer_with(monkeypatch, {}, run=refusal(404, {"detail": {"reason": "not_found", "message": message}}))

    def end(_: str) -> None:
        airflow.state, airflow.refused = state, 404

    engine.on_scheduled = end
    ran = run_task(launch(sh("sleep 60"), launch_conn_id="cluster", deferrable=deferrable), airflow)

    assert alive(engine) == []
    assert ran.logged("is cancelled")


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_task_that_is_over_keeps_an_app_of_another_owner_with_its_id(
    engine: FakeEngine, airflow: Airflow, deferrable: bool
) -> None:
    run_task(launch(sh("sleep 50"), launch_conn_id="cluster", wait=False), FakeExecutionApi())

    def end(_: str) -> None:
        airflow.state = "failed"

    engine.on_schedule = end
    ran = run_task(launch(sh("sleep 60"), launch_conn_id="cluster", deferrable=deferrable), airflow)

    assert isinstance(ran.error, AppConflictError)
    assert len(alive(engine)) == 1


@pytest.mark.parametrize(
    ("state", "arguments"),
    [
        ("running", {}), ("up_for_retry", {}), ("scheduled", {}), ("failed", {"on_kill": "leave"}),
        ("failed", {"wait": False}),
    ],
)  # fmt: skip
def test_a_task_that_can_store_nothing_keeps_its_app_otherwise(
    engine: FakeEngine, airflow: Airflow, state: str, arguments: dict[str, Any]
) -> None:
    """Its next try continues with the app."""

    def end(_: str) -> None:
        airflow.state, airflow.refused = state, 500

    engine.on_scheduled = end
    run_task(launch(sh("sleep 60"), launch_conn_id="cluster", **arguments), airflow)

    assert len(alive(engine)) == 1


@pytest.mark.parametrize(
    ("kept", "state", "is_cancelled"),
    [
        ("", "scheduled", True), ("", "queued", True), ("", None, True),
        (pack({"state": "RUNNING"}), "scheduled", True),
        (pack({"fired": True}), "scheduled", False), (pack({"fired": True}), None, False),
        (None, "scheduled", False), (None, "queued", False), ("", "deferred", False), ("", "running", False),
    ],
)  # fmt: skip
def test_a_trigger_that_is_ended_by_a_clear_cancels_its_app(
    engine: FakeEngine,
    api: FakeExecutionApi,
    monkeypatch: Any,
    kept: str | None,
    state: str | None,
    is_cancelled: bool,
) -> None:
    """Its new try may wait for hours for a slot. Another triggerer may have fired for the same deferral."""
    import asyncio

    submit(engine, "app")
    monkeypatch.setattr(BaseXCom, "get_one", staticmethod(lambda **_: kept))
    answer_with(monkeypatch, {TaskKey("d", "r", "t"): state})
    trigger = AppStatusTrigger("fake://cluster/app", known=True)
    ids = {"id": uuid.uuid4(), "dag_version_id": uuid.uuid4(), "dag_id": "d", "run_id": "r", "task_id": "t"}
    trigger.task_instance = TaskInstance(**ids, try_number=1, map_index=-1)

    with logged():
        asyncio.run(trigger.on_kill())

    assert engine.cancelled == (["app"] if is_cancelled else [])


def test_a_trigger_notes_that_it_has_fired(monkeypatch: Any) -> None:
    import asyncio

    from airflow_provider_launch._task.progress import FollowProgress
    from airflow_provider_launch.triggers import checkpoint

    stored: list[str] = []

    async def aset(*, value: str, **_: Any) -> None:
        stored.append(value)

    monkeypatch.setattr(BaseXCom, "aset", staticmethod(aset))
    monkeypatch.setattr(BaseXCom, "get_one", staticmethod(lambda **_: stored[-1]))
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
    kept = checkpoint.Checkpoint(ti)
    asyncio.run(kept.save(FollowProgress({"w/0": 1})))
    assert checkpoint.was_cleared(ti, None)
    asyncio.run(kept.save(FollowProgress({"w/0": 1}), fired=True))
    assert not checkpoint.was_cleared(ti, None)
    asyncio.run(kept.save(FollowProgress({str(k): random.Random(k).random() for k in range(9000)}), fired=True))
    assert not checkpoint.was_cleared(ti, None), "a checkpoint that is too large still states it"


# ---- other versions --------------------------------------------------------------------------------------------------


def failed_trigger(error: str = "Trigger failure") -> dict[str, Any]:
    trace = ["Traceback (most recent call last):\n", "ImportError: no module named 'newer'\n"]
    return {"next_method": "__fail__", "next_kwargs": serialize({"error": error, "traceback": trace})}


def test_the_worker_follows_the_app_of_a_trigger_that_failed(engine: FakeEngine, airflow: Airflow) -> None:
    """A triggerer of an older version does not know the class."""
    engine.on_scheduled = lambda app_id: engine.state(app_id, AppState.RUNNING)
    task = launch(sh("true"), launch_conn_id="cluster", deferrable=True)
    assert run_task(task, airflow).state == "deferred"
    (app_id,) = alive(engine)
    engine.write(app_id, "worker", 0, "a line\n")
    engine.state(app_id, AppState.SUCCEEDED, exit_codes={("worker", 0): 0})
    airflow.resume = failed_trigger()

    ran = run_task(task, airflow)

    assert ran.state == "success", ran.error
    assert ran.logged("the trigger has failed (Trigger failure: ImportError: no module named 'newer')")
    assert ran.logged("a line")


def test_the_sensor_follows_the_app_of_a_trigger_that_failed(engine: FakeEngine, airflow: Airflow) -> None:
    submit(engine, "app")
    engine.state("app", AppState.SUCCEEDED, exit_codes={("worker", 0): 0})
    with a_dag():
        sensor = AppStatusSensor(task_id="t", handle="fake://cluster/app", deferrable=True)
    airflow.resume = failed_trigger()

    assert run_task(sensor, airflow).state == "success"


def test_a_trigger_that_timed_out_still_fails_its_task(engine: FakeEngine, airflow: Airflow) -> None:
    airflow.resume = failed_trigger("Trigger timeout")

    ran = run_task(launch(sh("true"), launch_conn_id="cluster", deferrable=True), airflow)

    assert "TaskDeferralTimeout" in type(ran.error).__name__


def test_an_argument_of_a_newer_version_is_ignored_with_a_warning() -> None:
    with logged() as entries:
        trigger = AppStatusTrigger("fake://cluster/app", of_tomorrow=1, poll_interval_s=3.0)

    assert trigger.options.poll_interval_s == 3.0
    assert any("of_tomorrow" in str(entry) for entry in entries)


def test_a_trigger_that_raises_does_not_stop_ticks_of_others(caplog: Any) -> None:
    import asyncio

    ticked: list[str] = []
    raising = SimpleNamespace(tick=lambda: ticked.append("bad") or 1 / 0)

    async def drive() -> None:
        loop = asyncio.get_running_loop()
        ticker = Ticker(0.01)

        class Member:
            def __init__(self, act: Any) -> None:
                self.tick = act

        again = asyncio.Event()
        good = Member(lambda: again.set() if ticked.count("good") else ticked.append("good"))
        bad = Member(raising.tick)
        for member in (bad, good):
            ticker.add(member, loop)
        await again.wait()
        for member in (bad, good):
            ticker.remove(member, loop)

    asyncio.run(asyncio.wait_for(drive(), 30))
    assert "the check of a trigger failed" in caplog.text
