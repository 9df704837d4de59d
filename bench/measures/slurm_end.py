"""Delay from the end of a job to its report, after a run of a minute, when polls have slowed down."""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import slurm_cluster
from airflow_provider_launch.follow.events import Ended
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, Resource, Role
from rows import row

APPS = 12
AGE_S = 60


def known_after(runner: Runner, number: int) -> float:
    """Return the seconds from the end, as recorded by the job, to the event."""
    script = f"sleep {AGE_S + 0.7 * number}"
    app = AppDef("end", [Role("r", "", entrypoint="sh", args=["-c", script], resource=Resource(1, 0, 16))])
    app_id = f"bench-end-{os.getpid()}-{number}"
    runner.schedule(runner.dryrun(app, "slurm", {}, app_id=app_id))
    with Follower(runner.scheduler("slurm"), app_id, logs=False) as follower:
        for event in follower:
            if isinstance(event, Ended):
                seen = time.time()
    return seen - float(str(Path(slurm_cluster.ROOT, "apps", app_id, "end").readlink()).split(",")[2])


with ExitStack() as stack:
    stack.enter_context(slurm_cluster.use("the end of a job"))
    params = {"slurm": slurm_cluster.params(over_ssh=True)}
    runner = stack.enter_context(Runner("bench", scheduler_params=params))
    with ThreadPoolExecutor(APPS) as pool:
        found = list(pool.map(lambda number: known_after(runner, number), range(APPS)))
    note = f"{APPS} jobs of a minute, worst {max(found):.2f} s"
    row("end of a job -> reported, states only", statistics.median(found), limit=5.5, note=note)
