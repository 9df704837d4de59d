"""Costs of following apps in containers: requests and CPU, for 1, 50 and 200 apps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import docker_engine
import psutil
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.follow.poller import Poller
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers.api import Scheduler
from airflow_provider_launch.specs import AppDef, Role
from rows import row
from tests.faults import FaultProxy

COUNTS = (1, 50, 200)
SECONDS = 20
SETTLE = 15
"""Seconds until the follower of a silent app has slowed down."""

docker_engine.use("following apps on Docker")
app = AppDef("idle", [Role("r", docker_engine.IMAGE, entrypoint="sleep", args=["3600"])])
cfg = {"network": "none", "init": False, "grace_s": 0}


def cpu() -> float:
    used = psutil.Process().cpu_times()
    return float(used.user + used.system)


def engine_cpu() -> float:
    """Return the CPU seconds of all Docker engines of this machine."""
    found = [one.cpu_times() for one in psutil.process_iter(["name"]) if one.info["name"] == "dockerd"]
    return sum(one.user + one.system for one in found)


def follow(
    scheduler: Scheduler[Any], ids: list[str], probe: Callable[[], list[float]], *, logs: bool = False
) -> list[float]:
    """Follow the apps with one poller; return the growth per second of the figures of the probe."""
    poller = Poller(scheduler)
    with ExitStack() as stack, ThreadPoolExecutor(len(ids)) as pool:
        followers = [stack.enter_context(Follower(scheduler, one, logs=logs, poller=poller)) for one in ids]
        for follower in followers:
            pool.submit(list, follower)
        time.sleep(SETTLE)
        before, start = probe(), time.monotonic()
        time.sleep(SECONDS)
        after, seconds = probe(), time.monotonic() - start
        for follower in followers:
            follower.close()
    return [(b - a) / seconds for a, b in zip(before, after, strict=True)]


with ExitStack() as stack:
    proxy = stack.enter_context(FaultProxy(docker_engine.HOST))
    runner = stack.enter_context(Runner("bench", scheduler_params={"docker": {"host": docker_engine.HOST}}))
    through = stack.enter_context(Runner("bench", scheduler_params={"docker": {"host": proxy.url}}))
    scheduler, proxied = runner.scheduler("docker"), through.scheduler("docker")
    ids: list[str] = []
    try:
        start = time.perf_counter()
        for number in range(max(COUNTS)):
            ids.append(f"bench-idle-{os.getpid()}-{number}")
            runner.schedule(runner.dryrun(app, "docker", cfg, app_id=ids[-1]))
        submit = (time.perf_counter() - start) / len(ids)
        row("submit one app", submit, note=f"mean of {len(ids)}")
        first = None
        for count in COUNTS:
            (asked,) = follow(proxied, ids[:count], lambda: [proxy.count()])
            first = first or asked
            # Without the proxy, which is one of our threads.
            own, engines = follow(scheduler, ids[:count], lambda: [cpu(), engine_cpu()])
            what, note = f"states of {count} apps", f"one poller, each {scheduler.poll_interval_s:g} s"
            row(f"{what}: requests", 60 * asked, "/min", limit=None if count == 1 else 66 * first, note=note)
            row(f"{what}: CPU", 100 * own, "%", note=f"of a core; the engine: {100 * engines:.1f} %")
        (asked,) = follow(proxied, ids[:1], lambda: [proxy.count()], logs=True)
        own, engines = follow(scheduler, ids[:1], lambda: [cpu(), engine_cpu()], logs=True)
        row("states and log of 1 silent app: requests", 60 * asked, "/min")
        row("states and log of 1 silent app: CPU", 100 * own, "%", note=f"of a core; the engine: {100 * engines:.1f} %")
    finally:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda one: docker_engine.remove(f"launch.io/app-id={one}"), ids))
