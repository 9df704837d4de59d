"""Guarantee 2: a worker that is killed for good at any step of the launch never causes a second app.

A process of its own, SIGKILL, and apps of the real engines, which say themselves how often something was started.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import AppDef
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.states import AppState
from tests.airflow.guarantees import CONN, WAIT, LastingApi, Place, WorkerHost, launch, on_places
from tests.airflow.support import FakeExecutionApi, Ran, run_task, run_to_end, sh
from tests.airflow.support import launch as launch_locally
from tests.support.repeats import often

RUNS = {"local": 32, "docker": 26, "kubernetes": 30, "slurm": 6, "aws_batch": 12}
"""For each mode; 212 together, by `make soak`. A busy engine is asked more often, which makes more steps."""
KINDS = (
    "before the intent is stored",
    "before the first act",
    "between the acts",
    "after the last act",
    "after the handle is stored",
)
"""Of steps; after each another thing is on record. Of each kind one step is tried by `make test`."""
MODES = ("sync", "deferrable")
REPLICAS = 2


class Killed:
    """One task whose first try is killed, and its next try."""

    def __init__(self, at: Place, host: WorkerHost, tmp: Path, mode: str, script: str = "echo hello") -> None:
        self._place, self._host = at, host
        self._tmp = tmp / at.mark
        self._tmp.mkdir()
        self._role = at.role(script, num_replicas=REPLICAS)
        self._deferrable = mode == "deferrable"

    def first_try(self, *, kill_at: int | None = None, kill_at_line: str = "") -> tuple[int, list[str]]:
        """Return how the worker ended, and the steps that it took."""
        order: dict[str, Any] = {
            "app": app_to_dict(AppDef("app", [self._role])),
            "arguments": {"task_id": self._place.mark, "deferrable": self._deferrable},
            "env": {f"AIRFLOW_CONN_{CONN.upper()}": json.dumps(self._place.connection)},
            "backend": self._place.connection["conn_type"].removeprefix("launch_"),
            "root": str(getattr(self._place, "root", "/nowhere")),
            "store": str(self._tmp / "store"),
            "steps": str(self._tmp / "steps"),
            "kill_at": kill_at,
            "kill_at_line": kill_at_line,
        }
        code = self._host.run(order)
        return code, (self._tmp / "steps").read_text().splitlines()

    def next_try(self, limit_s: float = 40) -> Ran:
        limit = timedelta(seconds=limit_s)
        task = launch(self._place, self._role, deferrable=self._deferrable, execution_timeout=limit)
        return run_to_end(task, LastingApi(self._tmp / "store"), try_number=2)[0]


@pytest.fixture(scope="module")
def worker_host(checkout: Path) -> Iterator[WorkerHost]:
    host = WorkerHost(checkout)
    yield host
    host.close()


@pytest.fixture(scope="module")
def counted() -> dict[str, list[str]]:
    """The steps of a launch on an engine, once they are known."""
    return {}


# Where a launch takes seconds, steps are tried from the intent on, and in one mode or the other: up to the
# deferral both are the same.
CASES: list[tuple[str, str, str | int]] = often(
    [(engine, MODES[number % 2], kind) for engine in RUNS for number, kind in enumerate(KINDS)],
    [
        (engine, mode, run if engine == "local" else 2 * run + MODES.index(mode))
        for engine, runs in RUNS.items()
        for mode in MODES
        for run in range(runs)
    ],
)


def step_of(kind: str, steps: list[str]) -> int:
    """Return the number of a step of the kind, counted from 1."""
    before, again, *_ = (n for n, step in enumerate(steps, 1) if step == "before PUT store ti launch")
    intent, handle, *_ = (n for n, step in enumerate(steps, 1) if step == "after PUT store ti launch")
    first, last = intent + 1, again - 1
    return (before, first, (first + last) // 2, last, handle)[KINDS.index(kind)]


@pytest.mark.parametrize(
    ("place", "mode", "at"),
    [
        pytest.param(*case, id="-".join(map(str, case)).replace(" ", "-"), marks=pytest.mark.engine(case[0]))
        for case in CASES
    ],
    indirect=["place"],
)
def test_a_worker_killed_at_any_step_of_the_launch_causes_one_app(
    place: Place,
    mode: str,
    at: str | int,
    worker_host: WorkerHost,
    counted: dict[str, list[str]],
    tmp_path: Path,
) -> None:
    """Guarantee 2, before and after each request to Airflow and each act on the engine."""
    _check_one_app(place, mode, at, worker_host, counted, tmp_path)


@pytest.mark.engine("aws_batch")
@pytest.mark.parametrize("place", ["aws_batch"], indirect=True)
@pytest.mark.parametrize("at", KINDS)
def test_a_definition_of_a_user_does_not_weaken_the_claim(
    place: Any,
    at: str,
    worker_host: WorkerHost,
    counted: dict[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guarantee 2, for jobs whose defaults are those of an existing job definition."""
    place.use_definition()
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps(place.connection))
    _check_one_app(place, MODES[KINDS.index(at) % 2], at, worker_host, counted, tmp_path)


