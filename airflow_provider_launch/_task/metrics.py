"""Counters, gauges and timers by Airflow's `Stats`; nothing where no metrics are configured."""

from __future__ import annotations

import contextlib
from typing import Any

__all__ = ["count", "gauge", "seconds"]


def count(name: str, number: int = 1, **tags: str) -> None:
    """Add to the counter `launch.<name>`."""
    if number:
        _send("incr", name, number, tags)


def gauge(name: str, value: float, **tags: str) -> None:
    """Set the gauge `launch.<name>`."""
    _send("gauge", name, value, tags)


def seconds(name: str, duration_s: float, **tags: str) -> None:
    """Record how long something took in the timer `launch.<name>`, which Airflow sends in milliseconds."""
    _send("timing", name, duration_s * 1000, tags)


def _send(method: str, name: str, value: Any, tags: dict[str, str]) -> None:
    # A metric that fails must not change how a task ends.
    with contextlib.suppress(Exception):
        from airflow.sdk.observability.stats import Stats

        getattr(Stats, method)(f"launch.{name}", value, **({"tags": tags} if tags else {}))
