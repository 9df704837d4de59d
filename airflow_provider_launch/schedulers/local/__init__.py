"""Runs apps as processes of this host, which outlive their launcher."""

from __future__ import annotations

from typing import Any


def create_scheduler(session_name: str, **kwargs: Any) -> Any:
    """Return the local scheduler; see `scheduler.create_scheduler`."""
    from airflow_provider_launch.schedulers.local.scheduler import create_scheduler as create

    return create(session_name, **kwargs)
