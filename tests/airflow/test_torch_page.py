"""The page about PyTorch, as its reader follows it: its script and its DAGs run as printed, with real torch."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from tests.airflow.test_pages import write_blocks
from tests.airflow.versions import HAS_STORE
from tests.support.airflow_home import migrated, run_dags
from tests.support.repeats import SOAK

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.engine("torch"),
    pytest.mark.engine("local"),
    pytest.mark.skipif(not HAS_STORE, reason="the pages are written for the newest Airflow"),
    pytest.mark.skipif(not SOAK, reason="its trainings take minutes; LAUNCH_SOAK=1 runs them"),
]
STEP = "        optimizer.step()\n"
FAULTS = """\
        if (given.lr, rank, epoch, os.environ["LAUNCH_ATTEMPT"]) == (0.3, 1, 4, "0"):
            os.kill(os.getpid(), 9)
        if (given.lr, rank) == (0.02, 1):
            raise ValueError("out of patience")
"""
"""One trial is killed once, and another one fails. Otherwise only the number of processes differs from the page."""


def test_the_page_leads_from_a_script_to_a_search_that_resumes_and_evaluates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dags" / "pytorch"
    write_blocks("docs/pytorch.md", folder)
    for file in folder.glob("*.py"):
        text = file.read_text(encoding="utf-8").replace("/scratch/runs", str(tmp_path / "runs")).replace("2x4", "2x2")
        file.write_text(text.replace(STEP, FAULTS + STEP), encoding="utf-8")

    # As in an activated environment: on the page, `python` is the first one in PATH.
    monkeypatch.setenv("PATH", os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]))
    report = run_dags(tmp_path / "dags", migrated(tmp_path / "home", {}), tmp_path / "log", 1700)

    dags = {dag_id: found for file in report.values() for dag_id, found in file.items()}
    assert {dag_id: found["state"] for dag_id, found in dags.items()} == {
        "train_with_torchrun": "success",
        "train_by_replicas": "success",
        "search": "success",
    }
    returned = dags["search"]["returned"]
    trials = [returned[f"train[{index}]"] for index in (1, 2, 3)]
    assert dags["search"]["tasks"]["train[0]"] == "failed"
    assert "FAILED train/" in (tmp_path / "log").read_text(encoding="utf-8")
    assert [trial["attempts"] for trial in trials] == [1, 2, 1]
    assert [trial["result"]["first"] for trial in trials] == [0, 4, 0]
    assert [trial["result"]["loss"] is None for trial in trials] == [False, False, True]
    assert returned["best[-1]"] == trials[1]["result"]
    assert returned["evaluate[-1]"]["result"] == {"loss": pytest.approx(trials[1]["result"]["loss"])}
    worlds = [
        dags[name]["returned"]["train[-1]"]["result"]["world"] for name in ("train_with_torchrun", "train_by_replicas")
    ]
    assert worlds == [4, 4]
