"""The scheduler of local processes, as `local_cwd`, under the name of its module in TorchX."""

from __future__ import annotations

from airflow_provider_launch.schedulers.local.cwd import LocalCwdScheduler, create_scheduler
from airflow_provider_launch.schedulers.local.options import LocalCwdOpts, LocalOpts
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler

__all__ = ["LocalCwdOpts", "LocalCwdScheduler", "LocalOpts", "LocalScheduler", "create_scheduler"]
