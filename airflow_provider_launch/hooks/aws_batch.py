"""Connections of type `launch_aws_batch`: jobs of AWS Batch in one account and Region."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow_provider_launch._airflow import AirflowNotFoundException
from airflow_provider_launch.hooks.connections import find_connection
from airflow_provider_launch.hooks.extras import LaunchOptions
from airflow_provider_launch.hooks.launch import BuiltinLaunchHook
from airflow_provider_launch.schedulers.aws_batch.access import Clients, clients_of
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchConnection
from airflow_provider_launch.specs.errors import InvalidAppError, MissingDependencyError, SchedulerRejectedError

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.aws_batch.scheduler import AwsBatchScheduler

__all__ = ["AwsBatchLaunchHook", "clients_of_aws_connection"]


_PROVIDER = "install apache-airflow-providers-amazon, and name a connection of type aws in aws_conn_id"
_OF_AWS = {
    "assume_role_method": f"role_arn alone assumes a role; for SAML and web identity {_PROVIDER}",
    "assume_role_with_saml": _PROVIDER,
    "assume_role_with_web_identity": f"boto3 finds a token file by itself; otherwise {_PROVIDER}",
    "assume_role_kwargs": "set external_id, role_session_name and role_duration_s",
    "session_kwargs": "set profile_name, region_name and the keys by name",
    "service_config": "set endpoint_url, logs_endpoint_url and sts_endpoint_url",
    "s3_config_file": "set profile_name; AWS_CONFIG_FILE names another file",
    "profile": "set profile_name",
    "aws_account_id": "set role_arn",
    "aws_iam_role": "set role_arn",
}
"""Extras that only the amazon provider supports, each with the fix."""


class AwsBatchLaunchHook(BuiltinLaunchHook):
    """Jobs of AWS Batch; the extras are the fields of `AwsBatchConnection` and `AwsBatchOpts`.

    Args:
        launch_conn_id: the connection.
    """

    backend: ClassVar[str] = "aws_batch"

    def _options(self, extras: Mapping[str, Any]) -> LaunchOptions:
        for name, cure in _OF_AWS.items():
            if extras.get(name) is not None:
                raise InvalidAppError(
                    f"connection {self.launch_conn_id!r}: the extra {name!r} exists only in connections of type aws; "
                    f"{cure}"
                )
        options = super()._options(extras)
        if not options.params["aws_conn_id"]:
            return options
        return dataclasses.replace(options, params={**options.params, "make_clients": clients_of_aws_connection})

    def _probe(self) -> str:
        """Check the permission for each action that can be checked; creates nothing."""
        scheduler = cast("AwsBatchScheduler", self.scheduler)
        if missing := scheduler.missing_permissions(self.options.cfg.get("queue")):
            raise SchedulerRejectedError(f"the credentials lack {', '.join(missing)}; docs/aws_batch.md has the policy")
        return (
            f"AWS Batch in {scheduler.aws.region} answered and allows all actions that can be checked; "
            f"RegisterJobDefinition and PassRole are checked only by the first launch"
        )


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
