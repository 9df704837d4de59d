"""Runs apps as containers of one Docker engine."""

from __future__ import annotations

from typing import Any


def create_scheduler(session_name: str, **kwargs: Any) -> Any:
    """Return the Docker scheduler; see `scheduler.create_scheduler`."""
    from airflow_provider_launch.schedulers.docker.scheduler import create_scheduler as create

    return create(session_name, **kwargs)
