"""Parse cost of a pipeline file, compared with the same tasks in Python: CPU of this process, in pairs."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from airflow.sdk import DAG, task_group
from rows import row

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.pipelines import dag_from_file
from airflow_provider_launch.specs import AppDef, Role

STEPS, ELEMENTS, PAIRS = 500, 1000, 7
TASK = {"type": "task", "command_type": "shell", "command": "true"}
HOME = Path(os.environ["BENCH_HOME"])


def operator(task_id: str) -> LaunchAppOperator:
    return LaunchAppOperator(
        task_id=task_id, app=AppDef("app", [Role("task", "", entrypoint="sh", args=["-c", "true"])])
    )


def chain_in_python() -> DAG:
    with DAG("chain", schedule=None) as dag:
        before = None
        for at in range(STEPS):
            task = operator(f"s{at}")
            if before is not None:
                before >> task
            before = task
    return dag


def map_in_python() -> DAG:
    with DAG("map", schedule=None) as dag:

        @task_group
        def each(value: object) -> None:  # noqa: ARG001 - Airflow maps over it
            operator("a")

        each.expand(value=list(range(ELEMENTS)))
    return dag


def written(name: str, content: dict[str, object]) -> Path:
    path = HOME / f"{name}.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
    return path


def seconds(make: Callable[[], DAG]) -> float:
    started = time.process_time()
    make()
    return time.process_time() - started


def compare(what: str, path: Path, in_python: Callable[[], DAG]) -> None:
    # The first pair imports what both need.
    pairs = [(seconds(lambda: dag_from_file(path)), seconds(in_python)) for _ in range(PAIRS + 1)][1:]
    ours, peer = (statistics.median(column) for column in zip(*pairs, strict=True))
    row(what, ours - peer, limit=0.5, note=f"file {ours:.2f} s, Python {peer:.2f} s")


steps = {f"s{at}": {**TASK, "next": f"s{at + 1}" if at + 1 < STEPS else "success"} for at in range(STEPS)}
chain = written("chain", {"dag": {"start_at": "s0", "steps": steps}})
compare(f"parse a file of {STEPS} steps, above the same tasks in Python", chain, chain_in_python)

branch = {"start_at": "a", "steps": {"a": {**TASK, "next": "success"}}}
mapped = {"type": "map", "iterate_on": "xs", "iterate_as": "x", "next": "success", "branch": branch}
many = {"parameters": {"xs": list(range(ELEMENTS))}, "dag": {"start_at": "m", "steps": {"m": mapped}}}
compare(f"parse a map of {ELEMENTS} elements, above one in Python", written("map", many), map_in_python)
