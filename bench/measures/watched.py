"""Follows apps on a real engine, by one side in one process: `python watched.py SPEC`, a JSON document.

Prints `READY` when all streams are open, and after some seconds `SEEN` with the measurements between the two lines.
Modes: `worker` follows each app like a separate task, with a scheduler and a poller for each; `triggerer` follows
all of them in one process of Airflow's triggerer.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from triggerer import Records, Triggerer, cpu_s, quantile, rss, triggerer

TRIGGER = "airflow_provider_launch.triggers.launch.AppStatusTrigger"
TALKS = 'while :; do read up rest < /proc/uptime; echo "at $up"; sleep 1; done'
"""A line each second, with the time since the boot, which containers share with their host."""
SILENT = "echo up; exec sleep 3600"
FLOODS = 'while :; do for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do echo "step $i: loss 0.12345, accuracy 0.98"; done; sleep 0.1; done'  # noqa: E501 - a script
_AT = re.compile(r"at (\d+\.\d+)")


def boot_s() -> float:
    """Return the seconds since the boot from `/proc/uptime`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Shown(Records):
    """Records the delay of each record with a time."""

    def __init__(self) -> None:
        super().__init__("[r/")
        self.late: list[float] = []

    def log(self, level: int, event: str, **values: Any) -> None:
        """Accept a record from Airflow's supervisor."""
        if found := _AT.search(str(event)):
            self.late.append(boot_s() - float(found[1]))
        super().log(level, event, **values)


def in_triggerer(spec: dict[str, Any]) -> dict[str, Any]:
    """Follow the apps by triggers."""
    name = f"bench_{spec['backend']}"
    extra = json.dumps({"conn_type": f"launch_{spec['backend']}", "extra": spec["params"]})
    os.environ[f"AIRFLOW_CONN_{name.upper()}"] = extra
    with triggerer() as process:
        process.records = shown = Shown()
        process.ask("triggerer.Probe", seconds=1.0)
        before = process.ask("triggerer.Probe", seconds=0.5)["rss"]
        for app_id in spec["apps"]:
            process.add(TRIGGER, {"handle": f"{spec['backend']}://{name}/{app_id}", "logs_from": "now"})
        process.run_for(spec["settle_s"])
        seen = _figures_of(process, shown, spec["seconds"])
        return seen | {"growth": seen.pop("rss") - before}


def _figures_of(process: Triggerer, shown: Shown, seconds: float) -> dict[str, Any]:
    first = len(shown.late), len(shown.times)
    print("READY", flush=True)
    seen = process.ask("triggerer.Probe", seconds=seconds)
    return {
        "late": shown.late[first[0] :],
        "lines": len(shown.times) - first[1],
        "lag_p99": quantile(seen["lags"], 0.99),
        "cpu": seen["cpu"] / (seen["end"] - seen["start"]),
        "rss": seen["rss"],
    }


def in_workers(spec: dict[str, Any]) -> dict[str, Any]:
    """Follow each app as a worker does."""
    from airflow_provider_launch.follow.events import LogLines
    from airflow_provider_launch.follow.follower import Follower
    from airflow_provider_launch.runner import Runner

    late: list[float] = []
    counts = [0] * len(spec["apps"])

    def consume(number: int, follower: Follower) -> None:
        for event in follower:
            if isinstance(event, LogLines):
                counts[number] += len(event.lines)
                late.extend(boot_s() - float(found[1]) for line in event.lines if (found := _AT.search(line.text)))

    with ExitStack() as stack:
        followers = []
        for app_id in spec["apps"]:
            runner = stack.enter_context(Runner("bench", scheduler_params={spec["backend"]: spec["params"]}))
            scheduler = runner.scheduler(spec["backend"])
            followers.append(stack.enter_context(Follower(scheduler, app_id, logs_from="now")))
        before = rss()
        for number, follower in enumerate(followers):
            threading.Thread(target=consume, args=(number, follower), daemon=True).start()
        time.sleep(spec["settle_s"])
        first, lines, used, started = len(late), sum(counts), cpu_s(), time.monotonic()
        print("READY", flush=True)
        time.sleep(spec["seconds"])
        return {
            "late": late[first:],
            "lines": sum(counts) - lines,
            "cpu": (cpu_s() - used) / (time.monotonic() - started),
            "growth": rss() - before,
        }


def main() -> None:
    """Follow, and print the measurements."""
    spec = json.loads(sys.argv[1])
    modes: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"triggerer": in_triggerer, "worker": in_workers}
    seen = modes[spec["mode"]](spec)
    late = seen.pop("late")
    found = seen | ({"late_p99": quantile(late, 0.99)} if late else {})
    print(f"SEEN {json.dumps(found)}", flush=True)
    # The remaining apps do not matter any more.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
