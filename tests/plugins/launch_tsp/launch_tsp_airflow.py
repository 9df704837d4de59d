"""The connection type `launch_tsp` in Airflow: its hook, and its form."""

from typing import Any

from launch_tsp import TspScheduler

from airflow_provider_launch.connections.forms import plugin_connection_type
from airflow_provider_launch.hooks.launch import LaunchHook


class TspHook(LaunchHook):
    """The hook of connections of type `launch_tsp`."""

    conn_type = "launch_tsp"
    hook_name = "Launch (task spooler)"
    default_conn_name = "launch_tsp_default"


def get_provider_info() -> dict[str, Any]:
    """Return the provider info, from which Airflow shows the form."""
    hook = f"{__name__}.{TspHook.__name__}"
    return {
        "package-name": "launch-tsp",
        "name": "Task spooler",
        "description": "Launches apps in task spooler.",
        "connection-types": [plugin_connection_type(TspHook.conn_type, hook, TspHook.hook_name, TspScheduler)],
    }
