"""Tasks that choose their namespace, through the real task and trigger runners, on a real Kubernetes cluster."""

from __future__ import annotations

import json
import signal
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.hooks.task_states import deployment_id
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.schedulers.kubernetes.scheduler import create_scheduler
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs import AppDef, AppState, Role
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.errors import InvalidAppError, InvalidRunConfigException
from airflow_provider_launch.triggers.connections import Connections
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from airflow_provider_launch.triggers.reconciler import Reconciler
from tests.airflow.guarantees import CONN, Heard, LastingApi, WorkerHost, deferred, resumed
from tests.airflow.support import USER_ACTION, FakeExecutionApi, a_dag, run_task, run_to_end, run_trigger, run_triggers
from tests.airflow.versions import deserialize
from tests.support.apps import described, until

pytestmark = pytest.mark.engine("kubernetes")

modes = pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])


class Namespaces:
    """A connection with two namespaces, and tasks that choose the second."""

    def __init__(self, engine: Any, own: str, other: str, set_env: Any) -> None:
        self._engine, self._set_env, self.own, self.other = engine, set_env, own, other
        self.name = f"t{uuid.uuid4().hex[:10]}"
        self.define()

    def define(self, **more: object) -> None:
        where = {"kubeconfig_path": str(self._engine.kubeconfig), "namespace": self.own, "namespaces": [self.other]}
        extra = {**where, "pull": "never", "security": "none", "grace_s": 1, **more}
        self.connection = json.dumps({"conn_type": "launch_kubernetes", "extra": extra})
        self._set_env(f"AIRFLOW_CONN_{CONN.upper()}", self.connection)

    def app(self, script: str) -> AppDef:
        return AppDef("app", [Role("main", self._engine.image, entrypoint="sh", args=["-c", script])])

    def task(self, script: str, namespace: str | None = None, suffix: str = "", **how: Any) -> LaunchAppOperator:
        cfg = {"namespace": namespace or self.other}
        with a_dag():
            return LaunchAppOperator(
                task_id=self.name + suffix, app=self.app(script), launch_conn_id=CONN, cfg=cfg,
                execution_timeout=timedelta(seconds=120), **how,
            )  # fmt: skip

    def states(self, namespace: str) -> dict[str, AppState]:
        """Return the apps of the task in a namespace, as a connection with only this namespace sees them."""
        scheduler = create_scheduler("s", kubeconfig_path=str(self._engine.kubeconfig), namespace=namespace)
        try:
            return {row.app_id: row.state for row in scheduler.list() if self.name in row.app_id}
        finally:
            scheduler.close()

    def ids(self, namespace: str) -> list[str]:
        return [*self.states(namespace)]

    def has_only(self, state: AppState) -> bool:
        """Return whether the task has one app in the other namespace, in this state, and none in its own."""
        return not self.states(self.own) and [*self.states(self.other).values()] == [state]

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.ids(self.own)), len(self.ids(self.other))


@pytest.fixture
def place(kubernetes_engine, kubernetes_namespace, kubernetes_make_namespace, monkeypatch) -> Namespaces:
    return Namespaces(kubernetes_engine, kubernetes_namespace, kubernetes_make_namespace(), monkeypatch.setenv)


@modes
def test_a_task_chooses_its_namespace_by_a_template(place, deferrable) -> None:
    task = place.task("echo hello; echo 7 >$LAUNCH_RESULT_PATH", "{{ params.team }}", deferrable=deferrable)
    task.params["team"] = place.other
    api = FakeExecutionApi()
    ran = run_to_end(task, api)[0] if deferrable else run_task(task, api)

    assert ran.error is None, ran.lines
    assert api.xcoms[place.name, "return_value"]["result"] == 7
    assert [line for line in ran.lines if line.startswith("[main/0]")] == ["[main/0] hello"]


@modes
def test_the_app_runs_in_the_namespace_of_the_task_only(place, deferrable) -> None:
    task = place.task("exit 3", deferrable=deferrable, on_finish="keep")
    api = FakeExecutionApi()
    ran = run_to_end(task, api)[0] if deferrable else run_task(task, api)

    assert "exited with code 3" in str(ran.error)
    assert place.counts == (0, 1)


def test_a_namespace_that_is_not_listed_fails_the_task_without_an_app(place) -> None:
    ran = run_task(place.task("true", "kube-system"), FakeExecutionApi())

    assert isinstance(ran.error.__cause__ or ran.error, InvalidAppError)
    assert "option namespace='kube-system': the connection allows" in str(ran.error)
    assert "add it to its field 'namespaces'" in str(ran.error)
    assert place.counts == (0, 0)


