"""Connections of Airflow's own types, such as `kubernetes`, as extras of a launch connection.

Each of their fields is used, or refused by name, so that none is ignored without a word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_launch.connections.definition import UNUSED_FIELDS, Definition
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.util.types import str_to_bool

AIRFLOW_TYPES: Mapping[str, str] = {"kubernetes": "kubernetes", "docker": "docker", "aws": "aws_batch", "ssh": "slurm"}
"""Type of connection to the scheduler that it can be used for."""
CONN_IDS: Mapping[str, str] = {"kubernetes_conn_id": "kubernetes", "docker_conn_id": "docker", "ssh_conn_id": "ssh"}
"""Extra of a launch connection that names a connection, to the type that it must have."""


@dataclass(frozen=True)
class _Field:
    """A field or extra of such a connection."""

    name: str = ""
    """The extra of the launch connection that it becomes."""
    cure: str = ""
    """Why it cannot be used, and what to do instead; only if it is set, or true."""
    convert: Callable[[Any], Any] = str


_IGNORED = _Field()
"""A field that has no effect here, and whose absence changes nothing."""


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _as_bool(value: Any) -> bool:
    return value if isinstance(value, bool) else str_to_bool(str(value))


def _as_host_key(value: Any) -> str:
    """Return a host key with its kind, which is `ssh-rsa` if it has none."""
    return str(value) if " " in str(value).strip() else f"ssh-rsa {value}"


_HOST_KEY_CURE = "the key of the server is always checked; give it as host_key, or add it to known_hosts of the worker"
_LIST_CURE = "list them in a connection of type launch_kubernetes that names this one by kubernetes_conn_id"
_FIELDS: Mapping[str, Mapping[str, _Field]] = {
    "kubernetes": {
        "in_cluster": _Field("in_cluster", convert=_as_bool),
        "kube_config_path": _Field("kubeconfig_path"),
        "kube_config": _Field("kubeconfig_secret", convert=_as_text),
        "cluster_context": _Field("context"),
        "namespace": _Field("namespace"),
        "namespaces": _Field(cure=_LIST_CURE),
        "contexts": _Field(cure=_LIST_CURE),
        "disable_verify_ssl": _Field(cure="set insecure-skip-tls-verify for the cluster in the kubeconfig"),
        # Connections are short, and each request has a timeout.
        "disable_tcp_keepalive": _IGNORED,
        # Results need no sidecar.
        "xcom_sidecar_container_image": _IGNORED,
        "xcom_sidecar_container_resources": _IGNORED,
        "xcom_sidecar_container_security_context": _IGNORED,
    },
    "docker": {
        "host": _Field("registry"),
        "login": _Field("registry_username"),
        "password": _Field("registry_password"),
        # Registries do not read the address, and each pull logs in by itself.
        "email": _IGNORED,
        "reauth": _IGNORED,
    },
    "ssh": {
        "host": _Field("ssh_host"),
        "port": _Field("ssh_port", convert=int),
        "login": _Field("ssh_user"),
        "password": _Field("ssh_password"),
        "key_file": _Field("ssh_key_file"),
        "private_key": _Field("ssh_key_secret"),
        "private_key_passphrase": _Field("ssh_key_password"),
        "host_key": _Field("ssh_host_key", convert=_as_host_key),
        "conn_timeout": _Field("timeout_s", convert=float),
        "timeout": _Field("timeout_s", convert=float),
        "cmd_timeout": _Field("timeout_s", convert=float),
        "no_host_key_check": _Field(cure=_HOST_KEY_CURE),
        "ignore_hostkey_verification": _Field(cure=_HOST_KEY_CURE),
        "allow_host_key_change": _Field(cure=_HOST_KEY_CURE),
        "host_proxy_cmd": _Field(cure="name the jump host in ssh_jump_host of a launch connection with ssh_conn_id"),
        "ciphers": _Field(cure="set Ciphers in the configuration of the ssh server"),
        "disabled_algorithms": _Field(cure="set the algorithms in the configuration of the ssh server"),
        # Own keys are tried only if none is given, and commands have little output.
        "look_for_keys": _IGNORED,
        "compress": _IGNORED,
    },
}
_PREFIX = "extra__{}__"


def extras_of(definition: Definition) -> dict[str, Any]:
    """Return the extras of a launch connection that a connection of Airflow's own type means.

    Refuses fields that cannot be used.
    """
    conn_type = definition.conn_type
    if conn_type == "aws":
        # The amazon provider reads all of its fields.
        return {"aws_conn_id": definition.conn_id}
    known = _FIELDS[conn_type]
    given = {name: value for name in UNUSED_FIELDS if (value := definition.unused.get(name)) not in (None, "", 0)}
    prefix = _PREFIX.format(conn_type)
    given |= {name.removeprefix(prefix): value for name, value in definition.extras().items() if value is not None}
    if conn_type == "docker":
        given = _with_port(given)
    what = f"connection {definition.conn_id!r} of type {conn_type!r}"
    found: dict[str, Any] = {}
    for name, value in given.items():
        field = known.get(name)
        if field is None:
            raise InvalidAppError(f"{what}: {name!r} cannot be used; it reads {', '.join(known)}")
        if value == "" or field is _IGNORED or (field.cure and str(value).lower() in {"false", "{}", "[]"}):
            continue
        if field.cure:
            raise InvalidAppError(f"{what}: {name!r} cannot be used; {field.cure}")
        try:
            found[field.name] = field.convert(value)
        except (TypeError, ValueError) as error:
            # Without the value, which may be a secret.
            raise InvalidAppError(f"{what}: {name!r} has a wrong value of type {type(value).__name__}") from error
    if conn_type == "docker" and found and not found.get("registry_username"):
        raise InvalidAppError(
            f"{what}: the login is missing; it logs in to a registry. Its host is not an engine: name that in a "
            f"connection of type launch_docker, or in DOCKER_HOST"
        )
    return found


def _with_port(given: dict[str, Any]) -> dict[str, Any]:
    port = given.pop("port", None)
    return {**given, "host": f"{given['host']}:{port}"} if port and given.get("host") else given


def with_named_connections(
    extras: Mapping[str, Any], find: Callable[[str], Definition | None] | None
) -> dict[str, Any]:
    """Return the extras with those of the connections that they name; extras that are given win.

    `find` returns a connection; None: there are no others. Refuses a connection that does not exist, has another type,
    or a field that cannot be used.
    """
    found: dict[str, Any] = {}
    for name, conn_type in CONN_IDS.items():
        if not (conn_id := extras.get(name)):
            continue
        definition = find(str(conn_id)) if find is not None else None
        if definition is None:
            raise InvalidAppError(f"{name}={conn_id!r} is not a connection; create it, or leave {name} out")
        if definition.conn_type != conn_type:
            raise InvalidAppError(
                f"{name}={conn_id!r} has type {definition.conn_type!r}, not {conn_type!r}; name one of that type"
            )
        found |= extras_of(definition)
    return {**found, **{name: value for name, value in extras.items() if value is not None or name not in found}}


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
    """Refuse extras that only a connection of type `aws` has."""
    for name, cure in _OF_AWS.items():
        if extras.get(name) is not None:
            raise InvalidAppError(f"the extra {name!r} exists only in connections of type aws; {cure}")
