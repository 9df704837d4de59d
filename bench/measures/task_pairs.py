"""Runs the same script as our task, as a task of a peer and by `docker run`, in turn."""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import docker_engine

ONE_TASK = Path(__file__).with_name("one_task.py")
Cost = dict[str, float]


def task(side: str, rounds: int, script: str, python: str = sys.executable) -> tuple[list[Cost], Path]:
    """Run it as tasks of one new process; return their costs and the log of all."""
    command = [python, str(ONE_TASK), side, str(rounds), script]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    costs = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("COST ")]
    assert all(cost["state"] == "success" for cost in costs), costs
    (log,) = [Path(line[4:]) for line in done.stdout.splitlines() if line.startswith("LOG ")]
    return costs, log


def docker_run(script: str) -> Cost | None:
    """Run it with the Docker command line; None if it is not installed."""
    if not shutil.which("docker"):
        return None
    label = f"{docker_engine.LABEL}=cli-{os.getpid()}"
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = ["docker", "run", "--label", label, docker_engine.IMAGE, "sh", "-c", script]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    finally:
        docker_engine.remove(label)
    return {"wall": wall, "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def span(costs: list[Cost], kind: str = "wall") -> str:
    """Return median and range as text."""
    values = [cost[kind] for cost in costs]
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "not there"


def median(costs: list[Cost], kind: str = "wall") -> float:
    return statistics.median(cost[kind] for cost in costs)


def ratio(ours: list[Cost], peer: list[Cost], kind: str = "wall") -> tuple[float, str]:
    """Return the median of ours / peer over the pairs, and its range; load affects both of a pair."""
    values = [a[kind] / b[kind] for a, b in zip(ours, peer, strict=True)]
    return statistics.median(values), f"{len(values)} pairs, {min(values):.2f} to {max(values):.2f}"
