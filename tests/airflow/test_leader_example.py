"""The example `launch_kubernetes_leader`: the app ends with its head, though its workers never would."""

from __future__ import annotations

import json
import runpy
import uuid
from pathlib import Path

import pytest

from tests.airflow.support import FakeExecutionApi, run_task

pytestmark = pytest.mark.engine("kubernetes")

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"


def test_the_leader_ends_the_app(kubernetes_engine, kubernetes_namespace, monkeypatch) -> None:
    extra = {"kubeconfig_path": str(kubernetes_engine.kubeconfig), "namespace": kubernetes_namespace, "pull": "never"}
    connection = {"conn_type": "launch_kubernetes", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAUNCH_KUBERNETES_DEFAULT", json.dumps(connection))
    example = runpy.run_path(str(EXAMPLES / "launch_kubernetes_leader.py"))
    assert kubernetes_engine.python_image() == example["IMAGE"]
    task = example["integrate"]
    task.task_id = f"t{uuid.uuid4().hex[:10]}"
    api = FakeExecutionApi()

    ran = run_task(task, api)

    assert ran.error is None, ran.error
    outcome = api.xcoms[task.task_id, "return_value"]
    assert outcome["state"] == "SUCCEEDED"
    assert outcome["roles"]["head"] == [0]
    # On a busy cluster the others have processed all pieces before the last worker starts.
    assert 1 <= outcome["result"]["workers"] <= 3
    assert abs(example["compare"].function(outcome) - 3.141592653) < 1e-6
    assert any("all 40 pieces are back" in line for line in ran.lines)
