"""Builds the bodies of an app's containers, without I/O."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.schedulers._kit.naming import refuse_own_labels, task_labels
from airflow_provider_launch.schedulers._kit.overlays import overlays_of, patched, plain, refuse_changes
from airflow_provider_launch.schedulers._kit.refusals import refuse_more_gpus
from airflow_provider_launch.schedulers._kit.request import (
    NOT_STORED,
    AppRequest,
    RoleRequest,
    assign_ports,
    common_fields,
    format_app,
    format_role,
    is_seconds,
    options_by_role,
    request_from_json,
)
from airflow_provider_launch.schedulers.devices import KNOWN_DEVICES, get_device_mounts
from airflow_provider_launch.schedulers.docker import naming
from airflow_provider_launch.schedulers.docker.containers import readable
from airflow_provider_launch.schedulers.docker.naming import Kind, Label
from airflow_provider_launch.schedulers.docker.options import APP_NETWORK, SHARED_NETWORK, DockerOpts
from airflow_provider_launch.schedulers.environment import (
    RANK0_ENV,
    port_values,
    refuse_equal_port_variables,
    replica_env,
)
from airflow_provider_launch.schedulers.spec_hash import spec_hash
from airflow_provider_launch.schedulers.structured_opts import ImageWorkspaceOpts
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.macros import macros, names_rank0
from airflow_provider_launch.specs.owner import owner_text
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.specs.roles import AppDef, BindMount, DeviceMount, Role, VolumeMount
from airflow_provider_launch.specs.secrets import masked_document, masked_env, masked_text
from airflow_provider_launch.util.untrusted import UntrustedError, parse_json

RESULT_PATH = "/tmp/launch-result.json"  # noqa: S108 - in the container, which has no other users
ERROR_PATH = "/tmp/launch-error.json"  # noqa: S108 - the same
OVERLAY_KIND = "Container"
"""Kind of the overlay of the body that creates a container, in the engine's API."""
_OF_OPTION = "option"
"""Key of the overlay of the option in a request; it is applied first."""
REQUEST_ENV = "LAUNCH_REQUEST"
"""Variable of the record container with the request. Not a label, because lists of containers repeat labels."""
_GIVEN = ("HOSTNAME",)
"""Variables that the engine sets in containers; other replicas find a replica by its host name."""
_OF_APP = frozenset(
    {
        "pull",
        "platform",
        "network",
        "labels",
        "grace_s",
        "on_outside_stop",
        "time_limit_s",
        *(item.name for item in dataclasses.fields(ImageWorkspaceOpts)),
    }
)
"""Options that cannot differ between roles."""
_LEAST_CPUS = 0.01
_MB = 1024 * 1024
_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])"
_NAME = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_TAG = r"(?::\w[\w.-]{0,127})?"
_DIGEST = r"(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
# Newer engines also recognize a registry by its capital letters.
_REGISTRY = rf"(?:(?=[^/]*[.:A-Z][^/]*/|localhost/){_HOST}(?::[0-9]+)?/)?"
_IMAGE = re.compile(rf"{_REGISTRY}{_NAME}(?:/{_NAME})*{_TAG}{_DIGEST}|sha256:[0-9a-f]{{12,64}}", re.ASCII)
"""Valid image names: the grammar of the distribution project, which all engines use."""
_MAX_REQUEST, _MAX_DEPTH = 256 * _MB, 500
NO_NETWORK, HOST_NETWORK = "none", "host"
NAMELESS = {NO_NETWORK, HOST_NETWORK, "bridge", "default"}
"""Docker's own networks, in which containers cannot reach each other by name."""


@dataclass
class DockerRole(RoleRequest):
    """A group of equal containers."""

    gpu: int
    """GPUs of each replica."""
    body: dict[str, Any]
    """Fields that all containers of the role share, in the engine's API."""
    overlays: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Kind of overlay to its patch of the request body."""


@dataclass
class DockerRequest(AppRequest[DockerRole]):
    """All that is needed to run the app, as it is stored in the record container."""

    pull: str
    platform: str | None
    network: str
    """Name of the network; created if missing and `own_network` is set."""
    own_network: bool
    rank0_host: str
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of the task and of the user."""
    on_outside_stop: str = "fail"
    gpus: dict[str, list[str]] = field(default_factory=dict)
    """`role/replica` to its GPUs; chosen when the app is submitted."""
    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict, metadata=NOT_STORED)
    """Workspace image to the (repository, tag) to which it is pushed when the app is submitted."""


