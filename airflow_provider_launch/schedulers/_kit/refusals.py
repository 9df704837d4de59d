"""Refuses features that a scheduler does not declare, and apps with another definition, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from airflow_provider_launch.schedulers.capability import Capability
from airflow_provider_launch.schedulers.environment import FIELD_PATH
from airflow_provider_launch.schedulers.logs import Stream
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    InvalidAppError,
    SchedulerRejectedError,
    UnsupportedError,
)
from airflow_provider_launch.specs.macros import names_rank0
from airflow_provider_launch.specs.roles import AppDef, BindMount, DeviceMount, RetryPolicy, Role, VolumeMount
from airflow_provider_launch.specs.sentinels import NONE

_RETRIES = {
    RetryPolicy.REPLICA: Capability.REPLICA_RETRY,
    RetryPolicy.APPLICATION: Capability.APPLICATION_RETRY,
    RetryPolicy.ROLE: Capability.ROLE_RETRY,
}
_MOUNTS = {
    Capability.BIND_MOUNT: (BindMount, "mounts of directories of the host"),
    Capability.VOLUME_MOUNT: (VolumeMount, "mounts of volumes"),
    Capability.DEVICE_MOUNT: (DeviceMount, "mounts of devices"),
}


_PROGRAM_BYTES = 2 * 1024 * 1024
"""The kernel's limit for arguments and variables of a program: a quarter of its stack, which is 8 MiB by default."""
_POINTER_BYTES = 9
"""Bytes that each argument or variable needs in addition to its text: the terminator and a pointer."""


def refuse_unsupported(
    app: AppDef,
    backend: str,
    capabilities: frozenset[Capability],
    *,
    needs_image: bool,
    cures: Mapping[Capability, str],
) -> None:
    """Refuse features that are not in `capabilities`, roles without an image, and too large arguments and variables.

    `cures` are fixes for missing capabilities, where the general one is not the best.
    """
    for role in app.roles:
        if needs_image and role.image in {"", NONE}:
            raise InvalidAppError(f"role {role.name!r} has no image, which {backend!r} needs; name one")
        texts = (role.entrypoint or "", *role.args, *(f"{name}={value}" for name, value in role.env.items()))
        size = sum(len(text.encode("utf-8", "surrogatepass")) + _POINTER_BYTES for text in texts)
        if size > _PROGRAM_BYTES:
            raise InvalidAppError(
                f"role {role.name!r}: its arguments and variables have {size} bytes, the limit of Linux is "
                f"{_PROGRAM_BYTES}; put them into a file or the image, and pass its path"
            )
        policy = RetryPolicy(role.retry_policy)
        if role.max_retries and _RETRIES[policy] not in capabilities:
            offered = " or ".join(name.value for name, needed in _RETRIES.items() if needed in capabilities)
            raise UnsupportedError(
                f"role {role.name!r}: retry_policy {policy.value} is not offered by {backend!r}; "
                f"{f'use {offered}' if offered else 'leave max_retries out'}"
            )
        for capability, (kind, what) in _MOUNTS.items():
            if capability not in capabilities and any(isinstance(mount, kind) for mount in role.mounts):
                cure = cures.get(capability, "leave them out, or choose another scheduler")
                raise UnsupportedError(f"role {role.name!r}: {what} are not offered by {backend!r}; {cure}")
        for capability, what, is_used in _FIELDS:
            if capability not in capabilities and is_used(role, app.roles):
                cure = cures.get(capability, "leave it out, or choose another scheduler")
                raise UnsupportedError(f"role {role.name!r}: {what} is not offered by {backend!r}; {cure}")


def refuse_more_gpus(app: AppDef, offered: int, *, offer: str, cure: str) -> None:
    """Refuse an app whose roles need more GPUs than there are.

    `offer` names their owner and has a field for the number: `the connection of 'docker' offers {}`.
    """
    wanted = sum(max(role.resource.gpu, 0) * role.num_replicas for role in app.roles)
    for role in app.roles:
        if role.resource.gpu > 0 and wanted > offered:
            raise UnsupportedError(
                f"role {role.name!r}: resource.gpu={role.resource.gpu}, the app wants {wanted} GPUs, and "
                f"{offer.format(offered or 'none')}; {cure}"
            )


def refuse_requests(role: Role, backend: str) -> None:
    """Refuse reservations below the limits, for schedulers that reserve the limits."""
    for name in ("cpu_request", "memMB_request"):
        if getattr(role.resource, name) is not None:
            raise UnsupportedError(
                f"role {role.name!r}: resource.{name} is not offered by {backend!r}, which reserves the limit; leave "
                f"it out"
            )


def _uses_rank0(role: Role, roles: Iterable[Role]) -> bool:
    is_alone = sum(other.num_replicas for other in roles) == 1
    return not is_alone and names_rank0(role)


_FIELDS: tuple[tuple[Capability, str, Callable[[Role, Iterable[Role]], bool]], ...] = (
    (Capability.GPU, "resource.gpu", lambda role, _: role.resource.gpu > 0),
    (Capability.PORTS, "port_map", lambda role, _: bool(role.port_map)),
    (Capability.RANK0, "macros.rank0_env", _uses_rank0),
)


def refuse_other_spec(backend: str, app_id: str, expected: str, found: str | None) -> None:
    """Refuse to adopt an app whose spec hash is not the expected one: it has another definition."""
    if found != expected:
        raise AppConflictError(
            f"{backend!r} has an app {app_id!r} with another definition; nothing was started. "
            f"Choose another id, or delete that app first"
        )


def deleted_meanwhile(app_id: str) -> SchedulerRejectedError:
    """Return the error for an app that was deleted during its submission."""
    return SchedulerRejectedError(f"app {app_id!r} was deleted while it was submitted; nothing of it was started")


def refuse_separate_streams(backend: str, role_name: str, streams: Stream | None) -> None:
    """Refuse to read stdout or stderr alone, on schedulers that store both as one stream."""
    if streams not in {None, Stream.COMBINED}:
        raise ValueError(
            f"role {role_name!r}: {backend!r} stores stdout and stderr as one stream; use streams='combined' instead "
            f"of {streams.value!r}, or leave it out"
        )


def refuse_pod_fields(app: AppDef, scheduler: str) -> None:
    """Refuse variables that are a field of the pod, on schedulers without pods."""
    for role in app.roles:
        for name, text in role.env.items():
            if text.startswith(FIELD_PATH):
                raise UnsupportedError(
                    f"role {role.name!r}: variable {name} begins with {FIELD_PATH}, but {scheduler!r} has no pods "
                    f"whose field it could be; LAUNCH_APP_ID, LAUNCH_ROLE and LAUNCH_REPLICA_ID are there everywhere"
                )
