"""A hundred thousand lines into the task log: our part, compared with Airflow's own logging of the same lines."""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from airflow.sdk.log import configure_logging
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch._task.task_log import TaskLog
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, Resource, Role
from rows import row

LINES = 100_000
ROUNDS = 5
CODE = "import sys; [print(f'step {n}: loss 0.12345, accuracy 0.98, of usual length') for n in range(int(sys.argv[1]))]"


class Silent:
    """Accepts lines at no cost, so that only our part is measured."""

    def info(self, *_args: Any) -> None:
        """Do nothing."""

    warning = error = debug = info


def app(lines: int) -> AppDef:
    role = Role("r", "", entrypoint=sys.executable, args=["-c", CODE, str(lines)], resource=Resource(1, 0, 64))
    return AppDef("lines", [role])


def finished(runner: Runner, lines: int) -> str:
    """Run the app to its end and return its id."""
    handle = runner.schedule(runner.dryrun(app(lines), "local", {}))
    status = runner.wait(handle, 0.1, timeout=120)
    assert status is not None
    status.raise_for_status()
    return handle.rpartition("/")[2]


def follow(runner: Runner, app_id: str) -> float:
    """Return the CPU seconds of our threads for reading, splitting, prefixing and passing on all lines."""
    log = TaskLog(Silent(), app_id)
    start = time.process_time()
    for event in Follower(runner.scheduler("local"), app_id):
        log.write_event(event)
    return time.process_time() - start


def airflow_logs(log: Any, lines: list[str]) -> float:
    """Return the CPU seconds of a task's own logger, which sends JSON to its supervisor; here discarded."""
    start = time.process_time()
    for line in lines:
        log.info(line)
    return time.process_time() - start


with Path(os.devnull).open("wb") as sink, Runner("bench") as runner:
    configure_logging(json_output=True, output=sink, sending_to_supervisor=True)
    operator = LaunchAppOperator(task_id="lines", app=app(LINES))
    lines = [f"[r/0] step {n}: loss 0.12345, accuracy 0.98, of usual length" for n in range(LINES)]
    app_id = finished(runner, LINES)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(follow(runner, app_id))
        theirs.append(airflow_logs(operator.log, lines))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    big = finished(runner, 4 * LINES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    follow(runner, big)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

row(
    "100 000 lines: our CPU / Airflow's CPU",
    ratio,
    "x",
    limit=0.3,
    note=f"ours {statistics.median(ours):.2f} s, Airflow {statistics.median(theirs):.2f} s",
)
row("memory: growth of the peak, 4 times the lines", grown, "MB", limit=10)
