"""The scheduler of Kubernetes, under the name of its module in TorchX."""

from __future__ import annotations

from airflow_provider_launch.schedulers.kubernetes.options import KubernetesOpts
from airflow_provider_launch.schedulers.kubernetes.scheduler import KubernetesScheduler, create_scheduler

__all__ = ["KubernetesOpts", "KubernetesScheduler", "create_scheduler"]
