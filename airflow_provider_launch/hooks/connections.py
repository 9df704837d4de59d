"""Connections and settings of this deployment of Airflow, in a task and in a script."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from airflow_provider_launch._airflow import AirflowNotFoundException, BaseHook, ask, conf
from airflow_provider_launch.connections.deployment import Deployment

if TYPE_CHECKING:
    from airflow.sdk import Connection


def deployment() -> Deployment:
    """Return the settings of Airflow that change what a connection means, as they are now."""
    return Deployment(
        config_file=conf.get("launch", "config_file", fallback="") or "",
        allow_kubeconfig_exec=conf.getboolean("launch", "allow_kubeconfig_exec", fallback=False),
    )


def find_connection(conn_id: str) -> Connection:
    """Return a connection of Airflow: in a task, a trigger, or a script on a host with Airflow's configuration.

    Raises:
        AirflowNotFoundException: no such connection, or Airflow's API server has failed.
    """
    try:
        return ask(lambda: BaseHook.get_connection(conn_id))
    except AirflowNotFoundException:
        if (stored := _stored_connection(conn_id)) is not None:
            return stored
        raise


def _stored_connection(conn_id: str) -> Connection | None:
    """Return a connection of Airflow's database, for a script on a host with Airflow's configuration.

    Tasks, triggerers and DAG parsers have already asked the API server, which reads the database.
    """
    if hasattr(sys.modules.get("airflow.sdk.execution_time.task_runner"), "SUPERVISOR_COMMS"):
        return None
    from airflow.models import Connection as StoredConnection
    from airflow.sdk import Connection

    try:
        found = StoredConnection.get_connection_from_secrets(conn_id)  # noqa: AIR311 - the SDK does not read the database
    except AirflowNotFoundException:
        return None
    names = ("conn_id", "conn_type", "host", "schema", "login", "password", "port", "extra")
    return Connection(**{name: getattr(found, name) for name in names})
