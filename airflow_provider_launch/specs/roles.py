"""Apps, roles, mounts, also as text, and retry policies.

These are plain dataclasses on purpose: users append to `role.args`, subclass `Role` and put templates into fields.
`specs.check` finds errors in them.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

# Imported at run time, because pydantic resolves the annotations of these dataclasses.
from airflow_provider_launch.specs.resources import LATER, Resource
from airflow_provider_launch.specs.sentinels import MISSING
from airflow_provider_launch.specs.workspaces import Workspace
from airflow_provider_launch.util.paths import expanded
from airflow_provider_launch.util.types import str_to_bool

if TYPE_CHECKING:
    from airflow_provider_launch.specs.dryrun import AppDryRunInfo

MAX_ROLES, MAX_REPLICAS = 1000, 10_000
"""Limits of one app. Each replica costs memory and time at every poll, so a typing error must not pass."""
MAX_ROLE_NAME = 1000
"""Maximum characters of the name of a role, which each replica repeats: in texts, positions and each line of a log."""


class RetryPolicy(str, Enum):
    """The replicas to restart when one fails: exits with non-zero, crashes, is preempted or evicted."""

    REPLICA = "REPLICA"
    """Only the failed replica."""
    APPLICATION = "APPLICATION"
    """The whole app."""
    ROLE = "ROLE"
    """All replicas of the role that has the failed one."""


class MountType(str, Enum):
    """The type of a mount in text and JSON."""

    BIND = "bind"
    VOLUME = "volume"
    DEVICE = "device"


@dataclass
class BindMount:
    """A path of the host, mounted at `dst_path` in the replica."""

    src_path: str
    dst_path: str
    read_only: bool = False


@dataclass
class VolumeMount:
    """A named volume of the scheduler, mounted at `dst_path` in the replica."""

    src: str
    dst_path: str
    read_only: bool = False


@dataclass
class DeviceMount:
    """A device of the host; `permissions` are any of r (read), w (write) and m (mknod)."""

    src_path: str
    dst_path: str
    permissions: str = "rwm"


Mount = BindMount | VolumeMount | DeviceMount


def _null_resource() -> Resource:
    # A new object for each role: filling in role.resource must not change NULL_RESOURCE.
    return Resource(cpu=-1, gpu=-1, memMB=-1)


@dataclass
class Role:
    """A group of equal replicas. Elements of `args`, values of `env` and texts in `metadata` may hold macros."""

    name: str
    """Its name in the app, in log lines and in `LAUNCH_ROLE`."""
    image: str
    """The software of a replica; the scheduler decides what it means: container image, directory, archive."""
    min_replicas: int | None = None
    """Lower bound of an elastic role. A scheduler without elastic roles refuses a number below `num_replicas`."""
    entrypoint: str | None = MISSING
    """The program that each replica runs. None runs the ENTRYPOINT of the image, and `args` follow it; without `args`
    also its CMD."""
    args: list[str] = field(default_factory=list)
    """Its arguments; they are not parsed by a shell."""
    # Not part of `repr`: Airflow stores the text of objects that it cannot serialize.
    env: dict[str, str] = field(default_factory=dict, repr=False)
    """Variables of each replica. Values may be secrets, so `repr` of a role leaves them out."""
    num_replicas: int = 1
    """The number of equal replicas."""
    max_retries: int = 0
    """Retries, not runs: 2 allows three runs."""
    retry_policy: RetryPolicy = RetryPolicy.APPLICATION
    """The replicas to restart when one fails."""
    resource: Resource = field(default_factory=_null_resource)
    """The resources that one replica needs."""
    port_map: dict[str, int] = field(default_factory=dict)
    """Ports by name; 0 means that the scheduler chooses one."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Notes for one scheduler or one tool, by key."""
    mounts: list[Mount] = field(default_factory=list)
    """Paths, volumes and devices that each replica sees."""
    workspace: Workspace | None = None
    """Local directories to copy into the replicas; if that is not possible, a warning is logged."""
    service: bool = field(default=False, metadata=LATER)
    """Whether the role only serves the others, such as a parameter server: stopped when all other roles succeeded."""
    torch_env: bool = field(default=False, metadata=LATER)
    """Whether its replicas are the processes of one PyTorch training: each gets `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
    so on, and torchrun its `PET_*`. Only for the first role, whose replica 0 is the master."""
    max_disruptions: int | None = field(default=None, metadata=LATER)
    """Restarts after a replica was taken away (its node was lost or drained, its pod evicted, its spot host reclaimed)
    that do not count as retries; later ones are failures. None: the options of the scheduler decide."""

    def pre_proc(self, scheduler: str, dryrun_info: AppDryRunInfo[Any]) -> AppDryRunInfo[Any]:  # noqa: ARG002 - for subclasses
        """Return the request to schedule; subclasses change the native request here."""
        return dryrun_info

    @property
    def base_image(self) -> None:
        """Deprecated, always None: images have no base image."""
        return None


