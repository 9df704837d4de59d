"""A hundred apps that write as fast as they can through one triggerer process, compared with its logger alone."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any

import flooding
from rows import row
from triggerer import Triggerer, quantile, triggerer

APPS = 100
ROUNDS = 4
SECONDS = 5.0
KINDS = ("airflow", "lines", "apps")
FOLLOW = "airflow_provider_launch.triggers.launch.AppStatusTrigger"


def quiet(process: Triggerer) -> None:
    """Wait until all that was read is written."""
    seen = -1
    while seen != len(process.records.times):
        seen = len(process.records.times)
        process.run_for(1.0)


def window(process: Triggerer, kind: str) -> dict[str, Any]:
    """Run one kind of writer; add lines per second, and CPU per line."""
    quiet(process)
    found = process.ask("flooding.Window", kind=kind, seconds=SECONDS)
    # Records that came before the end may be read after the event.
    lines = process.records.within(found["start"], found["end"])
    found["rate"] = lines / (found["end"] - found["start"])
    found["cpu"] = found["cpu"] / lines
    return found


# Do not measure the budget.
os.environ["AIRFLOW__LAUNCH__TRIGGER_LOG_BYTES_PER_S"] = "1e9"
os.environ["AIRFLOW_CONN_BENCH_FLOOD"] = json.dumps({"conn_type": "launch", "extra": {"scheduler": "flood"}})
ids = flooding.install(Path(os.environ["BENCH_HOME"], "site"), APPS)
with triggerer(flooding.MARK) as process:
    for app_id in ids:
        process.add(FOLLOW, {"handle": f"flood://bench_flood/{app_id}", "scheduled": True})
    process.run_until(lambda: not process.creating_triggers)
    process.run_for(5.0)
    seen: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind in KINDS:
            seen[kind].append(window(process, kind))
    assert not process.failed
    early = [event for event in process.fired.values() if "why" in event]
    assert not early, early[0]


def median(kind: str, key: str) -> float:
    return statistics.median(each[key] for each in seen[kind])


def span(values: list[float]) -> str:
    """Return a range as text."""
    return f"{len(values)} rounds, {min(values):.2f} to {max(values):.2f}"


apps, lines = seen["apps"], seen["lines"]
rates = [a["rate"] / b["rate"] for a, b in zip(apps, lines, strict=True)]
row(
    "one logger alone / lines per second of 100 apps",
    1 / statistics.median(rates),
    "x",
    limit=1 / 0.9,
    note=f"{median('apps', 'rate'):.0f} lines/s, the logger alone {median('lines', 'rate'):.0f}, as fast as the "
    f"triggerer's supervisor takes them; {span(rates)}",
)
costs = [(a["cpu"] - b["cpu"]) / b["cpu"] for a, b in zip(apps, lines, strict=True)]
row(
    "our CPU per line / that of the logger",
    statistics.median(costs),
    "x",
    limit=0.5,
    note=f"all together {1e6 * median('apps', 'cpu'):.0f} us, the logger {1e6 * median('lines', 'cpu'):.0f} us; "
    f"Airflow's own logger {1e6 * median('airflow', 'cpu'):.0f} us; {span(costs)}",
)
lags = [lag for each in apps for lag in each["lags"]]
calls = [call for each in apps for call in each["calls"]]
alone = [lag for each in lines for lag in each["lags"]]
row(
    "lag of the loop, p99",
    1000 * quantile(lags, 0.99),
    "ms",
    limit=50,
    note=f"one logger alone: {1000 * quantile(alone, 0.99):.1f} ms",
)
row("log call of another trigger, p99", 1000 * quantile(calls, 0.99), "ms", limit=5)
