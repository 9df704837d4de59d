"""The scheduler of Docker, as `local_docker`, under the name of its module in TorchX."""

from __future__ import annotations

from airflow_provider_launch.schedulers.docker.local_docker import LocalDockerScheduler, create_scheduler
from airflow_provider_launch.schedulers.docker.options import DockerOpts
from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler

__all__ = ["DockerOpts", "DockerScheduler", "LocalDockerScheduler", "create_scheduler"]
