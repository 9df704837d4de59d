"""The scheduler of AWS Batch, under the name of its module in TorchX."""

from __future__ import annotations

from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchOpts
from airflow_provider_launch.schedulers.aws_batch.scheduler import AwsBatchScheduler, create_scheduler

__all__ = ["AwsBatchOpts", "AwsBatchScheduler", "create_scheduler"]
