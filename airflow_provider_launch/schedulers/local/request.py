"""Builds the request for the local supervisor from an app, without I/O except for image directory and environment."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow_provider_launch.schedulers._kit.refusals import refuse_more_gpus
from airflow_provider_launch.schedulers._kit.request import NOT_STORED, StoredRequest, format_app, format_role
from airflow_provider_launch.schedulers.environment import (
    GPU_VARIABLES,
    RANK0_ENV,
    inherited_env,
    port_values,
    refuse_equal_port_variables,
    replica_env,
)
from airflow_provider_launch.schedulers.local import layout, leases
from airflow_provider_launch.schedulers.local.options import LocalOpts
from airflow_provider_launch.schedulers.spec_hash import spec_hash
from airflow_provider_launch.settings import IMAGE
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import AppDef, RetryPolicy, Role
from airflow_provider_launch.specs.secrets import masked_args, masked_env
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.workspace.files import WorkspaceFiles, digests, workspaces_of

log = logging.getLogger(__name__)

RANK0_HOST = "localhost"
INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR",
    "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "CUDA_PATH", "CUDA_HOME",
)  # fmt: skip
"""Variables that replicas inherit from the launcher. Others may contain secrets of the worker."""
LIMITS = "cpu and memory of the roles are not enforced by local processes"
FORMATTED_REPLICAS = 3
_STATE_BYTES, _REPLICA_BYTES, _ROLE_BYTES = 4096, 400, 100
"""Maximum bytes in the state of the app, of a replica, and of a role or port, in addition to the names."""


@dataclass(frozen=True)
class LocalReplica:
    """The fields that differ between the replicas of a role."""

    args: list[str]
    env: dict[str, str]


@dataclass(frozen=True)
class LocalRole:
    """A group of equal processes."""

    name: str
    entrypoint: str
    working_dir: str
    env: dict[str, str]
    """Inherited variables; the variables of a replica override them."""
    replicas: list[LocalReplica]
    policy: str
    max_retries: int
    gpu: int
    ports: dict[str, int]
    """Name to port; 0: the port is chosen when the app starts."""
    image: str
    service: bool = False

    @property
    def copied_env(self) -> dict[str, str]:
        """Variables of the launcher that the replicas inherit, under the name that other backends use."""
        return self.env


@dataclass
class LocalRequest(StoredRequest):
    """All that is needed to run the app, as it is written to `app.json`."""

    app_id: str
    name: str
    spec_hash: str
    grace_s: float
    time_limit_s: float | None
    log_max_mb: int | None
    roles: list[LocalRole]
    metadata: dict[str, Any] = field(default_factory=dict)
    log_dir: str | None = None
    """Directory that also gets the logs, by role and replica."""
    notes: list[str] = field(default_factory=list)
    """Notes about ignored fields of the app."""
    workspaces: dict[str, WorkspaceFiles] = field(default_factory=dict, metadata=NOT_STORED)
    """Name of a directory of the app to the files that are copied there at submission."""

    def copy_workspaces(self, directory: str) -> None:
        """Copy all workspaces below the directory of the app."""
        for name, files in self.workspaces.items():
            log.info("copying %s", files)
            try:
                files.copy_to(os.path.join(directory, name))
            except OSError as error:
                raise InvalidAppError(
                    f"{files} cannot be copied: {error.strerror} ({error.filename}); correct its permissions or make "
                    f"room, or exclude the file in .launchignore"
                ) from error


def _refuse_large_state(roles: list[LocalRole]) -> None:
    """Refuse an app whose state would be too large to be read again: it has the name of its role for each replica."""
    size = _STATE_BYTES
    for role in roles:
        name = len(json.dumps(role.name))
        size += (name + _REPLICA_BYTES) * len(role.replicas) + name + _ROLE_BYTES
        size += sum(name + len(json.dumps(port)) + _ROLE_BYTES for port in role.ports)
    if size > (most := layout.largest_state(sum(len(role.replicas) for role in roles))):
        raise InvalidAppError(
            f"the state of the app may have {size} bytes, but at most {most} are read; shorten the names of its roles "
            f"and ports"
        )


def build_request(
    app: AppDef,
    opts: LocalOpts,
    app_id: str,
    environ: Mapping[str, str],
    gpus: list[str],
    app_dir: str = "",
    *,
    backend: str = "local",
) -> LocalRequest:
    """Return the request for `app`, which is not changed; `gpus` are those of this host.

    `app_dir` is the future directory of the app, below which workspaces are copied.

    Raises:
        InvalidAppError: the image is not a directory, a workspace is missing or too large, or names are too long.
    """
    refuse_more_gpus(
        app,
        len(gpus),
        offer=f"{backend!r} has {{}} on {socket.gethostname()}",
        cure="lower it or choose another scheduler",
    )
    roles = []
    workspaces = workspaces_of(app.roles, opts.workspace_max_mb)
    ports = port_values(app.roles, lambda variable, port: str(port) if port else leases.port_mark(variable))
    python_env = _python_env(opts)
    for role in app.roles:
        _refuse_devices(role, backend)
        assert role.entrypoint is not None
        # A workspace replaces the image.
        image = os.path.join(app_dir, workspaces[role.workspace][0]) if role.workspace else _image_dir(role, backend)
        inherited = inherited_env(
            environ, [*INHERITED, *(opts.copy_env or [])], GPU_VARIABLES if role.resource.gpu > 0 else ()
        )
        path = [image, inherited.get("PATH", os.defpath)]
        inherited["PATH"] = os.pathsep.join(path if opts.prepend_cwd else reversed(path))
        if python_env:
            inherited["PATH"] = os.pathsep.join([os.path.join(python_env, "bin"), inherited["PATH"]])
            inherited["VIRTUAL_ENV"] = python_env
        elif role.image == IMAGE:
            inherited["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), inherited["PATH"]])
        roles.append(
            LocalRole(
                name=role.name,
                entrypoint=role.entrypoint,
                working_dir=os.path.join(image, os.path.expanduser(opts.working_dir or "")).rstrip("/") or "/",
                env=inherited,
                replicas=[_replica(role, k, image, app_id, ports) for k in range(role.num_replicas)],
                policy=RetryPolicy(role.retry_policy).value,
                max_retries=role.max_retries,
                gpu=max(role.resource.gpu, 0),
                ports=dict(role.port_map),
                image=image,
                service=role.service,
            )
        )
    refuse_equal_port_variables(app)
    _refuse_large_state(roles)
    return LocalRequest(
        app_id=app_id,
        name=app.name,
        spec_hash=spec_hash(app, opts, digests(workspaces)),
        grace_s=opts.grace_s,
        time_limit_s=opts.time_limit_s,
        log_max_mb=opts.log_max_mb,
        roles=roles,
        metadata=dict(app.metadata),
        workspaces=dict(workspaces.values()),
    )


RequestT = TypeVar("RequestT", bound=LocalRequest)


def request_from(document: Mapping[str, Any], kind: type[RequestT]) -> RequestT:
    """Return the request of this class from the result of `to_json`."""
    roles = [
        LocalRole(**{**role, "replicas": [LocalReplica(**replica) for replica in role["replicas"]]})
        for role in document["roles"]
    ]
    return kind(**{**document, "roles": roles})


def format_request(request: LocalRequest, limits: str = LIMITS) -> str:
    """Return the request as readable text, without inherited variables and with secrets masked."""
    detail = f", grace {request.grace_s:g} s"
    lines = [format_app(request.app_id, request.name, detail, request.time_limit_s)]
    lines += [f"copied to {name}: {files}" for name, files in request.workspaces.items()]
    for role in request.roles:
        details = [f"port {name}: {port or 'chosen at start'}" for name, port in role.ports.items()]
        if role.gpu:
            details.append(f"gpus per replica: {role.gpu}")
        lines += format_role(
            role.name,
            len(role.replicas),
            f"in {role.working_dir}",
            policy=role.policy,
            max_retries=role.max_retries,
            details=details,
            replica=functools.partial(_format_replica, role),
            shown=FORMATTED_REPLICAS,
        )
    if request.log_dir:
        lines.append(f"logs: {request.log_dir}")
    lines += request.notes
    lines.append(limits)
    return "\n".join(lines)


def _format_replica(role: LocalRole, k: int) -> str:
    replica = role.replicas[k]
    lines = [f"  [{k}] " + " ".join(map(_quoted, [role.entrypoint, *masked_args(replica.args)]))]
    lines += [f"      {name}={_quoted(value)}" for name, value in sorted(masked_env(replica.env).items())]
    return leases.show_marks("\n".join(lines))


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w@%+=:,./-]+", text, re.ASCII) else repr(text)


def _replica(role: Role, k: int, image: str, app_id: str, ports: Mapping[str, str]) -> LocalReplica:
    values = macros.Values(
        img_root=image, app_id=app_id, replica_id=str(k), rank0_env=RANK0_ENV, rank0_host=RANK0_HOST, ports=ports
    )
    # Not `values.apply(role)`, whose deep copy of the role would make a dry run of 1000 replicas slow.
    own = {name: values.substitute(text) for name, text in role.env.items()}
    return LocalReplica(
        args=[values.substitute(arg) for arg in role.args], env={**replica_env(app_id, role, k, RANK0_HOST), **own}
    )


def _python_env(opts: LocalOpts) -> str:
    """Return the absolute directory of the option; empty: it is not set."""
    if not opts.python_env:
        return ""
    path = os.path.abspath(os.path.expanduser(opts.python_env))
    if not os.path.isdir(os.path.join(path, "bin")):
        raise InvalidAppError(
            f"option python_env: {path!r} has no directory 'bin'; give the directory of an environment, such as "
            f"the one that `python -m venv` has created"
        )
    return path


def _refuse_devices(role: Role, backend: str) -> None:
    if role.resource.devices:
        raise UnsupportedError(
            f"role {role.name!r}: resource.devices ({', '.join(role.resource.devices)}) are not offered by "
            f"{backend!r}; leave them out"
        )


def _image_dir(role: Role, backend: str) -> str:
    # The default image of the built-in components has only what this host has: a shell, this Python and this package.
    if role.image in {"", NONE, IMAGE}:
        return os.getcwd()
    path = os.path.abspath(os.path.expanduser(role.image))
    if not os.path.isdir(path):
        raise InvalidAppError(
            f"role {role.name!r}: image {role.image!r} is not a directory of this host, which {backend!r} needs as "
            f"image; name one, or leave it empty for the current directory"
        )
    return path
