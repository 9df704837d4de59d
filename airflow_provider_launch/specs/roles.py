"""What is launched: an app, its roles, and what a replica of a role is made of.

These are plain dataclasses on purpose: people append to `role.args`, subclass `Role` and put templates into fields.
`specs.check` finds what is wrong with them.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

# Needed at run time: pydantic resolves the annotations of these dataclasses.
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.specs.sentinels import MISSING
from airflow_provider_launch.specs.workspaces import Workspace

if TYPE_CHECKING:
    from airflow_provider_launch.specs.dryrun import AppDryRunInfo

__all__ = [
    "MAX_REPLICAS",
    "MAX_ROLES",
    "AppDef",
    "BindMount",
    "DeviceMount",
    "Mount",
    "MountType",
    "RetryPolicy",
    "Role",
    "VolumeMount",
]

MAX_ROLES, MAX_REPLICAS = 1000, 10_000
"""Of one app. Each takes memory and time wherever the app is shown or polled, so a typing error must not pass."""


class RetryPolicy(str, Enum):
    """What is started again when a replica fails: exits with non-zero, crashes, is preempted or evicted."""

    REPLICA = "REPLICA"
    """Only the failed replica."""
    APPLICATION = "APPLICATION"
    """The whole app."""
    ROLE = "ROLE"
    """All replicas of the role of the failed one."""


class MountType(str, Enum):
    """What stands for the kind of a mount in text and JSON."""

    BIND = "bind"
    VOLUME = "volume"
    DEVICE = "device"


@dataclass
class BindMount:
    """A path of the host at `dst_path` in the replica."""

    src_path: str
    dst_path: str
    read_only: bool = False


@dataclass
class VolumeMount:
    """A volume that the scheduler knows by name, at `dst_path` in the replica."""

    src: str
    dst_path: str
    read_only: bool = False


@dataclass
class DeviceMount:
    """A device of the host; `permissions` are out of read, write and mknod."""

    src_path: str
    dst_path: str
    permissions: str = "rwm"


Mount = BindMount | VolumeMount | DeviceMount


def _null_resource() -> Resource:
    # Own object for each role: filling in role.resource must not change NULL_RESOURCE for all.
    return Resource(cpu=-1, gpu=-1, memMB=-1)


@dataclass
class Role:
    """A group of equal replicas. Elements of `args`, values of `env` and texts in `metadata` may hold macros."""

    name: str
    """Its name in the app, in log lines and in `LAUNCH_ROLE`."""
    image: str
    """The software of a replica; what it names is up to the scheduler: container image, directory, archive."""
    min_replicas: int | None = None
    """Lower bound of an elastic role; ignored where the scheduler has none."""
    entrypoint: str = MISSING
    """The program which each replica runs."""
    args: list[str] = field(default_factory=list)
    """Its arguments; no shell is involved."""
    # Not part of the text: Airflow stores the text of what it cannot serialise.
    env: dict[str, str] = field(default_factory=dict, repr=False)
    """Variables of each replica. Values may be secrets, so the text of a role leaves them out."""
    num_replicas: int = 1
    """How many equal replicas run."""
    max_retries: int = 0
    """Retries and not runs: 2 allows three runs."""
    retry_policy: RetryPolicy = RetryPolicy.APPLICATION
    """What is started again when a replica fails."""
    resource: Resource = field(default_factory=_null_resource)
    """What one replica needs."""
    port_map: dict[str, int] = field(default_factory=dict)
    """Ports by name; 0 means that the scheduler chooses one."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Notes for one scheduler or one tool, by key."""
    mounts: list[Mount] = field(default_factory=list)
    """What each replica sees of the host, or of the volumes of the scheduler."""
    workspace: Workspace | None = None
    """Local directories to mirror into the replicas; where that cannot be done, a warning is logged."""

    def pre_proc(self, scheduler: str, dryrun_info: AppDryRunInfo[Any]) -> AppDryRunInfo[Any]:  # noqa: ARG002 - for subclasses
        """Return the request to schedule; subclasses change the native request here."""
        return dryrun_info

    @property
    def base_image(self) -> None:
        """Deprecated, and always None: an image has no base of its own."""
        return None


_init = Role.__init__


@functools.wraps(_init)
def _init_with_base_image(self: Role, *args: Any, base_image: str | None = None, **kwargs: Any) -> None:
    # No field: it would be stored, compared and hashed, and subclasses with `__post_init__` would have to know it.
    if base_image is not None:
        warnings.warn("Role.base_image is deprecated and ignored", DeprecationWarning, stacklevel=2)
    _init(self, *args, **kwargs)


Role.__init__ = _init_with_base_image  # type: ignore[method-assign]


@dataclass
class AppDef:
    """A distributed app: a name and its roles. Rank 0 is replica 0 of the first role."""

    name: str
    """The app's id begins with it."""
    roles: list[Role] = field(default_factory=list)
    """At least one, each with a name of its own."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Notes about the app, by key; `Runner.describe` has them."""

    def __str__(self) -> str:
        # Airflow stores this text with the DAG, also of an app which is wrong: short, stable,
        # without args and env (which may hold secrets), and it must not fail.
        roles: object = self.roles
        listed = roles if isinstance(roles, list) else []
        shown = ", ".join(f"{getattr(role, 'name', '?')} x{getattr(role, 'num_replicas', '?')}" for role in listed)
        text = " ".join(f"AppDef({self.name}: {shown or 'no roles'})".split())
        return text.encode("utf-8", "backslashreplace").decode()
