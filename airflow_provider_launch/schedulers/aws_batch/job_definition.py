"""Takes the defaults of a launch from an existing job definition, without I/O.

The app registers its own definition all the same, because the first revision of that is its claim.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchOpts
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.sentinels import NONE

_OF_ROLE = {"image", "command", "environment", "resourceRequirements", "vcpus", "memory", "secrets"}
_OF_OPTION = {
    "jobRoleArn": "job_role_arn",
    "executionRoleArn": "execution_role_arn",
    "user": "user",
    "privileged": "privileged",
    "logConfiguration": "log_group",
}
"""Fields with an option; the option wins."""


def refuse_other_kinds(definition: Mapping[str, Any]) -> None:
    """Refuse a definition that is not that of a container.

    Raises:
        UnsupportedError: it is for several nodes, EKS, or several containers.
    """
    if not definition.get("containerProperties"):
        kind = definition.get("type", "container")
        raise UnsupportedError(
            f"job definition {shown(definition)!r} (type {kind!r}) has no containerProperties, so it cannot give "
            f"defaults; describe its nodes as roles, and leave option job_definition out"
        )


def refuse_unnamed_base(app: AppDef, cfg: Mapping[str, Any]) -> None:
    """Refuse to build a workspace on the image of a definition.

    A later revision may have another image, and a retry would then build another image and refuse its own app.

    Raises:
        InvalidAppError: a role with a workspace names no image.
    """
    for role in app.roles:
        if cfg.get("job_definition") and role.workspace and role.image in {"", NONE}:
            raise InvalidAppError(
                f"role {role.name!r} has a workspace but no image, and the image of option job_definition may change "
                f"between two tries; name the image on which the workspace is built"
            )


def shown(definition: Mapping[str, Any]) -> str:
    """Return the name of a definition with its revision."""
    return f"{definition['jobDefinitionName']}:{definition['revision']}"


def app_with_defaults(app: AppDef, definition: Mapping[str, Any]) -> AppDef:
    """Return the app, in which roles without image or resources have those of the definition."""
    container = definition["containerProperties"]
    return dataclasses.replace(app, roles=[_role(role, container) for role in app.roles])


def _role(role: Role, container: Mapping[str, Any]) -> Role:
    needs = {one["type"]: one["value"] for one in container.get("resourceRequirements") or []}
    own = role.resource
    resource = Resource(
        cpu=own.cpu if own.cpu > 0 else _whole(needs.get("VCPU", container.get("vcpus", -1))),
        gpu=own.gpu if own.gpu >= 0 else _whole(needs.get("GPU", -1)),
        memMB=own.memMB if own.memMB > 0 else _whole(needs.get("MEMORY", container.get("memory", -1))),
        capabilities=own.capabilities,
        devices=own.devices,
        tags=own.tags,
    )
    # A role's variables may contain macros, those of the definition are plain.
    given = {one["name"]: macros.escape(one.get("value", "")) for one in container.get("environment") or []}
    image = container["image"] if role.image in ("", NONE) else role.image
    return dataclasses.replace(role, image=image, resource=resource, env={**given, **role.env})


def _whole(value: Any) -> Any:
    """Return a number of the definition: Fargate has fractions of a CPU."""
    number = float(value)
    return int(number) if number.is_integer() else number


def options_with_defaults(opts: AwsBatchOpts, definition: Mapping[str, Any]) -> AwsBatchOpts:
    """Return the options, where those that are not set have the values of the definition."""
    container = definition["containerProperties"]
    rest = {
        name: copy.deepcopy(value)
        for name, value in container.items()
        if value not in (None, "", [], {}) and name not in _OF_ROLE and not _is_set(opts, name)
    }
    if opts.shm_size_mb and "linuxParameters" in rest:
        rest["linuxParameters"].pop("sharedMemorySize", None)
    secrets = {one["name"]: one["valueFrom"] for one in container.get("secrets") or []}
    platforms = definition.get("platformCapabilities") or ["EC2"]
    return dataclasses.replace(
        opts,
        job_definition=shown(definition),
        platform="FARGATE" if "FARGATE" in platforms else opts.platform,
        execution_role_arn=opts.execution_role_arn or container.get("executionRoleArn"),
        secrets={**secrets, **(opts.secrets or {})} or None,
        overlay={**rest, **(opts.overlay or {})} or None,
    )


def _is_set(opts: AwsBatchOpts, name: str) -> bool:
    option = _OF_OPTION.get(name)
    return option is not None and bool(getattr(opts, option))
