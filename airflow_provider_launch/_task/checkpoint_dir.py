"""The directory in which the attempts and tries of one task find the checkpoints of earlier ones: pure."""

from __future__ import annotations

import copy
import hashlib
import posixpath
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_launch.schedulers import SCHEDULER_ALIASES
from airflow_provider_launch.schedulers.backends import BACKENDS
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import AppDef, BindMount, DeviceMount, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider_launch.specs.owner import TaskKey

CHECKPOINT_DIR, TRY = "LAUNCH_CHECKPOINT_DIR", "LAUNCH_TRY"
_ODD = re.compile(r"[^A-Za-z0-9_.=+-]+")


def directory_of(base: str, task: TaskKey) -> str:
    """Return the directory of a task instance below `base`, a path or a URI; the same for all its tries.

    Two tasks never share it: a name with characters that some file systems or stores refuse gets a hash.
    """
    parts = [task.dag_id, task.run_id, task.task_id, *([str(task.map_index)] if task.map_index >= 0 else [])]
    return "/".join([base.rstrip("/"), *map(_safe, parts)])


def _safe(name: str) -> str:
    safe = _ODD.sub("-", name)
    if safe == name and safe.strip("."):
        return safe
    return f"{safe.strip('.')[:100] or 'dots'}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def with_variables(app: AppDef, env: Mapping[str, str]) -> AppDef:
    """Return the app with these variables in each role; those of a role itself win. The given app is not changed."""
    changed = copy.copy(app)
    escaped = {name: macros.escape(text) for name, text in env.items()}
    changed.roles = [_changed(role, "env", {**escaped, **role.env}) for role in app.roles]
    return changed


def with_mounts(app: AppDef, base: str, backend: str, warn: Callable[..., object]) -> AppDef:
    """Return the app in whose replicas the base directory exists; warn if its files would be lost with them.

    Args:
        app: not changed.
        base: a path, or a URI, which needs no mount.
        backend: name of the scheduler.
        warn: takes a message and its arguments.
    """
    row = BACKENDS.get(SCHEDULER_ALIASES.get(backend, backend))
    if not base.startswith("/") or row is None or not row.in_containers:
        return app
    outside = [role for role in app.roles if not _is_mounted(base, role)]
    if not outside:
        return app
    if not row.shares_files:
        warn(
            "role %r: no mount of the role contains checkpoint_dir=%s; unless the options mount a volume there, its "
            "checkpoints are lost with each attempt", outside[0].name, base,
        )  # fmt: skip
        return app
    changed = copy.copy(app)
    changed.roles = [
        _changed(role, "mounts", [*role.mounts, BindMount(base, base)]) if role in outside else role
        for role in app.roles
    ]
    return changed


def _is_mounted(base: str, role: Role) -> bool:
    path = posixpath.normpath(base)
    targets: Sequence[str] = [mount.dst_path for mount in role.mounts if not isinstance(mount, DeviceMount)]
    return any(path == target or path.startswith(f"{target.rstrip('/')}/") for target in targets)


def _changed(role: Role, field: str, value: object) -> Role:
    clone = copy.copy(role)
    # Not `replace`: a subclass may have its own constructor or be frozen.
    object.__setattr__(clone, field, value)
    return clone
