"""The definition of a job: takes defaults from an existing one, and builds its containers, without I/O.

The app registers its own definition all the same, because the first revision of that is its claim.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers._kit.request import assign_ports
from airflow_provider_launch.schedulers.aws_batch.naming import mark
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchOpts
from airflow_provider_launch.schedulers.aws_batch.wrapper import RANK0, REPLICA, Script, is_for_node
from airflow_provider_launch.schedulers.devices import get_device_mounts
from airflow_provider_launch.schedulers.environment import RANK0_ENV, port_values, replica_env
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.named_resources_aws import K8S_ITYPE
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.specs.roles import AppDef, BindMount, DeviceMount, Role, VolumeMount
from airflow_provider_launch.specs.sentinels import NONE

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.aws_batch.request import AwsBatchRequest

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
    """Refuse a definition that is not that of a container, but for several nodes, EKS, or several containers."""
    if not definition.get("containerProperties"):
        kind = definition.get("type", "container")
        raise UnsupportedError(
            f"job definition {shown(definition)!r} (type {kind!r}) has no containerProperties, so it cannot give "
            f"defaults; describe its nodes as roles, and leave option job_definition out"
        )


def refuse_unnamed_base(app: AppDef, cfg: Mapping[str, Any]) -> None:
    """Refuse to build a workspace for a role without an image, on the image of a definition.

    A later revision may have another image, and a retry would then build another image and refuse its own app.
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


AWSLOGS = "awslogs"
_MAIN_NODE = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
"""Not set on the main node itself; there the script sets `RANK0_ENV`."""
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = {"command", "image", "environment", "resourceRequirements"}
"""Fields that the launcher sets itself; an overlay must not replace them."""


def container_properties(
    request: AwsBatchRequest, role: Role, first: int, attempt: int, replica: int | None = None
) -> dict[str, Any]:
    """Return `containerProperties` of a role, or of one replica.

    `first` is the number of the first node of the role in a multi-node job; `replica` that of the only replica with
    these properties, None for all.
    """
    opts, layout = request.opts, request.layout
    if replica is None and role.num_replicas == 1:
        replica = 0
    shell = uses_shell(role, opts)
    rank0_env = RANK0_ENV if shell or layout == "single" else _MAIN_NODE
    replica_id = REPLICA if replica is None else str(replica)
    # Nodes have their own addresses; a single job may share the ports of its host.
    ports = assign_ports(request.app_def, int(hashlib.sha256(request.app_id.encode()).hexdigest()[:8], 16))
    values = macros.Values(
        img_root="",
        app_id=request.app_id,
        replica_id=replica_id,
        rank0_env=rank0_env,
        rank0_host="localhost" if layout == "single" else RANK0,
        ports=port_values(request.app_def.roles, lambda variable, _: str(ports[variable])),
    )
    env = _env(request, role, values, ports, attempt)
    if not shell and replica is not None:
        env["LAUNCH_REPLICA_ID"] = replica_id
    args = [values.substitute(arg) for arg in role.args]
    odd = {name: text for name, text in env.items() if shell and not _SHELL_NAME.fullmatch(name)}
    if shell and role.entrypoint is not None:
        index = {"single": "0", "array": "AWS_BATCH_JOB_ARRAY_INDEX"}.get(layout, f"AWS_BATCH_JOB_NODE_INDEX-{first}")
        is_first = role is request.app_def.roles[0]
        script = Script(
            mark=mark(request.app_id),
            index=index,
            # Batch drops variables without a value.
            exports={name: text for name, text in env.items() if name not in odd and (is_for_node(text) or not text)},
            odd_env=odd,
            working_dir=request.role_opts[role.name].working_dir,
            has_result=is_first and has_log_result(request.app_def, opts),
            counts_attempts=layout != "multi-node",
            is_node=layout == "multi-node",
            linger_s=opts.linger_s if layout == "multi-node" and is_first else 0,
        )
        command = script.command(role.entrypoint, args)
    else:
        # Batch has no field for an entrypoint: it appends the command to the ENTRYPOINT of the image.
        command = args if role.entrypoint is None else [role.entrypoint, *args]
        if empty := [name for name in role.env if not env[name]]:
            raise UnsupportedError(
                f"role {role.name!r}: env: {empty[0]!r} is empty, and 'aws_batch' drops variables without a value; "
                f"leave it out, or let `sh` start a program (option shell, with an entrypoint), which sets it"
            )
        if any(is_for_node(text) for text in (*args, *env.values())):
            raise UnsupportedError(
                f"role {role.name!r}: torch_env, macros.replica_id and macros.rank0_host need `sh` in the image on "
                f"'aws_batch', but {no_shell(role)}; read AWS_BATCH_JOB_ARRAY_INDEX instead, {_shell_cure(role)}, or "
                f"use layout='multi-node' for up to five replicas"
            )
    body: dict[str, Any] = {
        "image": role.image,
        "command": command,
        "environment": [
            {"name": name, "value": text}
            for name, text in env.items()
            if text and not is_for_node(text) and name not in odd
        ],
        "resourceRequirements": _resources(role, opts),
        **_options(role, request.role_opts[role.name]),
    }
    return _merged(body, opts.overlay or {}) if opts.overlay else body


