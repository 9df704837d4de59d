"""Extras that belong to connections of type `aws`, and not to those of AWS Batch."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_launch.specs.errors import InvalidAppError

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


def refuse_extras_of_aws(extras: Mapping[str, object]) -> None:
    """Refuse extras that only a connection of type `aws` has.

    Raises:
        InvalidAppError: names the extra and the fix.
    """
    for name, cure in _OF_AWS.items():
        if extras.get(name) is not None:
            raise InvalidAppError(f"the extra {name!r} exists only in connections of type aws; {cure}")
