"""Common base of the hooks of the built-in backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.hooks.extras import LaunchOptions, split_extras
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.schedulers.backends import BACKENDS

__all__ = ["BuiltinLaunchHook"]


class BuiltinLaunchHook(LaunchHook):
    """A hook whose extras are the options of its backend, both of the connection and of launches.

    A subclass sets `backend`, which determines type and default name of its connections.

    Args:
        launch_conn_id: the connection. None: the backend's default connection.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        info = BACKENDS[cls.backend]
        cls.conn_type = info.connection_type
        cls.default_conn_name = info.default_conn_id
        cls.hook_name = f"Launch ({info.title})"
        # Airflow ignores an inherited one.
        type.__setattr__(cls, "get_ui_field_behaviour", LaunchHook.__dict__["get_ui_field_behaviour"])

    def __init__(self, launch_conn_id: str | None = None) -> None:
        super().__init__(launch_conn_id or self.default_conn_name)

    def _options(self, extras: Mapping[str, Any]) -> LaunchOptions:
        info = BACKENDS[self.backend]
        params, cfg = split_extras(extras, info.connection_options(), info.launch_options())
        identity = " ".join(f"{name}={params[name]}" for name in info.identity_fields if params[name] is not None)
        locked = tuple(params.get("locked") or ())
        return LaunchOptions(info.name, params, cfg, f"{info.name} {identity}".strip(), locked)
