"""The environment variables of a replica: its identity, and those inherited from the launcher.

Imports only the standard library, because the local supervisor uses it too.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers._kit.request import RoleRequest
    from airflow_provider_launch.specs.roles import AppDef, Role

RANK0_ENV = "TORCHX_RANK0_HOST"
"""Variable that holds the host of replica 0 of the first role; the value of `macros.rank0_env`."""
FIELD_PATH = "[FIELD_PATH]"
"""Start of the value of a variable that is a field of the pod, `[FIELD_PATH]spec.nodeName`; a name of TorchX."""
GPU_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK",
)  # fmt: skip
"""Variables that select the GPUs of a program; the launcher's values do not apply to a replica."""
_NEVER_COPIED = re.compile(r"_*AIRFLOW", re.IGNORECASE)
"""Variables with Airflow's configuration; its images also read the password of the first user from them."""
_SPECIAL = re.compile(r"[*?\[]")
_OF_TORCH = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
    "PET_*", "TORCHELASTIC_*",
)  # fmt: skip
_OF_REPLICAS = (
    *_OF_TORCH,
    "LAUNCH_APP_ID", "LAUNCH_ROLE", "LAUNCH_REPLICA_ID", "LAUNCH_NUM_REPLICAS", "LAUNCH_ATTEMPT", "LAUNCH_RESULT_*",
    "LAUNCH_PORT_*", "LAUNCH_DISRUPTIONS", "LAUNCH_PREEMPTIONS", "LAUNCH_TRY",
    "LAUNCH_CHECKPOINT_DIR", RANK0_ENV,
)  # fmt: skip
"""Variables that the launcher has if it runs in a replica of another app; they belong to that app."""


def replica_env(app_id: str, role: Role | RoleRequest, k: int, rank0_host: str) -> dict[str, str]:
    """Return the variables that identify a replica: app, role, number, number of replicas, host of the first one."""
    return {
        "LAUNCH_APP_ID": app_id,
        "LAUNCH_ROLE": role.name,
        "LAUNCH_REPLICA_ID": str(k),
        "LAUNCH_NUM_REPLICAS": str(role.num_replicas),
        RANK0_ENV: rank0_host,
        # Lines must appear when they are written, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
    }


def inherited_env(environ: Mapping[str, str], patterns: Iterable[str], given: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables of the launcher that replicas inherit; never Airflow's, which hold its secrets.

    Their names match `patterns`, and not those in `given`: variables that the engine sets in replicas, or refuses.
    """
    wanted, refused = list(patterns), [*_OF_REPLICAS, *given]

    def is_copied(name: str) -> bool:
        is_wanted = any(_matches(name, pattern) for pattern in wanted)
        return is_wanted and not (_NEVER_COPIED.match(name) or any(_matches(name, pattern) for pattern in refused))

    return {name: value for name, value in environ.items() if is_copied(name)}


def _matches(name: str, pattern: str) -> bool:
    """Return what `fnmatchcase` returns; usual patterns, a name or a prefix, are not compiled."""
    start = pattern.removesuffix("*")
    if _SPECIAL.search(start):
        return fnmatch.fnmatchcase(name, pattern)
    return name == pattern if start == pattern else name.startswith(start)


def port_variable(role: str, name: str) -> str:
    """Return the variable in which every replica finds the port: `LAUNCH_PORT_<ROLE>_<NAME>`."""
    return re.sub(r"[^A-Z0-9]", "_", f"LAUNCH_PORT_{role}_{name}".upper())


def port_values(roles: Iterable[Role], value: Callable[[str, int], str]) -> dict[str, str]:
    """Return the texts of port macros by `role.port`; `value` gets the variable of a port and its number."""
    return {
        f"{role.name}.{name}": value(port_variable(role.name, name), port)
        for role in roles
        for name, port in role.port_map.items()
    }


def refuse_equal_port_variables(app: AppDef) -> None:
    """Refuse ports whose variables would have the same name."""
    # Imported here, because the supervisor does not need it and starts faster without it.
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
