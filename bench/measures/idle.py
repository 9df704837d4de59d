"""Costs of waiting: one process that follows a hundred idle apps, and the supervisor of each app."""

from __future__ import annotations

import os
import statistics
import threading
import time

import psutil
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.follow.poller import Poller
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, Resource, Role
from rows import row

APPS = 100
SECONDS = 20

app = AppDef("idle", [Role("r", "", entrypoint="sleep", args=["600"], resource=Resource(1, 0, 16))])


def consume(follower: Follower) -> None:
    for _ in follower:
        pass


def cpu(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def kin() -> list[psutil.Process]:
    """Return the processes of the apps: outside of our process tree, but with our folder in their arguments."""
    home, found = os.environ["BENCH_HOME"], []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(home in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


with Runner("bench") as runner:
    ids = [runner.schedule(runner.dryrun(app, "local", {"grace_s": 1})).rpartition("/")[2] for _ in range(APPS)]
    scheduler = runner.scheduler("local")
    try:
        time.sleep(5)
        processes = kin()
        # A shim is the child of a supervisor, with the same command line.
        pids = {process.pid for process in processes}
        parts = {process: "shim" if process.ppid() in pids else "supervisor" for process in processes}
        me = psutil.Process()

        def share(seconds: float) -> tuple[float, list[float]]:
            """CPU of this process and of each of the others, as a share of one core, over some seconds."""
            before, mine = {process: cpu(process) for process in processes}, cpu(me)
            time.sleep(seconds)
            return (cpu(me) - mine) / seconds, [(cpu(process) - used) / seconds for process, used in before.items()]

        _, shares = share(SECONDS)
        for part in ("supervisor", "shim"):
            used = [100 * value for process, value in zip(processes, shares, strict=True) if parts[process] == part]
            note = f"{len(used)} processes, worst {max(used):.2f} %"
            row(f"{part} of an idle app", statistics.mean(used), "%", limit=0.1, note=note)

        # One poll for all apps, as the trigger of a later version does it.
        for interval_s in (scheduler.poll_interval_s, 10.0):
            poller = Poller(scheduler, interval_s)
            inboxes = {app_id: (lambda _answer: None) for app_id in ids}
            for app_id, inbox in inboxes.items():
                poller.subscribe(app_id, inbox)
            time.sleep(1)
            mine, _ = share(SECONDS)
            for app_id, inbox in inboxes.items():
                poller.unsubscribe(app_id, inbox)
            poller.join(5)
            row(f"states of {APPS} idle apps each {interval_s:g} s", 100 * mine, "%", limit=1)

        # The work of an operator for one app, with the scheduler's own interval and logs.
        follower = Follower(scheduler, ids[0], roles=app.roles)
        thread = threading.Thread(target=consume, args=(follower,), daemon=True)
        thread.start()
        time.sleep(1)
        mine, _ = share(SECONDS)
        row("follower of 1 idle app, states and logs", 100 * mine, "%", limit=1)
    finally:
        for app_id in ids:
            scheduler.cancel(app_id)
        deadline = time.monotonic() + 60
        while kin() and time.monotonic() < deadline:
            time.sleep(0.5)
