"""Twenty small steps of a pipeline on local processes, next to the same commands of BashOperator.

Each task runs in a new process that has Airflow's task runner, as the worker of LocalExecutor has: it parses its DAG
file and runs the task. Counted are the wall time, and the CPU of that process and of its children.
The tasks of a round are one run: each finds the XComs of the tasks before it, and the Variables. Each round is a run of
its own, because a second run of the same id would adopt the apps of the first and start none.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import statistics
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
from airflow.executors import local_executor  # noqa: F401 - the worker has it
from airflow.executors.workloads.base import BundleInfo
from airflow.executors.workloads.task import TaskInstanceDTO
from airflow.sdk.execution_time.supervisor import supervise_task
from rows import row
from tests.airflow.support import FakeExecutionApi

STEPS, ROUNDS = 20, 2
HOME = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
FILES = {
    "ours": """
from airflow_provider_launch.pipelines import dag_from_file
dag = dag_from_file({pipeline!r})
""",
    "bash": """
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
with DAG("bench", schedule=None) as dag:
    before = None
    for at in range({steps}):
        task = BashOperator(task_id=f"s{{at}}", bash_command="echo " + str(at))
        if before is not None:
            before >> task
        before = task
""",
}


class RunApi(FakeExecutionApi):
    """Keeps XComs and Variables in a file, because each task runs in its own process."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.variables: dict[str, Any] = {}
        if path.exists():
            self.xcoms, self.variables = pickle.loads(path.read_bytes())

    def save(self) -> None:
        self.path.write_bytes(pickle.dumps((self.xcoms, self.variables)))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = super()._answer(request)
        match request.method, *request.url.path.strip("/").split("/"):
            case "PUT", "variables", key:
                self.variables[key] = json.loads(request.content)["val"]
            case "GET", "variables", key if key in self.variables:
                return httpx.Response(200, json={"key": key, "value": self.variables[key]})
        return answer


def written() -> dict[str, Path]:
    pipeline = HOME / "bench.yaml"
    step = {"type": "task", "command_type": "shell"}
    steps = {
        f"s{at}": {**step, "command": f"echo {at}", "next": f"s{at + 1}" if at + 1 < STEPS else "success"}
        for at in range(STEPS)
    }
    pipeline.write_text(json.dumps({"dag": {"start_at": "s0", "steps": steps}}), encoding="utf-8")  # JSON is YAML
    found = {}
    for side, text in FILES.items():
        found[side] = HOME / f"{side}_dag.py"
        found[side].write_text(text.format(pipeline=str(pipeline), steps=STEPS), encoding="utf-8")
    return found


def run(path: Path, task_id: str, run_id: str) -> None:
    """Run the task as a worker does, in a process of the worker."""
    where = {"dag_id": "bench", "run_id": run_id, "task_id": task_id, "map_index": -1, "queue": "default"}
    numbers = {"try_number": 1, "pool_slots": 1, "priority_weight": 1}
    # The workload of an executor, which the supervisor takes for its own class of the same fields.
    instance: Any = TaskInstanceDTO.model_validate(
        {"id": uuid.uuid4(), "dag_version_id": uuid.uuid4(), **where, **numbers}
    )
    api = RunApi(path.with_suffix(f".{run_id}"))
    states: list[str] = []
    api.on_call = lambda _, parts, body: states.append(body["state"]) if parts[-1] == "state" else None
    supervise_task(
        ti=instance, bundle_info=BundleInfo(name="dags-folder", version=None), dag_rel_path=path.name, token="",
        client=api.client(), log_path=f"{task_id}.log",
    )  # fmt: skip
    if states != ["success"]:
        raise SystemExit(f"{path.name}: {task_id} ended as {states}")
    api.save()


def cost(path: Path, task_id: str, run_id: str) -> tuple[float, float]:
    """Return wall and CPU seconds of one task in its own process."""
    sys.stdout.flush()
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            with Path(os.devnull).open("w") as sink:
                os.dup2(sink.fileno(), 1)
                os.dup2(sink.fileno(), 2)
            run(path, task_id, run_id)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert status == 0, (path, task_id, status)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


assert not any(name.startswith("airflow_provider_launch.operators") for name in sys.modules)
paths = written()
costs: dict[str, list[tuple[float, float]]] = {side: [] for side in paths}
# The first round writes byte code and is dropped.
for number in range(ROUNDS + 1):
    total = {side: [0.0, 0.0] for side in paths}
    for at in range(STEPS):
        for side in paths if at % 2 else reversed(paths):
            for kind, seconds in enumerate(cost(paths[side], f"s{at}", f"run{number}")):
                total[side][kind] += seconds
    if number:
        for side, (wall, cpu) in total.items():
            costs[side].append((wall, cpu))
for kind, name in enumerate(("wall time", "CPU")):
    ours, peer = (statistics.median(found[kind] for found in costs[side]) for side in ("ours", "bash"))
    pairs = [a[kind] / b[kind] for a, b in zip(costs["ours"], costs["bash"], strict=True)]
    row(f"{STEPS} small steps: {name}", ours, peer=peer, note="local processes; peer: BashOperator")
    note = f"{ROUNDS} rounds, {min(pairs):.2f} to {max(pairs):.2f}"
    row(f"{STEPS} small steps: {name}, ours / peer", statistics.median(pairs), "x", limit=1.3, note=note)
