"""The settings of this deployment that change what a connection means, from Airflow's configuration."""

from __future__ import annotations

from airflow_provider_launch._airflow import conf
from airflow_provider_launch.connections.deployment import Deployment


def deployment() -> Deployment:
    """Return the settings as they are now."""
    return Deployment(
        config_file=conf.get("launch", "config_file", fallback="") or "",
        allow_kubeconfig_exec=conf.getboolean("launch", "allow_kubeconfig_exec", fallback=False),
    )
