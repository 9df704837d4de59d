"""Parse and launch cost of functions of a DAG file.

Parse: next to `@task.docker`, CPU of this process, in pairs. Each file is new, as for each process that parses a DAG
file. Launch: on Docker, next to `LaunchAppOperator` with the same program, in processes that have launched before.
"""

from __future__ import annotations

import itertools
import os
import runpy
import statistics
import time
from pathlib import Path

import docker_engine
from rows import row
from task_pairs import Cost, median, ratio, span, task

TASKS, PAIRS = 100, 15
ROUNDS, WARM = 7, 3
HOME = Path(os.environ["BENCH_HOME"])
HEAD = """
import json
from airflow.sdk import DAG, task
LIMIT = 3
def helper(x):
    return x * LIMIT
with DAG("bench", schedule=None):
"""
TASK = """
    @task.{decorator}(image="python:3.12"{more})
    def f{at}(x: int, words: list[str]) -> list:
        found = []
        for word in words:
            # one of many
            found.append(json.dumps([word, helper(x), LIMIT]))
        print("found", len(found))
        return found
    f{at}({at}, ["a", "b"])
"""


NUMBERS = itertools.count()


def written(decorator: str, more: str = "") -> Path:
    path = HOME / f"{decorator}_{next(NUMBERS)}.py"
    texts = [TASK.format(decorator=decorator, more=more, at=at) for at in range(TASKS)]
    path.write_text(HEAD + "".join(texts), encoding="utf-8")
    return path


def milliseconds(path: Path) -> float:
    started = time.process_time()
    runpy.run_path(str(path))
    return 1000 * (time.process_time() - started) / TASKS


def pair() -> tuple[float, float]:
    ours, peer = written("launch_python"), written("docker", ', docker_url="unix://none"')
    return milliseconds(ours), milliseconds(peer)


# The first pair imports what both need.
pairs = [pair() for _ in range(PAIRS + 1)][1:]
ours, peer = (statistics.median(column) for column in zip(*pairs, strict=True))
share = statistics.median(a / b for a, b in pairs)
row("parse a task", ours, "ms", peer=peer, note=f"a file of {TASKS} functions; peer: @task.docker")
row("parse a task: ours / peer", share, "x", limit=1.5, note=f"{PAIRS} pairs")

docker_engine.use("a Python function on Docker")
docker_engine.use_python()
costs: dict[str, list[Cost]] = {"function": [], "program": []}
for number in range(ROUNDS + 1):
    for side in ("function", "program") if number % 2 else ("program", "function"):
        found, log = task(side, 1 + WARM, "None")
        log.unlink()
        if number:
            costs[side].append({kind: median(found[1:], kind) for kind in ("wall", "cpu")})
note = f"ours {span(costs['function'])}; peer: LaunchAppOperator with `python3 -c None`, {span(costs['program'])}"
row("launch a function", median(costs["function"]), peer=median(costs["program"]), note=note)
worth, range_note = ratio(costs["function"], costs["program"])
row("launch a function: with / without its source", worth, "x", limit=1.25, note=range_note)
