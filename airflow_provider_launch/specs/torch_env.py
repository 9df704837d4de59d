"""The variables of one PyTorch training, for roles with `torch_env`: pure."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from airflow_provider_launch.specs.macros import macros

if TYPE_CHECKING:
    from airflow_provider_launch.specs.roles import AppDef, Role

PORT = "torch"
"""The name in `port_map` of the port on which replica 0 coordinates the training; added with a free port if missing."""


def torch_variables(role: Role) -> dict[str, str]:
    """Return the variables of each replica of a role, with macros.

    A program without torchrun is one process per replica: rank and node are both the number of the replica. torchrun
    reads `PET_*` as its arguments, and gives its own processes their ranks. Its backend is `static`, with which node 0
    is replica 0, so rank 0 always is a process of replica 0.

    `TORCHELASTIC_RUN_ID` marks processes whose launcher has set these variables. Without it Lightning takes those of
    Slurm instead, which it refuses, and the error of a Trainer for DDP with a wrong number of nodes does not name it.
    """
    address, port = macros.rank0_host, macros.port(role.name, PORT)
    return {
        "RANK": macros.replica_id,
        "WORLD_SIZE": str(role.num_replicas),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": macros.replica_id,
        "GROUP_RANK": macros.replica_id,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": macros.app_id,
        "PET_NNODES": str(role.num_replicas),
        "PET_NODE_RANK": macros.replica_id,
        "PET_NPROC_PER_NODE": str(max(role.resource.gpu, 1)),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ID": macros.app_id,
    }


def with_torch_env(app: AppDef) -> AppDef:
    """Return the app with the variables and the port of its training; the same object if no role asks for them.

    Variables of the role itself win. The given app is not changed.
    """
    if not any(role.torch_env for role in app.roles):
        return app
    changed = copy.copy(app)
    changed.roles = [_with_variables(role) if role.torch_env else role for role in app.roles]
    return changed


def _with_variables(role: Role) -> Role:
    # Not `replace`: a subclass of Role may have its own constructor.
    changed = copy.copy(role)
    changed.env = {**torch_variables(role), **role.env}
    changed.port_map = {PORT: 0, **role.port_map}
    return changed