def test_a_lock_of_the_connection_holds_for_the_namespace(place) -> None:
    place.define(locked=["namespace"])

    with pytest.raises(InvalidRunConfigException, match="'namespace' is locked by connection"):
        LaunchHook.for_connection(CONN).merged_cfg({"namespace": place.other})
    assert place.counts == (0, 0)


def test_a_kill_cancels_the_app_in_its_namespace(place, sigterm) -> None:
    task = place.task("exec sleep 300", on_finish="keep")
    sigterm(lambda: place.has_only(AppState.RUNNING), task)
    ran = run_task(task, FakeExecutionApi())

    assert ran.state == "failed"
    until(lambda: place.has_only(AppState.CANCELLED))


def test_a_kill_of_a_deferred_task_cancels_the_app_in_its_namespace(place, monkeypatch) -> None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_: {"r": {"t": "failed"}}))
    trigger, _ = deferred(place.task("exec sleep 300", deferrable=True, on_finish="keep"), FakeExecutionApi())
    until(lambda: place.has_only(AppState.RUNNING))

    assert run_trigger(trigger, cancel_after=3, message=USER_ACTION) == []
    until(lambda: place.has_only(AppState.CANCELLED))


def test_another_triggerer_continues_a_deferred_task(place) -> None:
    """It has only the handle, which does not name the namespace."""
    script = "for n in 1 2 3 4 5 6 7 8; do echo line $n; sleep 1; done; echo 7 >$LAUNCH_RESULT_PATH"
    task = place.task(script, deferrable=True)
    first, asked = deferred(task, api := FakeExecutionApi())
    with Heard() as heard:
        assert run_trigger(first, cancel_after=4) == []
        assert place.has_only(AppState.RUNNING)
        (event,) = run_trigger(AppStatusTrigger(**first.serialize()[1]))
        ran = resumed(task, api, asked, event.payload)

    assert ran.error is None, ran.lines
    assert api.xcoms[place.name, "return_value"]["result"] == 7
    lines = [line for _, line in heard.lines if line.startswith("[main/0] line")]
    assert lines[-1] == "[main/0] line 8"
    assert {*lines} == {f"[main/0] line {n}" for n in range(1, 9)}


@pytest.mark.parametrize("how", [{"mode": "poke"}, {"mode": "reschedule"}, {"deferrable": True}], ids=str)
def test_a_sensor_follows_an_app_in_its_namespace(place, how) -> None:
    api = FakeExecutionApi()
    run_task(place.task("echo begun; sleep 3; echo done", wait=False), api)
    with a_dag():
        sensor = AppStatusSensor(task_id="s", handle=api.xcoms[place.name, "handle"], poke_interval=5, **how)

    ran = [run_to_end(sensor, api)[0]]
    while ran[-1].state == "up_for_reschedule":
        ran.append(run_task(sensor, api))
    assert ran[-1].state == "success", ran[-1].error
    lines = [line for each in ran for line in each.lines if line.startswith("[main/0]")]
    assert lines == ["[main/0] begun", "[main/0] done"]
    assert place.has_only(AppState.SUCCEEDED)


@modes
def test_indices_of_a_mapped_task_run_in_two_namespaces(place, deferrable) -> None:
    """Their triggers share one poll."""
    names = [place.own, place.other]
    with a_dag():
        task = LaunchAppOperator.partial(
            task_id=place.name,
            app=place.app("sleep 2; echo index {{ ti.map_index }}"),
            launch_conn_id=CONN,
            deferrable=deferrable,
            on_finish="keep",
        ).expand(cfg=[{"namespace": name} for name in names])
    apis = [FakeExecutionApi() for _ in names]
    with Heard() as heard:
        ran = [run_task(task, api, map_index=index) for index, api in enumerate(apis)]
        if deferrable:
            triggers = [AppStatusTrigger(**deserialize(each.msg.trigger_kwargs)) for each in ran]
            events = run_triggers(*triggers, during=lambda _cancel: None)
            assert [event.payload["reason"] for (event,) in events] == ["ended", "ended"]

    assert deferrable or [each.state for each in ran] == ["success", "success"]
    assert [line for _, line in heard.lines if "index " in line and line.startswith("[")] == sorted(
        f"[main/0] index {index}" for index in range(2)
    )
    assert [[*place.states(name).values()] for name in names] == [[AppState.SUCCEEDED]] * 2
    assert place.ids(place.own) != place.ids(place.other)


