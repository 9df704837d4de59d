"""Twenty small steps of a pipeline on local processes, next to the same commands of BashOperator.

Both are runs of a real Airflow: scheduler with LocalExecutor, API server, SQLite. A worker of LocalExecutor is forked
from the scheduler and has its imports; a task process is forked from the worker, and its requests are answered by the
API server. Runs of both sides alternate.

The wall time is from the start of a run to its end. The CPU of the workers is the work for tasks: supervisors, task
processes, and what these start, also the processes that detach themselves. The CPU of Airflow is that, the scheduler
and the server that answers tasks.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import statistics
import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from rows import row
from tests.live.airflow import Airflow

STEPS, ROUNDS = 20, 3
RUN_LIMIT_S = 300
HOME = Path(os.environ["BENCH_HOME"])
CLOCK_HZ = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36
WORKERS, TASK_API = "scheduler", "api-execution"
DAGS = """
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG("bash", schedule=None):
    before = None
    for at in range({steps}):
        task = BashOperator(task_id=f"s{{at}}", bash_command="echo " + str(at))
        if before is not None:
            before >> task
        before = task
"""
PIPELINE = """
from airflow_provider_launch.pipelines import dag_from_file

dag_from_file({path!r}, "ours")
"""


class Cost(NamedTuple):
    """Seconds of one run."""

    wall: float
    workers: float
    airflow: float


def written() -> list[Path]:
    """Write the files of both DAGs."""
    pipeline, ours, bash = HOME / "bench.yaml", HOME / "ours_dag.py", HOME / "bash_dag.py"
    step = {"type": "task", "command_type": "shell"}
    steps = {
        f"s{at}": {**step, "command": f"echo {at}", "next": f"s{at + 1}" if at + 1 < STEPS else "success"}
        for at in range(STEPS)
    }
    pipeline.write_text(json.dumps({"dag": {"start_at": "s0", "steps": steps}}), encoding="utf-8")  # JSON is YAML
    ours.write_text(PIPELINE.format(path=str(pipeline)), encoding="utf-8")
    bash.write_text(DAGS.format(steps=STEPS), encoding="utf-8")
    return [ours, bash]


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process and of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / CLOCK_HZ


def cpu_of_session(airflow: Airflow, part: str, *, has_leader: bool = True) -> float:
    """Return the CPU seconds of a part of Airflow; `has_leader`: with its first process."""
    return sum(cpu_of(pid) for pid in airflow.pids(part) if has_leader or pid != os.getsid(pid))


def cpu_of_detached() -> float:
    """Return the CPU seconds of ended processes that detached themselves, which this process reaps."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pid = 0
        if not pid:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            return used.ru_utime + used.ru_stime


def used(airflow: Airflow) -> tuple[float, float]:
    """Return the CPU seconds of the workers, and of all, until now."""
    detached = cpu_of_detached()
    workers = cpu_of_session(airflow, WORKERS, has_leader=False) + detached
    everything = cpu_of_session(airflow, WORKERS) + cpu_of_session(airflow, TASK_API) + detached
    return workers, everything


def cost(airflow: Airflow, dag_id: str) -> Cost:
    """Run a DAG once."""
    workers, everything = used(airflow)
    run_id = uuid.uuid4().hex
    airflow.ask("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, "dag_run_id": run_id}).raise_for_status()
    deadline = time.monotonic() + RUN_LIMIT_S
    while True:
        time.sleep(0.5)
        run = airflow.ask("GET", f"/dags/{dag_id}/dagRuns/{run_id}").raise_for_status().json()
        if run["state"] == "success":
            break
        assert run["state"] in ("queued", "running"), (dag_id, run["state"])
        assert time.monotonic() < deadline, (dag_id, airflow.output(WORKERS))
    started, ended = (datetime.fromisoformat(run[name]) for name in ("start_date", "end_date"))
    # The last task process ends after its state is stored.
    time.sleep(1.5)
    after = used(airflow)
    return Cost((ended - started).total_seconds(), after[0] - workers, after[1] - everything)


# Processes that lose their parent become children of this one, which counts their CPU.
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
home = HOME / "live"
home.mkdir()
# As installed, without the settings of the tests, and no second read of the files while a run is measured.
settings = {
    "AIRFLOW__LAUNCH__ON_FINISH": "delete_succeeded",
    "AIRFLOW__CORE__PARALLELISM": "4",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "5",
}
airflow = Airflow(home, {}, settings=settings, more_dags=written(), has_own_dags=False)
costs: dict[str, list[Cost]] = {"ours": [], "bash": []}
try:
    airflow.begin()
    for part in ("dag-processor", "triggerer"):
        airflow.stop(part)
    for dag_id in costs:
        airflow.ask("PATCH", f"/dags/{dag_id}", {"is_paused": False}).raise_for_status()
    # The first round writes byte code and is dropped.
    for number in range(ROUNDS + 1):
        for dag_id in costs if number % 2 else reversed(costs):
            found = cost(airflow, dag_id)
            if number:
                costs[dag_id].append(found)
finally:
    airflow.end()
for field, name in (("wall", "wall time"), ("workers", "CPU of the workers"), ("airflow", "CPU of Airflow")):
    values = {dag_id: [getattr(found, field) for found in costs[dag_id]] for dag_id in costs}
    ours, peer = (statistics.median(values[dag_id]) for dag_id in ("ours", "bash"))
    pairs = [a / b for a, b in zip(values["ours"], values["bash"], strict=True)]
    row(f"{STEPS} small steps: {name}", ours, peer=peer, note="one run; local processes; peer: BashOperator")
    note = f"{ROUNDS} rounds, {min(pairs):.2f} to {max(pairs):.2f}"
    row(f"{STEPS} small steps: {name}, ours / peer", statistics.median(pairs), "x", limit=1.3, note=note)
