"""The variables of a replica: those that identify it, and those that it inherits from the launcher.

Needs nothing heavy: it also runs in the bare interpreter of the local supervisor.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_launch.specs.roles import AppDef, Role

__all__ = ["RANK0_ENV", "inherited_env", "port_variable", "refuse_equal_port_variables", "replica_env"]

RANK0_ENV = "TORCHX_RANK0_HOST"
"""Variable that holds the host of replica 0 of the first role; the value of `macros.rank0_env`."""
_NEVER_COPIED = re.compile(r"_*AIRFLOW", re.IGNORECASE)
"""Airflow reads its configuration from these, and its images the password of the first user."""


def replica_env(app_id: str, role: Role, k: int, rank0_host: str) -> dict[str, str]:
    """Return the variables that identify a replica: app, role, number, how many, host of the first one."""
    return {
        "LAUNCH_APP_ID": app_id,
        "LAUNCH_ROLE": role.name,
        "LAUNCH_REPLICA_ID": str(k),
        "LAUNCH_NUM_REPLICAS": str(role.num_replicas),
        RANK0_ENV: rank0_host,
        # Lines shall be seen when they are written, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
    }


def inherited_env(environ: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """Return the variables of the launcher whose names match a pattern; never Airflow's, which hold its secrets."""
    wanted = list(patterns)
    return {
        name: value
        for name, value in environ.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted) and not _NEVER_COPIED.match(name)
    }


def port_variable(role: str, name: str) -> str:
    """Return the variable in which every replica finds the port: `LAUNCH_PORT_<ROLE>_<NAME>`."""
    return re.sub(r"[^A-Z0-9]", "_", f"LAUNCH_PORT_{role}_{name}".upper())


def refuse_equal_port_variables(app: AppDef) -> None:
    """Refuse ports of which a replica could see only one.

    Raises:
        InvalidAppError: two ports share a variable.
    """
    # Here, because the supervisor has no use for it and starts faster without.
    from airflow_provider_launch.specs.errors import InvalidAppError

    seen: dict[str, str] = {}
    for role in app.roles:
        for name in role.port_map:
            variable = port_variable(role.name, name)
            owner = f"{role.name}.{name}"
            if seen.setdefault(variable, owner) != owner:
                raise InvalidAppError(
                    f"ports {seen[variable]!r} and {owner!r} would share the variable {variable}; rename one"
                )
