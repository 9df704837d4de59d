"""Connections of type `launch_aws_batch`: jobs of AWS Batch in one account and Region."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from airflow_provider_launch._airflow import AirflowNotFoundException
from airflow_provider_launch.hooks.connections import find_connection
from airflow_provider_launch.hooks.launch import BuiltinLaunchHook
from airflow_provider_launch.schedulers.aws_batch.access import Clients, clients_of
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchConnection
from airflow_provider_launch.specs.errors import InvalidAppError, MissingDependencyError, SchedulerRejectedError

__all__ = ["AwsBatchLaunchHook", "clients_of_aws_connection"]


def clients_of_aws_connection(connection: AwsBatchConnection) -> Clients:
    """Return clients with credentials, role, proxies and endpoints of Airflow's connection of type `aws`."""
    try:
        from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook
        from botocore.config import Config
    except ImportError as error:
        raise MissingDependencyError(
            "aws_conn_id needs Airflow's amazon provider; install apache-airflow-providers-amazon, or leave "
            "aws_conn_id out and give region_name and credentials"
        ) from error
    name = connection.aws_conn_id or ""
    try:
        found = find_connection(name)
    except AirflowNotFoundException as error:
        raise SchedulerRejectedError(
            f"aws_conn_id={name!r} is not a connection of Airflow; create it, or leave aws_conn_id out, so that boto3 "
            f"finds credentials on the host"
        ) from error
    hook: Any = AwsGenericHook(aws_conn_id=name, client_type="batch", region_name=connection.region_name)
    # If its own lookup finds nothing, as for each connection of the database in a script, it uses the host's account.
    hook.get_connection = lambda _: found
    try:
        session = hook.get_session()
        theirs = hook.conn_config
        verify = connection.verify or (theirs.verify if isinstance(theirs.verify, str) else None)
        return clients_of(
            session.client,
            dataclasses.replace(connection, verify=verify),
            # The user's configuration may have proxies, so ours is merged into it.
            hook.config if hook.config is not None else Config(),
            theirs.get_service_endpoint_url,
        )
    except (ValueError, TypeError) as error:
        raise InvalidAppError(f"aws_conn_id={name!r} cannot be used: {error}; correct that connection") from error


class AwsBatchLaunchHook(BuiltinLaunchHook):
    """Jobs of AWS Batch; the extras are the fields of `AwsBatchConnection` and `AwsBatchOpts`.

    Args:
        launch_conn_id: the connection.
    """

    backend: ClassVar[str] = "aws_batch"

    def _make_aws_clients(self) -> Callable[[AwsBatchConnection], Clients]:
        return clients_of_aws_connection
