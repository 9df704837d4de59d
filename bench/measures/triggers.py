"""A thousand followed apps in one triggerer process: lag, CPU, memory, requests, and the delay of an end.

The same for `KubernetesPodTrigger` with fewer pods, in a separate environment, and for triggers that only wait.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import peers
from airflow_provider_launch.follow.stream_engine import MAX_STREAMS
from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler
from airflow_provider_launch.triggers import pump
from rows import row, skip
from triggerer import quantile

COUNTS = (1, 100, 1000)
PODS = 100
"""Apps of the peer: more would need more than one core, so 100 are measured in its favour."""
FOLLOWED = Path(__file__).with_name("followed.py")


def followed(python: str, side: str, *counts: int) -> dict[str, Any]:
    """Run one side in a new process."""
    env = dict(os.environ)
    if side == "peer":
        env.pop("PYTHONPATH", None)
    command = [python, str(FOLLOWED), side, *map(str, counts)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
    seen = [line[5:] for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    if not seen:
        raise RuntimeError(f"{side}: exit code {done.returncode}\n{done.stdout[-2000:]}")
    found: dict[str, Any] = json.loads(seen[0])
    return found


def peer() -> tuple[dict[str, Any], str] | None:
    """Return the measurements and the name of the peer; None if it is not available."""
    try:
        python = peers.kubernetes_python()
        return followed(python, "peer", 1, PODS), peers.version(python, peers.KUBERNETES)
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        skip("peer: KubernetesPodTrigger", " ".join(str(error).split())[-300:])
        return None


def per_app(stages: list[dict[str, Any]]) -> float:
    """Return the KB of memory per app, from the last but one stage to the last."""
    before, after = stages[-2:]
    return float((after["rss"] - before["rss"]) / (after["count"] - before["count"]) / 1024)


ours = followed(sys.executable, "ours", *COUNTS)
empty = followed(sys.executable, "empty", *COUNTS)
other = peer()

last, waiting = ours["stages"][-1], empty["stages"][-1]
pods: dict[str, Any] = other[0]["stages"][-1] if other else {}
what = f"{last['count']} apps"
note = f"one run each; peer: {PODS} pods at another API, KubernetesPodTrigger, {other[1]}" if other else "one run"
alone = f"{waiting['count']} triggers that only wait: "


def ms(found: dict[str, Any], key: str) -> float | None:
    return 1000 * found[key] if found else None


row(f"{what}: lag of the loop, p50", 1000 * last["lag_p50"], "ms", peer=ms(pods, "lag_p50"), note=note)
row(
    f"{what}: lag of the loop, p99",
    1000 * last["lag_p99"],
    "ms",
    limit=50,
    peer=ms(pods, "lag_p99"),
    note=f"{alone}{1000 * waiting['lag_p99']:.1f} ms",
)
row(
    f"{what}: CPU",
    100 * last["cpu"],
    "%",
    peer=100 * pods["cpu"] if pods else None,
    note=f"of a core; {alone}{100 * waiting['cpu']:.1f} %",
)
row(
    "memory per app",
    per_app(ours["stages"]),
    "KB",
    # An empty trigger needs 14 KB. Less would need our own futures and locks.
    limit=32,
    peer=per_app(other[0]["stages"]) if other else None,
    note=f"growth from {COUNTS[-2]} to {last['count']}, of which an empty trigger {per_app(empty['stages']):.1f}; "
    f"peer: from 1 to {PODS}",
)
budget = 60 * pump._IDLE_READS_PER_S  # noqa: SLF001 - the promised limit
for stage in ours["stages"]:
    asked, count = stage["asked"], stage["count"]
    theirs = pods["asked"]["states"] if pods and count == PODS else None
    # Fewer if all apps are followed by streams.
    limit = 1.1 * 60 / DockerScheduler.poll_interval_s
    row(f"states of {count} apps: requests", asked["states"], "/min", limit=limit, peer=theirs)
    row(
        f"logs of {count} silent apps: requests",
        asked["logs"],
        "/min",
        limit=1.1 * budget,
        note=f"{MAX_STREAMS} are followed by streams; at most {budget:g} for any number",
    )
interval = DockerScheduler.poll_interval_s
theirs = other[0]["ends"] if other else []
for share, limit in ((0.5, None), (0.99, interval + 0.2)):
    row(
        f"{what}: end to event, p{100 * share:g}",
        quantile(ours["ends"], share),
        limit=limit,
        peer=quantile(theirs, share) if theirs else None,
        note=f"of {len(ours['ends'])}, polled each {interval:g} s"
        + (f"; the peer each 2 s, {PODS} pods" if theirs else ""),
    )
