"""Apps as jobs of AWS Batch."""

from __future__ import annotations

from typing import Any


def create_scheduler(session_name: str, **kwargs: Any) -> Any:
    """Return the AWS Batch scheduler; see `scheduler.create_scheduler`."""
    from airflow_provider_launch.schedulers.aws_batch.scheduler import create_scheduler as create

    return create(session_name, **kwargs)
