"""Connections of type `launch_slurm`: jobs of a Slurm cluster."""

from __future__ import annotations

from typing import ClassVar

from airflow_provider_launch.hooks.launch import BuiltinLaunchHook

__all__ = ["SlurmLaunchHook"]


class SlurmLaunchHook(BuiltinLaunchHook):
    """Jobs of a Slurm cluster; the extras are the fields of `SlurmConnection` and `SlurmOpts`.

    Args:
        launch_conn_id: the connection.
    """

    backend: ClassVar[str] = "slurm"
