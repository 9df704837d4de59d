"""Connections of type `launch_local`: processes on the host of the worker."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, ClassVar

from airflow_provider_launch.hooks.extras import LaunchOptions
from airflow_provider_launch.hooks.launch import DEFAULT_CONN_ID, LaunchHook
from airflow_provider_launch.schedulers.local.options import LocalConnection, LocalOpts

__all__ = ["LocalLaunchHook"]


class LocalLaunchHook(LaunchHook):
    """Local processes; the extras are the fields of `LocalConnection` and `LocalOpts`.

    Args:
        launch_conn_id: the connection; `launch_local_default` need not be defined.
    """

    default_conn_name = DEFAULT_CONN_ID
    conn_type = "launch_local"
    hook_name = "Launch (local processes)"
    backend: ClassVar[str] = "local"

    def __init__(self, launch_conn_id: str = DEFAULT_CONN_ID) -> None:
        super().__init__(launch_conn_id)

    def _options(self, extras: Mapping[str, Any]) -> LaunchOptions:
        return self._typed_options("local", extras, LocalConnection, LocalOpts, ("root",))

    def _tested(self, options: LaunchOptions) -> str:
        root = options.params.get("root") or "the default root"
        return f"the local scheduler on host {socket.gethostname()} at {root}"
