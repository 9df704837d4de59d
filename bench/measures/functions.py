"""Costs of `@task.launch_python`: parsing, next to `@task.docker`; a run on Docker, next to our plain operator."""

from __future__ import annotations

import contextlib
import os
import runpy
import statistics
import time
from pathlib import Path

import docker_engine
from rows import row
from task_pairs import Cost, median, ratio, span, task

TASKS, PAIRS, RUNS = 100, 9, 7
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


def written(decorator: str, more: str = "") -> Path:
    path = HOME / f"{decorator}.py"
    texts = [TASK.format(decorator=decorator, more=more, at=at) for at in range(TASKS)]
    path.write_text(HEAD + "".join(texts), encoding="utf-8")
    return path


def milliseconds(path: Path) -> float:
    started = time.process_time()
    runpy.run_path(str(path))
    return 1000 * (time.process_time() - started) / TASKS


files = [written("launch_python"), written("docker", ', docker_url="unix://none"')]
# The first pair imports what both need.
pairs = [[milliseconds(path) for path in files] for _ in range(PAIRS + 1)][1:]
ours, peer = (statistics.median(column) for column in zip(*pairs, strict=True))
share = statistics.median(a / b for a, b in pairs)
row("parse a task", ours, "ms", peer=peer, note=f"a file of {TASKS} functions; peer: @task.docker")
row("parse a task: ours / peer", share, "x", limit=1.5, note=f"{PAIRS} pairs")

docker_engine.use("a function on Docker")
with contextlib.suppress(ImportError):
    from docker import DockerClient
    from tests.engines.docker import images

    with contextlib.closing(DockerClient(docker_engine.HOST)) as client:
        os.environ["BENCH_IMAGE"] = images.python(client)
costs: dict[str, list[Cost]] = {"function": [], "program": []}
for number in range(RUNS + 1):
    for side in ("function", "program") if number % 2 else ("program", "function"):
        found, log = task(side, 3, "None")
        log.unlink()
        if number:
            costs[side].append({kind: median(found[1:], kind) for kind in ("wall", "cpu")})
note = f"ours {span(costs['function'])}, LaunchAppOperator with `python3 -c` {span(costs['program'])}"
row("a function that returns None, process in use", median(costs["function"]), peer=median(costs["program"]), note=note)
worth, text = ratio(costs["function"], costs["program"])
row("a function: with / without its source", worth, "x", limit=1.25, note=text)
