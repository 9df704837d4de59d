"""Pipelines in a real Airflow: branches, maps, handlers, lost workers and clears."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import Live
from tests.live.runs import ENDED, Run, texts_of
from tests.support.apps import until
from tests.support.repeats import SOAK

MODES = ("sync", "deferrable")


def _cases(*engines: str) -> list[Any]:
    """Return each engine in each mode."""
    return [pytest.param(engine, mode, marks=pytest.mark.engine(engine)) for engine in engines for mode in MODES]


# A worker's loss takes Airflow's time, not the engine's; Docker adds nothing to it that pods do not show.
WAYS = _cases("local", "kubernetes", *(["docker"] if SOAK else []))
KEPT = _cases("local", "docker", "kubernetes")


class PipelineRun(Run):
    """A run of a pipeline, whose tasks have a folder to talk to the test."""

    def __init__(self, live: Live, name: str, engine: str, mode: str) -> None:
        dag_id = f"{name}_{engine}_{mode}"
        self.live, self.engine = live, engine
        self.folder = Path(live.airflow.home) / f"talk-{dag_id}-{time.monotonic_ns()}"
        self.folder.mkdir()
        # Programs in containers may be another user.
        self.folder.chmod(0o777)
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

    def attempt(self, task_id: str) -> dict[str, Any]:
        """The record of the last attempt, as a user sees it."""
        found = self._ask("GET", f"{self._path}/taskInstances/{task_id}/xcomEntries/attempt")["value"]
        return json.loads(found) if isinstance(found, str) else found

    def log_of(self, task_id: str) -> list[str]:
        headers = {"accept": "application/json"}
        answer = self._ask("GET", f"{self._path}/taskInstances/{task_id}/logs/1", headers=headers)
        return [text for entry in answer["content"] for text in texts_of(entry)]

    def remove_apps(self) -> None:
        """Remove what the run has left at an engine that others use, too."""
        engine = self.live.engines.get(self.engine)
        for one in self.instances() if engine and self.engine != "local" else ():
            path = f"{self._path}/taskInstances/{one['task_id']}"
            path += f"/{one['map_index']}" if one["map_index"] >= 0 else ""
            # A step pushes its record, and after a failure its app.
            for key in ("attempt", "app"):
                answer = self.airflow.ask("GET", f"{path}/xcomEntries/{key}")
                value = answer.json()["value"] if answer.is_success else {}
                handle = (json.loads(value) if isinstance(value, str) else value).get("handle")
                if handle:
                    engine.vanish(handle.rpartition("/")[2])

    def clear_from(self, task_id: str) -> None:
        body = {"dry_run": False, "dag_run_id": self.run_id, "task_ids": [task_id], "only_failed": False}
        body |= {"reset_dag_runs": True, "include_downstream": True}
        self._ask("POST", f"/dags/{self.dag_id}/clearTaskInstances", body)


@pytest.mark.parametrize(("engine", "mode"), WAYS)
def test_no_step_runs_twice_when_workers_are_lost(live: Live, engine: str, mode: str) -> None:
    """A worker is lost in each type of step: alone, in a branch, a handler, a map, an included file, a conditional."""
    run = PipelineRun(live, "ways", engine, mode)
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
    go_on(*(f"many.each.each[{index}]" for index in range(3)))
    lose("inner", "part.inner")
    go_on("part.inner")
    lose("chosen", "choose.default.chosen")
    (run.folder / "go").touch()
    run.wait_until(lambda: run.state() in ENDED)

    assert run.state() == "success", run.states()
    once = ("alone-", "left-", "mend-", "each-0", "each-1", "each-2", "inner-", "chosen-")
    found = {path.name: path.read_text() for path in run.folder.glob("begun-*")}
    assert found == dict.fromkeys((f"begun-{step}" for step in once), "x\n")
    # A deferred task has no worker that could be lost.
    assert mode == "deferrable" or len(killed) == len(once)
    states = run.states()
    assert states["beside.right.bad"] == "failed"
    assert states["many.each.check[1]"] == "failed"
    assert {states[f"many.each.other[{index}]"] for index in (0, 2)} == {"skipped"}
    assert states["many.each.other[1]"] == "success"
    run.remove_apps()


@pytest.mark.parametrize(("engine", "mode"), KEPT)
def test_succeeded_steps_stay_when_a_failed_step_is_cleared(live: Live, engine: str, mode: str) -> None:
    run = PipelineRun(live, "kept", engine, mode)
    run.wait_until(lambda: run.state() in ENDED)
    assert run.states() == {"create": "success", "read": "failed", "success": "upstream_failed"}

    (run.folder / "mended").touch()
    run.clear_from("read")
    until(lambda: run.state() not in ENDED, 60, 0.5)
    run.wait_until(lambda: run.state() in ENDED)

    assert run.states() == {"create": "success", "read": "success", "success": "success"}
    assert (run.folder / "created").read_text() == "x\n"
    code = {one["type"]: one for one in run.attempt("create")["code"]}
    assert code["dag"]["message"] == "bundle dags-folder"
    assert engine == "local" or (code["image"]["dependable"], "sha256:" in code["image"]["identifier"]) == (True, True)
    last_line = next(text for text in reversed(run.log_of("create")) if "on " in text and "SUCCEEDED; code:" in text)
    assert code["app"]["identifier"][:19] in last_line
    run.remove_apps()


@pytest.mark.parametrize(("engine", "mode"), KEPT)
def test_two_runs_at_once_have_their_own_values_and_files(live: Live, engine: str, mode: str) -> None:
    """Each run has two elements at once, with two attempts; the files of the first attempt have other names."""
    runs = [PipelineRun(live, "twice", engine, mode) for _ in range(2)]
    for run in runs:
        run.wait_until(lambda run=run: len([*run.folder.glob("tried-*")]) == 2)
    for run in runs:
        (run.folder / "go").touch()

    for run in runs:
        run.wait_until(lambda run=run: run.state() in ENDED)

    for run in runs:
        expected = [f"{run.folder.name}-{x}" for x in (1, 2)]
        assert run.state() == "success", run.states()
        found = run.attempt("all")
        assert (found["parameters"]["y"], found["returned"]["lines"].split()) == (expected, expected)
        run.remove_apps()


@pytest.mark.parametrize("mode", MODES)
def test_no_more_elements_run_at_a_time_than_the_limit(live: Live, mode: str) -> None:
    """The scheduler keeps it, also while tasks are deferred."""
    run = PipelineRun(live, "limited", "local", mode)
    run.wait_until(lambda: run.state() in ENDED)

    assert run.state() == "success", run.states()
    seen = [int(path.read_text()) for path in run.folder.glob("seen-*")]
    assert (len(seen), max(seen)) == (6, 2)