def build_request(
    app: AppDef, opts: DockerOpts, app_id: str, environ: Mapping[str, str], gpus: Sequence[str]
) -> DockerRequest:
    """Return the request for `app`, which is not changed; `gpus` are those of the engine's host.

    Refuses features that Docker lacks, invalid images, and roles or ports that cannot be distinguished.
    """
    refuse_equal_port_variables(app)
    refuse_own_labels("option labels", opts.labels)
    refuse_more_gpus(
        app,
        len(gpus),
        offer="the connection of 'docker' offers {}",
        cure="lower it, or list the host's GPUs in 'gpus' of a connection of type launch_docker",
    )
    network = _network(app, opts, app_id)
    role_opts = options_by_role(app, opts, _OF_APP)
    _refuse_unreachable_rank0(app, network)
    slugs = naming.role_slugs([role.name for role in app.roles])
    roles = []
    for role, role_slug in zip(app.roles, slugs, strict=True):
        _refuse_unsupported(role, network)
        _refuse_no_image(role)
        roles.append(
            DockerRole(
                **common_fields(role, role_slug, environ, role_opts[role.name].copy_env, _GIVEN),
                gpu=max(role.resource.gpu, 0),
                body=_common_body(role, role_opts[role.name], network),
                overlays=_overlays(role, role_opts[role.name]),
            )
        )
    alone = network in NAMELESS
    return DockerRequest(
        app_id=app_id,
        name=app.name,
        spec_hash=spec_hash(app, opts),
        pull=opts.pull,
        platform=opts.platform,
        network=network,
        own_network=network in {SHARED_NETWORK, app_id},
        labels={**task_labels(app.metadata), **(opts.labels or {})},
        on_outside_stop=opts.on_outside_stop,
        rank0_host="localhost" if alone else naming.alias(app_id, slugs[0], 0),
        ports=assign_ports(app),
        time_limit_s=opts.time_limit_s,
        roles=roles,
        app=app_to_dict(app),
    )


def request_from(document: Mapping[str, Any]) -> DockerRequest:
    """Return the request from the result of `to_json`."""
    request = request_from_json(DockerRequest, DockerRole, document)
    for role in request.roles:
        # Their containers could not be stopped: a stop reads the grace time.
        if not isinstance(role.body["Image"], str) or not _is_grace(role.body["StopTimeout"]):
            raise UntrustedError("an image or a grace time has another type")
    return request


def _is_grace(value: object) -> bool:
    return value is not None and is_seconds(value)


def request_in(record: Mapping[str, Any]) -> DockerRequest:
    """Return the request from the inspection of the record container."""
    prefix = f"{REQUEST_ENV}="
    with readable("the record of the app"):
        text = next((item for item in record["Config"]["Env"] or [] if item.startswith(prefix)), prefix)
        return request_from(parse_json(text[len(prefix) :], _MAX_REQUEST, _MAX_DEPTH))


def record_body(request: DockerRequest) -> dict[str, Any]:
    """Return the body of the container that is the record of the app. It is never started."""
    labels = {**_labels(request, Kind.APP), Label.NAME: request.app_id, Label.APP_NAME: request.name}
    if owner := owner_text(request.app.get("metadata") or {}):
        labels[Label.OWNER] = owner
    if request.gpus:
        labels[Label.GPUS] = ",".join(device for devices in request.gpus.values() for device in devices)
    return _inert_body(request.roles[0].body["Image"], labels, [f"{REQUEST_ENV}={json.dumps(request.to_json())}"])


def mark_body(image: str, app_id: str, mark: str, **labels: str) -> dict[str, Any]:
    """Return the body of a mark. It is never started."""
    name = naming.mark_name(app_id, mark)
    own = {Label.MANAGED: "true", Label.KIND: Kind.MARK, Label.APP_ID: app_id, Label.NAME: name, Label.MARK: mark}
    return _inert_body(image, {**naming.UNSET, **own, **labels}, [])


