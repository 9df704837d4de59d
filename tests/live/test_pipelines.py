"""Pipelines in a real Airflow: branches, maps, handlers, lost workers and clears."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import Live
from tests.live.runs import ENDED, Run
from tests.support.local import until

MODES = ("sync", "deferrable")


class PipelineRun(Run):
    """A run of a pipeline, whose tasks have a folder to talk to the test."""

    def __init__(self, live: Live, dag_id: str) -> None:
        self.folder = Path(live.airflow.home) / f"talk-{dag_id}-{time.monotonic_ns()}"
        self.folder.mkdir()
        super().__init__(live.airflow, dag_id, folder=str(self.folder))

    def instances(self) -> list[dict[str, Any]]:
        return self._ask("GET", f"{self._path}/taskInstances", params={"limit": 200})["task_instances"]

    def states(self) -> dict[str, str]:
        """The state of each task instance, by its id and map index."""
        found = {}
        for one in self.instances():
            index = one["map_index"]
            found[one["task_id"] if index < 0 else f"{one['task_id']}[{index}]"] = one["state"]
        return found

    def state(self) -> str:
        return self._ask("GET", self._path)["state"]

    def wait_until(self, condition: Callable[[], object], timeout_s: float = 400) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            has_time = time.monotonic() < deadline and self.state() not in ENDED
            assert has_time or condition(), f"{self.dag_id} {self.state()}: {self.states()}"
            time.sleep(1)

    def clear_from(self, task_id: str) -> None:
        body = {"dry_run": False, "dag_run_id": self.run_id, "task_ids": [task_id], "only_failed": False}
        body |= {"reset_dag_runs": True, "include_downstream": True}
        self._ask("POST", f"/dags/{self.dag_id}/clearTaskInstances", body)


@pytest.mark.parametrize("mode", MODES)
def test_no_step_runs_twice_when_workers_are_lost(live: Live, mode: str) -> None:
    """A worker is lost in a plain task, in both kinds of branch, in a handler and in each element of a map."""
    run = PipelineRun(live, f"ways_{mode}")
    killed: set[str] = set()

    def lose(step: str, task_id: str, index: int = -1) -> None:
        name = f"begun-{step}-{index if index >= 0 else ''}"
        run.wait_until((run.folder / name).exists)
        (instance,) = [one for one in run.instances() if one["task_id"] == task_id and one["map_index"] == index]
        # A task that is deferred, or just becomes that, has no worker.
        with contextlib.suppress(AssertionError, ProcessLookupError):
            live.airflow.lose_worker(instance["id"])
            killed.add(name)

    def go_on(*ended: str) -> None:
        (run.folder / "go").touch()
        run.wait_until(lambda: all(run.states().get(task) in ENDED for task in ended))
        (run.folder / "go").unlink()

    lose("alone", "alone")
    go_on("alone")
    lose("left", "beside.left.left")
    lose("mend", "beside.right.mend")
    go_on("beside.left.left", "beside.right.mend")
    for index in range(3):
        lose("each", "many.each.each", index)
    (run.folder / "go").touch()
    run.wait_until(lambda: run.state() in ENDED)

    assert run.state() == "success", run.states()
    assert {path.name: path.read_text() for path in run.folder.glob("begun-*")} == dict.fromkeys(
        ("begun-alone-", "begun-left-", "begun-mend-", "begun-each-0", "begun-each-1", "begun-each-2"), "x\n"
    )
    # A deferred task has no worker that could be lost.
    assert killed or mode == "deferrable"
    states = run.states()
    assert states["beside.right.bad"] == "failed"
    assert states["many.each.check[1]"] == "failed"
    assert {states[f"many.each.other[{index}]"] for index in (0, 2)} == {"skipped"}
    assert states["many.each.other[1]"] == "success"


@pytest.mark.parametrize("mode", MODES)
def test_what_has_succeeded_stays_when_a_failed_step_is_cleared(live: Live, mode: str) -> None:
    run = PipelineRun(live, f"kept_{mode}")
    run.wait_until(lambda: run.state() in ENDED)
    assert run.states() == {"create": "success", "read": "failed", "success": "upstream_failed"}

    (run.folder / "mended").touch()
    run.clear_from("read")
    until(lambda: run.state() not in ENDED, 60, 0.5)
    run.wait_until(lambda: run.state() in ENDED)

    assert run.states() == {"create": "success", "read": "success", "success": "success"}
    assert (run.folder / "created").read_text() == "x\n"
