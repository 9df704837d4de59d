"""Parse and launch cost of functions of a DAG file.

Parse: next to `@task.docker` and `@task.kubernetes`, CPU of this process, in rounds. All files have the same functions,
and each is new, as for each process that parses a DAG file. The order changes and garbage is collected before each
file, so that none pays for the DAGs of another. The peers read the source of a function only in a run; ours includes
the check that it can travel. No peer needs an engine for this.

Launch: on Docker, next to `LaunchAppOperator` with a program of the same Python that ends at once, in processes that
have launched before. The difference is the source, the arguments and the result of the function.
"""

from __future__ import annotations

import gc
import itertools
import os
import runpy
import statistics
import time
from pathlib import Path

import docker_engine
from rows import row
from task_pairs import Cost, median, ratio, span, task

TASKS, ROUNDS_OF_PARSING = 100, 15
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


def parsed(decorator: str) -> float:
    path = written(decorator, ', docker_url="unix://none"' if decorator == "docker" else "")
    gc.collect()
    return milliseconds(path)


PEERS = ("docker", "kubernetes")
SIDES = ("launch_python", *PEERS)
found: dict[str, list[float]] = {side: [] for side in SIDES}
for number in range(ROUNDS_OF_PARSING + 1):
    for side in SIDES if number % 2 else reversed(SIDES):
        cost = parsed(side)
        # The first round imports the operators.
        if number:
            found[side].append(cost)
ours = found["launch_python"]
for name in PEERS:
    note = f"a file of {TASKS} functions; peer: @task.{name}"
    row("parse a task", statistics.median(ours), "ms", peer=statistics.median(found[name]), note=note)
    shares = [a / b for a, b in zip(ours, found[name], strict=True)]
    note = f"{len(shares)} pairs, {min(shares):.2f} to {max(shares):.2f}"
    row(f"parse a task: ours / @task.{name}", statistics.median(shares), "x", limit=1.5, note=note)

docker_engine.use("a Python function on Docker")
docker_engine.use_python()
costs: dict[str, list[Cost]] = {"function": [], "program": []}
for number in range(ROUNDS + 1):
    for side in ("function", "program") if number % 2 else ("program", "function"):
        costs_of_tasks, log = task(side, 1 + WARM, "None")
        log.unlink()
        if number:
            costs[side].append({kind: median(costs_of_tasks[1:], kind) for kind in ("wall", "cpu")})
note = f"ours {span(costs['function'])}; peer: LaunchAppOperator with `python3 -c None`, {span(costs['program'])}"
row("launch a function", median(costs["function"]), peer=median(costs["program"]), note=note)
worth, range_note = ratio(costs["function"], costs["program"])
row("launch a function: with / without its source", worth, "x", limit=1.25, note=range_note)