def container_body(request: DockerRequest, role: DockerRole, k: int, app_attempt: int, attempt: int) -> dict[str, Any]:
    """Return the request body that creates one attempt of one replica."""
    values = _values(request, k)
    body = _own_body(request, role, k, app_attempt, attempt, values)
    body = patched(body, role.overlays.get(_OF_OPTION, {}), values, f"role {role.name!r}: option overlay")
    return patched(body, role.overlays.get(OVERLAY_KIND, {}), values, f"role {role.name!r}: overlay {OVERLAY_KIND}")


def _overlays(role: Role, opts: DockerOpts) -> dict[str, dict[str, Any]]:
    found = overlays_of(role, "docker", (OVERLAY_KIND,))
    if opts.overlay:
        found[_OF_OPTION] = plain(opts.overlay, f"role {role.name!r}: option overlay")
    return found


def _values(request: DockerRequest, k: int) -> macros.Values:
    return macros.Values(
        img_root="",
        app_id=request.app_id,
        replica_id=str(k),
        rank0_env=RANK0_ENV,
        rank0_host=request.rank0_host,
        ports=port_values(request.app_def.roles, lambda variable, _: str(request.ports[variable])),
    )


def refuse_broken_overlays(request: DockerRequest) -> None:
    """Refuse overlays that do not fit, or that change fields which the launcher itself sets."""
    for role in request.roles:
        if not role.overlays:
            continue
        values = _values(request, 0)
        before, after = _own_body(request, role, 0, 0, 0, values), container_body(request, role, 0, 0, 0)
        what = f"role {role.name!r}: {'overlay ' + OVERLAY_KIND if OVERLAY_KIND in role.overlays else 'option overlay'}"
        refuse_changes(before, after, ("Image", "Entrypoint", "Cmd", "StopTimeout", "NetworkingConfig"), what)
        host = (before["HostConfig"], after.get("HostConfig") or {})
        refuse_changes(*host, ("NetworkMode", "RestartPolicy", "AutoRemove"), f"{what}.HostConfig")
        refuse_changes(before["Labels"], after.get("Labels") or {}, before["Labels"], f"{what}.Labels")
        variables = after.get("Env") or []
        if wrong := [item for item in variables if not isinstance(item, str)]:
            raise InvalidAppError(f"{what}.Env has {wrong[0]!r}, which is not text; write 'NAME=value'")
        env = dict(item.split("=", 1) for item in variables if "=" in item)
        ours = dict(item.split("=", 1) for item in before["Env"])
        refuse_changes(ours, env, ours, f"{what}.Env")


def _own_body(
    request: DockerRequest, role: DockerRole, k: int, app_attempt: int, attempt: int, values: macros.Values
) -> dict[str, Any]:
    env = {
        **role.copied_env,
        **replica_env(request.app_id, role, k, request.rank0_host),
        "LAUNCH_ATTEMPT": str(max(app_attempt, attempt)),
        "TORCHELASTIC_ERROR_FILE": ERROR_PATH,
        **{variable: str(port) for variable, port in request.ports.items()},
        **{name: values.substitute(text) for name, text in role.env.items()},
    }
    if role is request.roles[0]:
        env["LAUNCH_RESULT_PATH"] = RESULT_PATH
    body = copy.deepcopy(role.body)
    if role.entrypoint is not None:
        # Without the field Docker runs the ENTRYPOINT of the image; an empty list would remove it.
        body["Entrypoint"] = [role.entrypoint]
    body["Cmd"] = [values.substitute(arg) for arg in role.args]
    body["Env"] = [f"{name}={value}" for name, value in env.items()]
    body["Labels"] = {
        **_labels(request, Kind.REPLICA),
        Label.NAME: naming.container_name(request.app_id, role.slug, k, app_attempt, attempt),
        Label.ROLE: role.name,
        Label.REPLICA: str(k),
        Label.APP_ATTEMPT: str(app_attempt),
        Label.ATTEMPT: str(attempt),
    }
    if request.network != HOST_NETWORK:
        # So that a program which publishes its host name can be reached by it.
        body["Hostname"] = naming.alias(request.app_id, role.slug, k)
    if request.network not in NAMELESS:
        names = [naming.alias(request.app_id, role.slug, k)]
        body["NetworkingConfig"] = {"EndpointsConfig": {request.network: {"Aliases": names}}}
    if devices := request.gpus.get(f"{role.name}/{k}"):
        # In addition to the record, because a prune removes the record, but not a running container.
        body["Labels"][Label.GPUS] = ",".join(devices)
        # A count would give devices 0..n-1 to every container.
        body["HostConfig"]["DeviceRequests"] = [{"DeviceIDs": devices, "Capabilities": [["gpu"]]}]
    return body


