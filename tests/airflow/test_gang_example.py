"""The example `launch_kubernetes_gang`: two roles that a queue admits as one."""

from __future__ import annotations

import json
import runpy
import uuid
from pathlib import Path

import pytest

from tests.airflow.support import FakeExecutionApi, run_task

pytestmark = [pytest.mark.engine("kubernetes"), pytest.mark.engine("kueue"), pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).resolve().parents[2] / "example_dags/launch_kubernetes_gang.py"


def test_a_gang_waits_for_its_quota_and_then_runs_as_one(kubernetes_engine, kubernetes_make_queue, monkeypatch) -> None:
    queue = kubernetes_make_queue(3)
    extra = {"kubeconfig_path": str(kubernetes_engine.kubeconfig), "namespace": queue.namespace, "pull": "never"}
    connection = {"conn_type": "launch_kubernetes", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAUNCH_KUBERNETES_DEFAULT", json.dumps(connection))
    example = runpy.run_path(str(EXAMPLE))
    assert kubernetes_engine.python_image() == example["IMAGE"]
    task = example["train"]
    task.task_id = f"t{uuid.uuid4().hex[:10]}"
    api = FakeExecutionApi()

    ran = run_task(task, api)

    assert ran.error is None, ran.error
    outcome = api.xcoms[task.task_id, "return_value"]
    assert outcome["state"] == "SUCCEEDED"
    assert outcome["result"] == {"workers": ["worker 0", "worker 1"]}
    (name,) = queue.workloads()
    assert name in outcome["handle"]
