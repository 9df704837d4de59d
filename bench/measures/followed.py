"""Followed apps in one triggerer process, for one side: `python followed.py ours 1 100 1000` prints the measurements.

Sides: `empty` (triggers that only wait), `ours` (`AppStatusTrigger` on Docker), `peer` (`KubernetesPodTrigger`; runs in
the environment of the peer).
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from datetime import datetime, timezone
from typing import Any

from fake_api import Client, fake_api
from triggerer import Triggerer, quantile, triggerer

SETTLE_S, SETTLE_MANY_S = 10.0, 15.0
"""Seconds until a silent app has reached its longest interval between log reads."""
LOOK_S, LOOK_MANY_S = 8.0, 15.0
ENDS, PAUSE_S = 60, 0.23
"""Not a fraction of the poll interval, so that ends fall at any time between two polls."""
BATCH = 50
DOCKER = "airflow_provider_launch.triggers.launch.AppStatusTrigger"
POD = "airflow.providers.cncf.kubernetes.triggers.pod.KubernetesPodTrigger"


def docker_trigger(number: int) -> tuple[str, dict[str, Any]]:
    """Return the trigger of the operator for an app on the fake engine."""
    return DOCKER, {"handle": f"docker://bench_docker/bench-{number:04}", "scheduled": True}


def pod_trigger(number: int, address: str) -> tuple[str, dict[str, Any]]:
    """Return the same for a pod in the fake cluster."""
    name = f"bench-{number:04}"
    cluster = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": f"http://{address}"}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "nobody"}}],
        "users": [{"name": "nobody", "user": {}}],
    }
    return POD, {
        "pod_name": name,
        "pod_namespace": "default",
        "trigger_start_time": datetime.now(timezone.utc),
        "base_container_name": "base",
        "config_dict": cluster,
        "in_cluster": False,
    }


def look(process: Triggerer, api: Client | None, seconds: float) -> dict[str, Any]:
    """Measure the process while the apps do nothing."""
    before, started = api.ask()["counts"] if api else {}, time.monotonic()
    seen = process.ask("triggerer.Probe", seconds=seconds)
    after, asked_s = api.ask()["counts"] if api else {}, time.monotonic() - started
    asked = {kind: 60 * (count - before.get(kind, 0)) / asked_s for kind, count in after.items()}
    lags = seen["lags"]
    return {
        "lag_p50": quantile(lags, 0.5),
        "lag_p99": quantile(lags, 0.99),
        "cpu": seen["cpu"] / (seen["end"] - seen["start"]),
        "rss": seen["rss"],
        "asked": asked,
    }


def ends(process: Triggerer, api: Client, ids: dict[str, int]) -> list[float]:
    """End some apps; return the seconds from each end to its event."""
    api.ask(f"end?count={ENDS}&pause_s={PAUSE_S}")
    process.run_for(ENDS * PAUSE_S)
    ended = api.ask()["ended"]
    process.run_until(lambda: all(ids[name] in process.fired for name in ended))
    return [process.fired[ids[name]]["out_at"] - moment for name, moment in ended.items()]


def main() -> None:
    """Follow more and more apps."""
    side, *rest = sys.argv[1:]
    counts = [int(text) for text in rest]
    with ExitStack() as stack:
        api: Client | None = None
        if side != "empty":
            api = stack.enter_context(fake_api("docker" if side == "ours" else "pods", max(counts)))
            extra = json.dumps({"conn_type": "launch_docker", "extra": {"host": f"tcp://{api.address}"}})
            os.environ["AIRFLOW_CONN_BENCH_DOCKER"] = extra
        process = stack.enter_context(triggerer())
        ids: dict[str, int] = {}
        stages = []
        # Exclude one-time imports and threads from the cost of an app.
        process.ask("triggerer.Probe", seconds=1.0)
        for count in counts:
            if api:
                api.ask(f"apps?count={count}")
            for number in range(len(ids), count):
                if side == "empty":
                    what: tuple[str, dict[str, Any]] = ("triggerer.Empty", {})
                else:
                    what = docker_trigger(number) if side == "ours" else pod_trigger(number, api.address if api else "")
                ids[f"bench-{number:04}"] = process.add(*what)
                if not number % BATCH:
                    # One at a time, as in production; one large message would leave more memory allocated.
                    process.run_until(lambda: not process.creating_triggers)
            many = count > 500
            if api:
                process.run_for(SETTLE_MANY_S if many else SETTLE_S)
            early = [event for one, event in process.fired.items() if one in ids.values()]
            assert not early, early[0]
            stages.append({"count": count, **look(process, api, LOOK_MANY_S if many else LOOK_S)})
        found = {"stages": stages, "ends": ends(process, api, ids) if api else []}
    print(f"SEEN {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
