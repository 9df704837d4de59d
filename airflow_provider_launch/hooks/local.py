"""Connections of type `launch_local`: processes on the host of the worker."""

from __future__ import annotations

from typing import ClassVar

from airflow_provider_launch.hooks.launch import BuiltinLaunchHook

__all__ = ["LocalLaunchHook"]


class LocalLaunchHook(BuiltinLaunchHook):
    """Local processes; the extras are the fields of `LocalConnection` and `LocalOpts`.

    Args:
        launch_conn_id: the connection; `launch_local_default` need not be defined.
    """

    backend: ClassVar[str] = "local"
