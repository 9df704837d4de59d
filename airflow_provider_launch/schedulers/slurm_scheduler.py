"""The scheduler of Slurm, under the name of its module in TorchX."""

from __future__ import annotations

from airflow_provider_launch.schedulers.slurm.options import SlurmOpts
from airflow_provider_launch.schedulers.slurm.scheduler import SlurmScheduler, create_scheduler

__all__ = ["SlurmOpts", "SlurmScheduler", "create_scheduler"]
