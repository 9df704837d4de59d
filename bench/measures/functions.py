"""Parse cost of functions in a DAG file, next to `@task.docker`: CPU of this process, in pairs.

Each file is new, as for each process that parses a DAG file. `docker_true` measures the launch of a function.
"""

from __future__ import annotations

import itertools
import os
import runpy
import statistics
import time
from pathlib import Path

from rows import row

TASKS, PAIRS = 100, 15
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
