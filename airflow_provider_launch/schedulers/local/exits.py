"""Text about the end of an attempt, from the `exit` file of its shim. The supervisor uses it too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.schedulers._kit.endings import ReplicaEnd, ending_text
from airflow_provider_launch.schedulers.signals import signal_name


def ending_of(document: Mapping[str, Any]) -> str:
    """Return how an attempt ended.

    Args:
        document: its file `exit`.
    """
    if document.get("lost"):
        return "its processes were killed from outside (SIGKILL)"
    if document.get("outside"):
        return "ended from outside (SIGTERM)"
    if document.get("stopped"):
        return "stopped"
    signal = signal_name(document["signal"]) if document.get("signal") else None
    return ending_text(ReplicaEnd(document["code"], signal=signal))