def format_request(request: DockerRequest) -> str:
    """Return the request as readable text, with secrets masked."""
    detail = f" on network {request.network}, pull {request.pull}"
    lines = [format_app(request.app_id, request.name, detail, request.time_limit_s)]
    for role in request.roles:
        lines += format_role(
            role.name,
            role.num_replicas,
            masked_text(role.body["Image"]),
            policy=role.policy,
            max_retries=role.max_retries,
            details=[f"gpus per replica: {role.gpu}, chosen when it is submitted"] if role.gpu else [],
            replica=functools.partial(_format_replica, request, role),
        )
    return "\n".join(lines)


def _format_replica(request: DockerRequest, role: DockerRole, k: int) -> str:
    body = container_body(request, role, k, 0, 0)
    env = dict(item.split("=", 1) for item in body["Env"])
    body["Env"] = [f"{name}={value}" for name, value in masked_env(env).items()]
    name = naming.container_name(request.app_id, role.slug, k, 0, 0)
    text = json.dumps(masked_document(body), indent=2, ensure_ascii=False, default=str)
    return f"POST /containers/create?name={name}\n{text}"


# ---- parts of a body -------------------------------------------------------------------------------------------------


def _labels(request: DockerRequest, kind: str) -> dict[str, str]:
    services = [role.name for role in request.app_def.roles if role.service]
    plan = {
        "roles": [[role.name, role.num_replicas, role.policy, role.max_retries] for role in request.roles],
        "time_limit_s": request.time_limit_s,
        **({"own_network": True} if request.network == request.app_id else {}),
        **({"services": services} if services else {}),
        **({"accepts_stop": True} if request.on_outside_stop == "accept" else {}),
    }
    return {
        **naming.UNSET,
        **request.labels,
        Label.MANAGED: "true",
        Label.KIND: kind,
        Label.APP_ID: request.app_id,
        Label.SPEC_HASH: request.spec_hash,
        # On each container, because a prune removes the record, and the state must still be readable.
        Label.PLAN: json.dumps(plan, separators=(",", ":")),
    }


def _inert_body(image: str, labels: dict[str, str], env: list[str]) -> dict[str, Any]:
    # The engine needs a command at creation, also for an image without one.
    return {"Image": image, "Cmd": ["true"], "Env": env, "Labels": labels, "HostConfig": {"NetworkMode": NO_NETWORK}}


def _common_body(role: Role, opts: DockerOpts, network: str) -> dict[str, Any]:
    host: dict[str, Any] = {
        "NetworkMode": network,
        # Observers count retries, because the engine's own counter is reset when the engine restarts.
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Init": opts.init,
        "Privileged": opts.privileged,
        "LogConfig": {
            "Type": "json-file",
            "Config": {"max-size": f"{opts.log_max_mb}m", "max-file": str(opts.log_max_files)},
        },
    }
    host |= _resources(role.resource)
    if opts.shm_size_mb:
        host["ShmSize"] = opts.shm_size_mb * _MB
    if opts.extra_hosts:
        host["ExtraHosts"] = [f"{name}:{address}" for name, address in opts.extra_hosts.items()]
    if opts.ulimits:
        host["Ulimits"] = [_ulimit(name, limits) for name, limits in opts.ulimits.items()]
    if mounts := [_mount(mount) for mount in role.mounts if not isinstance(mount, DeviceMount)]:
        host["Mounts"] = mounts
    devices = [mount for mount in role.mounts if isinstance(mount, DeviceMount)]
    if devices := [*devices, *get_device_mounts(role.resource.devices)]:
        host["Devices"] = [
            {
                "PathOnHost": device.src_path,
                "PathInContainer": device.dst_path,
                "CgroupPermissions": device.permissions,
            }
            for device in devices
        ]
    body: dict[str, Any] = {
        "Image": role.image,
        # So that a manual `docker stop` uses the same grace time.
        "StopTimeout": math.ceil(opts.grace_s),
        "HostConfig": host,
    }
    if opts.user:
        body["User"] = opts.user
    if opts.working_dir:
        body["WorkingDir"] = opts.working_dir
    return body


