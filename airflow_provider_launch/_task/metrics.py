"""Counters, gauges and timers by Airflow's `Stats`; no-op if no metrics are configured."""

from __future__ import annotations

import contextlib
import functools
import socket
from typing import Any


def count(name: str, number: int = 1, **tags: str) -> None:
    """Add to the counter `launch.<name>`."""
    if number:
        _send("incr", name, number, tags)


def count_cancelled(backend: str) -> None:
    """Count an app that was cancelled because its task is over; no worker will see its end."""
    count("apps_ended", backend=backend, state="CANCELLED")


def gauge(name: str, value: float, **tags: str) -> None:
    """Set the gauge `launch.<name>` of this process; the host is a tag, because each triggerer has its own value."""
    _send("gauge", name, value, {"hostname": _hostname(), **tags})


def seconds(name: str, duration_s: float, **tags: str) -> None:
    """Record how long something took in the timer `launch.<name>`, which Airflow sends in milliseconds."""
    _send("timing", name, duration_s * 1000, tags)


@functools.cache
def _hostname() -> str:
    """Return the name that Airflow gives to this host."""
    with contextlib.suppress(Exception):
        from airflow_provider_launch._airflow import conf

        return str(conf.getimport("core", "hostname_callable")())
    return socket.getfqdn()


def _send(method: str, name: str, value: Any, tags: dict[str, str]) -> None:
    # A metric that fails must not change how a task ends.
    with contextlib.suppress(Exception):
        from airflow_provider_launch._airflow import Stats

        getattr(Stats, method)(f"launch.{name}", value, **({"tags": tags} if tags else {}))