_init = Role.__init__


@functools.wraps(_init)
def _init_with_base_image(self: Role, *args: Any, base_image: str | None = None, **kwargs: Any) -> None:
    # Not a field: it would be stored, compared and hashed, and subclasses with `__post_init__` would have to handle it.
    if base_image is not None:
        warnings.warn("Role.base_image is deprecated and ignored", DeprecationWarning, stacklevel=2)
    _init(self, *args, **kwargs)


Role.__init__ = _init_with_base_image  # type: ignore[method-assign]


@dataclass
class AppDef:
    """A distributed app: a name and its roles. Rank 0 is replica 0 of the first role."""

    name: str
    """The app id starts with it."""
    roles: list[Role] = field(default_factory=list)
    """At least one role, each with a different name."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Notes about the app, by key; `Runner.describe` returns them."""

    def __str__(self) -> str:
        # Airflow stores this text with the DAG, also for an invalid app: it is short and stable, leaves out
        # args and env (which may contain secrets), and must not fail.
        roles: object = self.roles
        listed = roles if isinstance(roles, list) else []
        shown = ", ".join(f"{getattr(role, 'name', '?')} x{getattr(role, 'num_replicas', '?')}" for role in listed)
        text = " ".join(f"AppDef({self.name}: {shown or 'no roles'})".split())
        return text.encode("utf-8", "backslashreplace").decode()


_MOUNT_SPELLINGS = {
    "type": "type",
    "src": "src",
    "source": "src",
    "dst": "dst",
    "destination": "dst",
    "target": "dst",
    "readonly": "readonly",
    "read_only": "readonly",
    "perm": "perm",
}


def parse_mounts(opts: list[str]) -> list[BindMount | VolumeMount | DeviceMount]:
    """Return the mounts that the elements `key` or `key=value` describe; each `type` element starts a new mount.

    `["type=bind", "src=~/data", "dst=/data", "readonly", "type=device", "src=/dev/fuse"]` gives two mounts.

    Raises:
        KeyError: an unknown option, an option before the first `type`, a missing source or destination.
        ValueError: an unknown type, permission or bool.
    """
    found: list[dict[str, str]] = []
    for opt in opts:
        key, equals, value = opt.partition("=")
        name = _MOUNT_SPELLINGS.get(key.strip())
        if name is None:
            raise KeyError(f"unknown mount option {key}; use one of {', '.join(_MOUNT_SPELLINGS)}")
        if name == "type":
            found.append({})
        elif not found:
            raise KeyError(f"type must be specified first, but the mount starts with {key}")
        found[-1][name] = value if equals or name != "readonly" else "true"
    return [_mount(options) for options in found]


def parse_mount(text: str) -> BindMount | VolumeMount:
    """Return the mount that a text such as `/path/of/host:/path` or `volume:/path:ro` describes.

    Raises:
        ValueError: the text has another form, or a relative folder, which would differ between workers.
    """
    source, *rest = text.split(":")
    if not source or len(rest) not in (1, 2) or not rest[0].startswith("/") or rest[1:] not in ([], ["ro"]):
        raise ValueError("must have the form /host:/path or volume:/path, with :ro to mount it read-only")
    is_read_only = len(rest) > 1
    if source.startswith("/"):
        return BindMount(source, rest[0], read_only=is_read_only)
    if "/" in source or source in (".", "..", "~"):
        raise ValueError(f"has the relative folder {source!r}; give its absolute path, or the name of a volume")
    return VolumeMount(source, rest[0], read_only=is_read_only)


def _mount(options: dict[str, str]) -> BindMount | VolumeMount | DeviceMount:
    kinds = [kind.value for kind in MountType]
    kind = options["type"]
    if kind not in kinds:
        raise ValueError(f"invalid mount type {kind!r}, must be one of {', '.join(kinds)}")
    src = _required(options, "src")
    read_only = str_to_bool(options.get("readonly", "false"))
    if kind == MountType.DEVICE.value:
        return DeviceMount(src_path=src, dst_path=options.get("dst") or src, permissions=_permissions(options))
    dst = _required(options, "dst")
    if kind == MountType.VOLUME.value:
        return VolumeMount(src=src, dst_path=dst, read_only=read_only)
    if src.startswith("~"):
        src = str(expanded(src))
    return BindMount(src_path=src, dst_path=dst, read_only=read_only)


def _required(options: dict[str, Any], name: str) -> str:
    if not options.get(name):
        given = ",".join(f"{key}={value}" for key, value in options.items())
        raise KeyError(f"mount {given} has no {name}; add it")
    return str(options[name])


def _permissions(options: dict[str, str]) -> str:
    permissions = options.get("perm", "rwm")
    if not permissions or set(permissions) - set("rwm"):
        raise ValueError(f"invalid mount permission {permissions!r}, must consist of r, w and m")
    return permissions
