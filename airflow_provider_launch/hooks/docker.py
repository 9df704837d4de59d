"""Connections of type `launch_docker`: containers of one Docker engine."""

from __future__ import annotations

from typing import ClassVar

from airflow_provider_launch.hooks.launch import BuiltinLaunchHook

__all__ = ["DockerLaunchHook"]


class DockerLaunchHook(BuiltinLaunchHook):
    """Containers of one Docker engine; the extras are the fields of `DockerConnection` and `DockerOpts`.

    Args:
        launch_conn_id: the connection.
    """

    backend: ClassVar[str] = "docker"
