"""The examples `launch_torch_accelerate` and `launch_torch_server`, with real torch, through the real task runner."""

from __future__ import annotations

import importlib.util
import runpy
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.support import FakeExecutionApi, run_task

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"


def trained(name: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return the names of the example, the outcome of its task `train`, and the log."""
    example = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    task = example["train"]
    task.task_id = f"t{uuid.uuid4().hex[:10]}"
    api = FakeExecutionApi()
    ran = run_task(task, api)
    assert ran.error is None, ran.error
    return example, api.xcoms[task.task_id, "return_value"], "\n".join(ran.lines)


@pytest.mark.timeout(600)
@pytest.mark.engine("torch")
@pytest.mark.engine("local")
@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate is missing; make torch installs it"
)
def test_accelerate_needs_no_configuration():
    """Without the variables each replica would be a training of its own, and the task would succeed."""
    example, outcome, log = trained("launch_torch_accelerate")

    assert (outcome["result"]["world"], outcome["result"]["steps"]) == (2, 8)
    assert example["report"].function(outcome) < 5
    assert "epoch 7: loss" in log
    assert "[trainer/1]" not in log


@pytest.mark.timeout(600)
@pytest.mark.engine("torch")
@pytest.mark.engine("local")
def test_a_parameter_server_is_stopped_when_its_trainers_are_done():
    """It never ends by itself, so the app would run until its time limit."""
    example, outcome, log = trained("launch_torch_server")

    assert outcome["state"] == "SUCCEEDED"
    assert example["report"].function(outcome) < 1
    assert "parameter server at" in log
    assert "trainer: 2 of 2 succeeded; stopped server" in log
    assert outcome["roles"]["trainer"] == [0, 0]


@pytest.mark.parametrize("name", ["launch_torch_accelerate", "launch_torch_server"])
def test_the_examples_are_parsed_without_torch(name):
    """A scheduler that parses DAG files has no torch."""
    example = runpy.run_path(str(EXAMPLES / f"{name}.py"))

    assert example["train"].app.roles[0].torch_env
