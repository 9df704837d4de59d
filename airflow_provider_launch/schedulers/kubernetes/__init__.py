"""Apps as Indexed Jobs of a Kubernetes cluster."""

from __future__ import annotations

from typing import Any


def create_scheduler(session_name: str, **kwargs: Any) -> Any:
    """Return the Kubernetes scheduler; see `scheduler.create_scheduler`."""
    from airflow_provider_launch.schedulers.kubernetes.scheduler import create_scheduler as create

    return create(session_name, **kwargs)
