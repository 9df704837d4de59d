"""The task log of an app that is preempted and started again by its queue."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid

import pytest

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.schedulers.kubernetes.scheduler import create_scheduler
from airflow_provider_launch.specs import AppDef, AppState, Resource, Role
from tests.airflow.support import FakeExecutionApi, a_dag, run_task
from tests.engines.kubernetes.queues import PLACE_MB
from tests.support.apps import until

pytestmark = [pytest.mark.engine("kubernetes"), pytest.mark.engine("kueue"), pytest.mark.timeout(900)]

PRIORITY = "kueue.x-k8s.io/priority-class"


@pytest.mark.parametrize("roles", [1, 2], ids=["one role", "a group"])
def test_a_preemption_and_the_new_start_are_in_the_log(kubernetes_engine, kubernetes_make_queue, monkeypatch, roles):
    queue = kubernetes_make_queue(2)
    extra = {"kubeconfig_path": str(kubernetes_engine.kubeconfig), "namespace": queue.namespace}
    options = {"pull": "never", "security": "none", "grace_s": 0, "queue": "team"}
    connection = {"conn_type": "launch_kubernetes", "extra": {**extra, **options}}
    monkeypatch.setenv("AIRFLOW_CONN_KUBE", json.dumps(connection))

    def role(name: str, script: str, places: int = 1) -> Role:
        size = Resource(cpu=0, gpu=0, memMB=places * PLACE_MB)
        return Role(name, kubernetes_engine.image, entrypoint="sh", args=["-c", script], resource=size)

    with a_dag():
        low = LaunchAppOperator(
            task_id=f"t{uuid.uuid4().hex[:10]}",
            app=AppDef("low", [role(f"r{number}", "sleep 25; echo done") for number in range(roles)]),
            launch_conn_id="kube",
            cfg={"labels": {PRIORITY: "launch-low"}},
            poll_interval_s=1,
        )
    scheduler = create_scheduler("tests", **extra)

    def preempt() -> None:
        until(lambda: [row.state for row in scheduler.list()] == [AppState.RUNNING], 60, 0.3)
        until(lambda: all(pod.exit_code is None and pod.has_started for pod in pods(scheduler, roles)), 60, 0.3)
        high = AppDef("high", [role("main", "sleep 3", places=2)])
        labels = {"labels": {PRIORITY: "launch-high"}}
        scheduler.schedule(scheduler.submit_dryrun(high, {**options, **labels}, app_id=f"h{uuid.uuid4().hex[:10]}"))

    with contextlib.closing(scheduler):
        thread = threading.Thread(target=preempt)
        thread.start()
        ran = run_task(low, FakeExecutionApi())
        thread.join()

    assert ran.error is None, ran.error
    changes = [line for line in ran.lines if line.startswith("app ")]
    shown = "\n".join(changes)
    taken = next(number for number, line in enumerate(changes) if "RUNNING -> PENDING" in line)
    assert "eempted" in "".join(changes[: taken + 2]), shown
    assert any("PENDING -> RUNNING" in line for line in changes[taken + 1 :]), shown
    assert "attempts: 2" in changes[-1], shown


def pods(scheduler, count: int):
    from airflow_provider_launch.schedulers.kubernetes.objects import pod_of

    found = [pod_of(item) for item in scheduler.cluster.list("pods", "launch.io/managed=true")[0]]
    assert len(found) == count
    return found