def test_the_clean_up_cancels_apps_of_all_namespaces_whose_tasks_are_over(place) -> None:
    names = [place.own, place.other, place.own, place.other]
    tasks = [place.task("exec sleep 300", name, f"-{n}", deferrable=True) for n, name in enumerate(names)]
    for task in tasks:
        run_task(task, FakeExecutionApi())
    over = {task.task_id for task in tasks[:2]}

    def ask(keys: Any) -> dict[Any, str | None]:
        return {key: "failed" if key.task_id in over else "running" for key in keys}

    hook = LaunchHook.for_connection(CONN)
    found = hook.runner.orphans("kubernetes", ask, deployment_id(), confirm_s=0.0)
    for handle in found:
        hook.runner.cancel(handle)
    hook.close()

    def has_cancelled() -> list[bool]:
        states = {**place.states(place.own), **place.states(place.other)}
        of_task = {task.task_id: app_id for task in tasks for app_id in states if task.task_id in app_id}
        return [states[of_task[task.task_id]] is AppState.CANCELLED for task in tasks]

    assert len(found) == 2
    until(lambda: all(has_cancelled()[:2]))
    assert has_cancelled() == [True, True, False, False]


@pytest.fixture(scope="module")
def worker_host(checkout: Path) -> Iterator[WorkerHost]:
    host = WorkerHost(checkout)
    yield host
    host.close()


@pytest.mark.parametrize(
    ("deferrable", "kill_at"),
    [(False, "after the claim"), (True, "after the claim"), (False, "while it follows")],
    ids=["sync-claim", "deferrable-claim", "sync-follow"],
)
def test_another_process_adopts_the_app_of_a_lost_worker(place, worker_host, tmp_path, deferrable, kill_at) -> None:
    script = "echo begun; sleep 6; echo done"
    order = {
        "app": app_to_dict(place.app(script)),
        "arguments": {"task_id": place.name, "deferrable": deferrable, "cfg": {"namespace": place.other}},
        "env": {f"AIRFLOW_CONN_{CONN.upper()}": place.connection},
        "backend": "kubernetes",
        "root": "/nowhere",
        "store": str(tmp_path / "store"),
        "steps": str(tmp_path / "steps"),
        "kill_at": None,
        "kill_at_line": "[main/0] begun",
    }
    if kill_at == "after the claim":
        order |= {"kill_at_line": "", "kill_at": _claim_step(worker_host, order, tmp_path)}
    assert worker_host.run(order) == -signal.SIGKILL
    task = place.task(script, deferrable=deferrable, on_finish="keep")
    second = run_to_end(task, LastingApi(tmp_path / "store"), try_number=2)[0]

    assert second.error is None, second.lines
    assert place.counts == (0, 1)
    assert [line for line in second.lines if line.startswith("[main/0]")] == ["[main/0] begun", "[main/0] done"]


def _claim_step(host: WorkerHost, order: dict[str, Any], tmp_path: Path) -> int:
    """Return the step of a launch after which its Service exists: the middle one between intent and handle."""
    steps = tmp_path / "counted"
    arguments = {**order["arguments"], "task_id": f"t{uuid.uuid4().hex[:10]}", "wait": False}
    counted = {"steps": str(steps), "store": str(tmp_path / "other-store"), "arguments": arguments, "kill_at_line": ""}
    assert host.run({**order, **counted}) == 0
    lines = steps.read_text().splitlines()
    intent, handle, *_ = (n for n, line in enumerate(lines, 1) if line == "after PUT store ti launch")
    return (intent + handle) // 2


@modes
def test_a_cleared_task_cancels_its_app_in_its_namespace(place, deferrable) -> None:
    api = FakeExecutionApi()
    run_task(place.task("exec sleep 300", wait=False), api)
    assert place.counts == (0, 1)
    api.clear()
    task = place.task("echo again", deferrable=deferrable, on_finish="keep")
    ran = run_to_end(task, api, try_number=2)[0] if deferrable else run_task(task, api, try_number=2)

    assert ran.error is None, ran.lines
    assert ran.logged("was cleared: cancelling app")
    assert place.counts == (0, 2)


def test_the_app_of_a_task_that_is_over_is_cancelled_in_its_namespace(place) -> None:
    ran = run_task(place.task("exec sleep 300", deferrable=True), FakeExecutionApi())
    assert ran.state == "deferred"
    (app_id,) = place.ids(place.other)
    hook = LaunchHook.for_connection(CONN)
    described(hook.scheduler, app_id, lambda found: found.state is AppState.RUNNING, 90)
    now = 0.0

    def ask(keys: Any, _has_seen: Any) -> dict[Any, str | None]:
        return {key: "failed" if key.task_id == place.name else "running" for key in keys}

    reconciler = Reconciler(Connections(), 60.0, ask=ask, deployment=deployment_id, clock=lambda: now)
    reconciler._thread = threading.current_thread()
    reconciler.use(CONN)
    for _ in range(2):
        now += max(reconciler._wait_s(), 0.0)
        reconciler.run_round()

    until(lambda: hook.scheduler.describe(app_id).state is AppState.CANCELLED, 60)
    hook.close()