def _check_one_app(
    place: Place, mode: str, at: str | int, worker_host: WorkerHost, counted: dict[str, list[str]], tmp_path: Path
) -> None:
    engine = place.connection["conn_type"].removeprefix("launch_")
    kind = " ".join([engine, *(place.connection["extra"].keys() & {"job_definition"})])
    if kind not in counted:
        code, steps = Killed(place.another(), worker_host, tmp_path, mode).first_try()
        assert code == 0
        assert steps[-1].endswith("handle"), steps
        counted[kind] = steps
    steps = counted[kind]
    first = 0 if engine == "local" else steps.index("before PUT store ti launch")
    tried = range(first + 1, len(steps) + 1)
    assert len(tried) <= RUNS[engine] * (1 if engine == "local" else 2), "some steps are never tried; raise RUNS"
    killed = Killed(place, worker_host, tmp_path, mode)

    code, steps = killed.first_try(kill_at=step_of(at, steps) if isinstance(at, str) else tried[at % len(tried)])
    if code == 0:  # a launch takes a step less now and then, and this was to be the last one
        place = place.another()
        killed = Killed(place, worker_host, tmp_path, mode)
        code, steps = killed.first_try(kill_at=len(steps))
    assert code == -signal.SIGKILL
    assert len(place.apps()) <= 1
    second = killed.next_try(40)

    assert second.state == "success", (steps[-1], second.error, second.lines)
    assert place.starts() == [str(k) for k in range(REPLICAS)], steps[-1]
    assert len(place.apps()) == 1, steps[-1]
    for k in range(REPLICAS):
        assert sum(line == f"[main/{k}] hello" for line in second.lines) == 1, (steps[-1], second.lines)


@on_places
def test_a_worker_killed_while_it_follows_causes_one_app(place: Place, worker_host: WorkerHost, tmp_path: Path) -> None:
    """Guarantee 2, past the launch."""
    killed = Killed(place, worker_host, tmp_path, "sync", WAIT)

    code, _ = killed.first_try(kill_at_line="[main/0] begun")
    assert code == -signal.SIGKILL
    place.go()
    second = killed.next_try()

    assert second.state == "success", second.lines
    assert second.logged("continuing with app")
    assert place.starts() == [str(k) for k in range(REPLICAS)]
    assert len(place.apps()) == 1


def test_a_cleared_task_cancels_the_old_app_and_starts_a_new_one(tmp_path: Path) -> None:
    """On real processes: the old app has ended before the new one starts."""
    record = tmp_path / "ran"
    api = FakeExecutionApi()
    script = f"echo $LAUNCH_APP_ID >> {record}; test $(wc -l < {record}) = 2 || sleep 60"
    run_task(launch_locally(sh(script), wait=False), api)
    deadline = time.monotonic() + 20
    while not record.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    api.clear()
    second = run_task(launch_locally(sh(script)), api, try_number=2)

    assert second.state == "success", second.lines
    old, new = record.read_text().split()
    states = {row.app_id: row.state for row in create_scheduler("s").list()}
    assert states == {old: AppState.CANCELLED, new: AppState.SUCCEEDED}
