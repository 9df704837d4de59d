"""The example `launch_torch_search`: one process for each replica with real torch, a service, and checkpoints."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.airflow.support import FakeExecutionApi, run_task

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"


@pytest.mark.timeout(900)
@pytest.mark.engine("torch")
@pytest.mark.engine("local")
def test_a_search_trains_resumes_and_survives_a_trial_that_diverges(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    example = runpy.run_path(str(EXAMPLES / "launch_torch_search.py"))
    trials = example["trials"]
    outcomes, logs = [], []
    for index in range(3):
        api = FakeExecutionApi()
        ran = run_task(trials, api, map_index=index)
        assert ran.error is None, ran.error
        outcomes.append(api.xcoms["train", "return_value", index])
        logs.append("\n".join(ran.lines))

    assert [outcome["attempts"] for outcome in outcomes] == [2, 1, 1]
    assert [outcome["result"]["world"] for outcome in outcomes] == [2, 2, 2]
    assert [outcome["result"]["resumed_at"] for outcome in outcomes] == [3, 0, 0]
    assert outcomes[2]["result"]["loss"] is None
    assert example["best"].function(outcomes) in {0.05, 0.2}
    assert "rank 0 of 2 continues at epoch 3, attempt 1" in logs[0]
    assert "(trainer: 2 of 2 succeeded; stopped server)" in logs[1]
    assert "[trainer/1]" not in logs[1]
    base = tmp_path / "launch_torch_search"
    assert sorted(path.parent.name for path in base.rglob("last.pt")) == ["0", "1", "2"]
