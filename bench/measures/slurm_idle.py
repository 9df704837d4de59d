"""Requests a minute to a Slurm cluster while 1, 100 and 1000 of its jobs are followed, and CPU of its controller."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psutil
import slurm_cluster
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.follow.poller import Poller
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, Resource, Role
from rows import row

COUNTS = (1, 100, 1000)
SECONDS = 30
SETTLE_S = 45
"""Seconds until a new app is polled only together with all others."""

# The jobs wait, as most of a thousand do, because no node has that many free CPUs.
waits = AppDef("idle", [Role("r", "", entrypoint="sleep", args=["3600"], resource=Resource(1, 0, 16))])


def controller_cpu() -> float:
    (pid,) = [int((slurm_cluster.CLUSTER.dir / "slurmctld.pid").read_text())]
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


with ExitStack() as stack:
    commands = stack.enter_context(slurm_cluster.use("following jobs of Slurm"))
    runner = stack.enter_context(
        Runner("bench", scheduler_params={"slurm": slurm_cluster.params(over_ssh=True, commands=commands)})
    )
    scheduler = runner.scheduler("slurm")
    cfg = {"overlay": {"begin": "now+1hour"}}

    def launch(number: int) -> str:
        app_id = f"bench-idle-{os.getpid()}-{number}"
        runner.schedule(runner.dryrun(waits, "slurm", cfg, app_id=app_id))
        return app_id

    ids: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(launch, range(max(COUNTS))))
    try:
        time.sleep(5)
        start, idle = time.monotonic(), controller_cpu()
        time.sleep(SECONDS)
        unasked = (controller_cpu() - idle) / (time.monotonic() - start)
        for count in COUNTS:
            poller = Poller(scheduler)
            with ExitStack() as followed, ThreadPoolExecutor(count) as pool:
                followers = [
                    followed.enter_context(Follower(scheduler, one, logs=False, poller=poller)) for one in ids[:count]
                ]
                for follower in followers:
                    pool.submit(list, follower)
                time.sleep(SETTLE_S)
                calls, cpu, start = commands.calls(), controller_cpu(), time.monotonic()
                time.sleep(SECONDS)
                seconds = time.monotonic() - start
                calls, cpu = commands.calls() - calls, controller_cpu() - cpu
                for follower in followers:
                    follower.close()
            note = f"one poller, each {scheduler.poll_interval_s:g} s; one ssh connection"
            row(f"{count} followed jobs: requests to slurmctld", 60 * calls / seconds, "/min", limit=12.5, note=note)
            note = f"of a core; {100 * unasked:.2f} % without polls"
            row(f"{count} followed jobs: CPU of slurmctld", 100 * cpu / seconds, "%", note=note)
    finally:
        slurm_cluster.CLUSTER.run("scancel", f"--name={','.join(ids)}")
