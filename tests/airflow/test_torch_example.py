"""The example `launch_torch_ddp`: real torchrun on real processes, through the real task runner."""

from __future__ import annotations

import runpy
import uuid
from pathlib import Path

import pytest

from tests.airflow.support import FakeExecutionApi, run_task

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"


def test_the_example_is_checked_without_torch() -> None:
    """A scheduler that parses DAG files has no torch."""
    task = runpy.run_path(str(EXAMPLES / "launch_torch_ddp.py"))["train"]

    assert task.component == "dist.ddp"


@pytest.mark.timeout(600)
@pytest.mark.engine("torch")
@pytest.mark.engine("local")
def test_training_continues_after_a_process_has_failed(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    example = runpy.run_path(str(EXAMPLES / "launch_torch_ddp.py"))
    task = example["train"]
    task.task_id = f"t{uuid.uuid4().hex[:10]}"
    api = FakeExecutionApi()

    ran = run_task(task, api)

    outcome = api.xcoms[task.task_id, "return_value"] if ran.error is None else None
    assert ran.error is None, ran.error
    assert outcome["attempts"] == 2
    assert outcome["result"]["world"] == 4
    assert outcome["result"]["resumed_at"] == 4
    assert example["report"].function(outcome) < 1
    told = "\n".join(ran.lines)
    assert "rank 3 fails on purpose in epoch 4" in told
    assert "going on at epoch 4, attempt 1" in told
    assert (tmp_path / "launch_torch_ddp" / "test_run" / "last.pt").exists()