def _env(
    request: AwsBatchRequest, role: Role, values: macros.Values, ports: Mapping[str, int], attempt: int
) -> dict[str, str]:
    known = replica_env(request.app_id, role, 0, "localhost")
    own = {name: known.pop(name) for name in ("LAUNCH_REPLICA_ID", RANK0_ENV)}
    env = {**request.copied_env, **known, **{name: str(port) for name, port in ports.items()}}
    if request.layout == "single":
        env |= own  # in other layouts they are known on the node only
    if (prefix := request.opts.result_prefix) and role is request.app_def.roles[0]:
        # Without `sh` the children of an array do not get their numbers, so they share the address of the first one.
        knows_number = uses_shell(role, request.opts) or values.replica_id != REPLICA
        env["LAUNCH_RESULT_S3"] = result_address(prefix, request.app_id, values.replica_id if knows_number else 0)
    if request.layout == "multi-node":
        env["LAUNCH_ATTEMPT"] = str(attempt)
    for name, text in role.env.items():
        if name.startswith("AWS_BATCH"):
            raise InvalidAppError(f"role {role.name!r}: AWS Batch does not accept a variable {name!r}; rename it")
        env[name] = values.substitute(text)
    return env


def log_driver(opts: AwsBatchOpts) -> str:
    """Return the log driver of containers."""
    return str(((opts.overlay or {}).get("logConfiguration") or {}).get("logDriver", AWSLOGS))


def uses_shell(role: Role, opts: AwsBatchOpts) -> bool:
    """Return whether a script starts the program; it does not know the ENTRYPOINT of an image."""
    return opts.shell and role.entrypoint is not None


def no_shell(role: Role) -> str:
    """Return why no script starts the program of a role."""
    return "entrypoint is None" if role.entrypoint is None else "option shell is False"


def _shell_cure(role: Role) -> str:
    return "name the program in entrypoint" if role.entrypoint is None else "leave shell out"


def has_log_result(app: AppDef, opts: AwsBatchOpts) -> bool:
    """Return whether the result of the first role is read from the log."""
    return uses_shell(app.roles[0], opts) and not opts.result_prefix and log_driver(opts) == AWSLOGS


def result_address(prefix: str, app_id: str, replica: int | str) -> str:
    """Return the S3 address of the result of a replica."""
    return f"{prefix.rstrip('/')}/{app_id}/{replica}"


def size_of(resource: Resource, opts: AwsBatchOpts) -> tuple[float, int]:
    """Return the vCPUs and the memory in MiB of a replica; AWS Batch requires both, and whole vCPUs on EC2."""
    cpu = max(resource.cpu, 0) or 1
    return cpu if opts.platform == "FARGATE" else math.ceil(cpu), max(resource.memMB, 0) or 2048


def _resources(role: Role, opts: AwsBatchOpts) -> list[dict[str, str]]:
    cpu, mem_mb = size_of(role.resource, opts)
    found = {"VCPU": cpu, "MEMORY": mem_mb, "GPU": max(role.resource.gpu, 0)}
    return [{"type": kind, "value": str(value)} for kind, value in found.items() if value]


def _options(role: Role, opts: AwsBatchOpts) -> dict[str, Any]:
    """Return the fields that have a value."""
    network = {"assignPublicIp": "ENABLED" if opts.assign_public_ip else "DISABLED"}
    logs = {"logDriver": "awslogs", "options": {"awslogs-group": opts.log_group}}
    instance_type = role.resource.capabilities.get(K8S_ITYPE)
    fields = {
        "linuxParameters": _linux(role, opts),
        **_mounts(role),
        "jobRoleArn": opts.job_role_arn,
        "executionRoleArn": opts.execution_role_arn,
        "user": opts.user,
        "privileged": opts.privileged,
        "secrets": [{"name": name, "valueFrom": arn} for name, arn in (opts.secrets or {}).items()],
        "logConfiguration": logs if opts.log_group else None,
        "networkConfiguration": network if opts.platform == "FARGATE" else None,
        "instanceType": str(instance_type) if instance_type else None,
    }
    return {name: value for name, value in fields.items() if value}


def _linux(role: Role, opts: AwsBatchOpts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if opts.init:
        found["initProcessEnabled"] = True
    if opts.shm_size_mb:
        found["sharedMemorySize"] = opts.shm_size_mb
    devices = [mount for mount in role.mounts if isinstance(mount, DeviceMount)]
    if devices := [*devices, *get_device_mounts(role.resource.devices)]:
        found["devices"] = [_device(device) for device in devices]
    return found


def _mounts(role: Role) -> dict[str, Any]:
    mounts = [mount for mount in role.mounts if isinstance(mount, (BindMount, VolumeMount))]
    return {
        "volumes": [_volume(n, mount) for n, mount in enumerate(mounts)],
        "mountPoints": [
            {"sourceVolume": f"volume-{n}", "containerPath": mount.dst_path, "readOnly": mount.read_only}
            for n, mount in enumerate(mounts)
        ],
    }


def _device(device: DeviceMount) -> dict[str, Any]:
    names = {"r": "READ", "w": "WRITE", "m": "MKNOD"}
    return {
        "hostPath": device.src_path,
        "containerPath": device.dst_path,
        "permissions": [names[letter] for letter in device.permissions],
    }


def _volume(number: int, mount: BindMount | VolumeMount) -> dict[str, Any]:
    if isinstance(mount, BindMount):
        return {"name": f"volume-{number}", "host": {"sourcePath": mount.src_path}}
    file_system, _, folder = mount.src.partition(":")
    efs: dict[str, Any] = {"fileSystemId": file_system, "transitEncryption": "ENABLED"}
    if folder:
        efs["rootDirectory"] = folder
    return {"name": f"volume-{number}", "efsVolumeConfiguration": efs}


def _merged(body: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    if taken := sorted(_OURS & set(overlay)):
        raise InvalidAppError(
            f"option overlay: {', '.join(taken)} is set by the launcher; set it in the role, and leave it out here"
        )
    found = copy.deepcopy(dict(body))
    for key, value in overlay.items():
        old = found.get(key)
        found[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else copy.deepcopy(value)
    return found