def _resources(resource: Resource) -> dict[str, int]:
    found = {}
    if resource.cpu > 0:
        found["NanoCpus"] = math.ceil(round(resource.cpu * 1_000_000_000, 3))
    if resource.memMB > 0:
        found["Memory"] = resource.memMB * _MB
    if resource.cpu_request:
        # As Kubernetes translates a request: a share that counts only while CPUs are scarce; 2 is the minimum.
        found["CpuShares"] = max(2, math.ceil(resource.cpu_request * 1024))
    if resource.memMB_request:
        found["MemoryReservation"] = resource.memMB_request * _MB
    return found


def _network(app: AppDef, opts: DockerOpts, app_id: str) -> str:
    if opts.network is None:
        alone = sum(role.num_replicas for role in app.roles) == 1
        return "bridge" if alone else SHARED_NETWORK
    if opts.network == APP_NETWORK and app_id in {*NAMELESS, SHARED_NETWORK}:
        raise InvalidAppError(
            f"app {app_id!r} cannot have its own network, because that name is reserved; choose another id"
        )
    return app_id if opts.network == APP_NETWORK else opts.network


def _mount(mount: BindMount | VolumeMount) -> dict[str, Any]:
    if isinstance(mount, BindMount):
        return {"Type": "bind", "Source": mount.src_path, "Target": mount.dst_path, "ReadOnly": mount.read_only}
    return {"Type": "volume", "Source": mount.src, "Target": mount.dst_path, "ReadOnly": mount.read_only}


def _ulimit(name: str, limits: str) -> dict[str, Any]:
    soft, _, hard = str(limits).partition(":")
    try:
        return {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}
    except ValueError:
        raise InvalidAppError(
            f"option ulimits: {name}={limits!r} is neither 'soft:hard' nor a number; write e.g. '1024:4096'"
        ) from None


# ---- refusals --------------------------------------------------------------------------------------------------------


def _refuse_unreachable_rank0(app: AppDef, network: str) -> None:
    several = sum(role.num_replicas for role in app.roles) > 1
    if not several or network not in NAMELESS - {"host"}:
        return
    for role in app.roles:
        if names_rank0(role):
            raise UnsupportedError(
                f"role {role.name!r} uses macros.rank0_env, but on network {network!r} of 'docker' replicas cannot "
                f"reach each other by name; use the network 'launch' or 'app'"
            )


def _refuse_no_image(role: Role) -> None:
    # Newer engines respond to an invalid name with "No such image".
    if not _IMAGE.fullmatch(role.image):
        raise InvalidAppError(
            f"role {role.name!r}: image {role.image!r} is not a valid image name; write name:tag or "
            f"registry/name:tag, with lower-case letters in the name"
        )


def _refuse_unsupported(role: Role, network: str) -> None:
    if 0 < role.resource.cpu < _LEAST_CPUS:
        raise InvalidAppError(
            f"role {role.name!r}: resource.cpu={role.resource.cpu:g} is less than {_LEAST_CPUS}, the minimum of "
            f"'docker'; raise it, or use -1 for no limit"
        )
    unknown = [name for name in role.resource.devices if name not in KNOWN_DEVICES]
    if unknown:
        raise UnsupportedError(
            f"role {role.name!r}: resource.devices ({', '.join(unknown)}) have no device files known to 'docker'; "
            f"mount them as DeviceMount"
        )
    if network == "host" and 0 in role.port_map.values():
        raise UnsupportedError(
            f"role {role.name!r}: on network 'host' of 'docker' a free port cannot be chosen; "
            f"set a fixed port in port_map, or use the network 'launch'"
        )
