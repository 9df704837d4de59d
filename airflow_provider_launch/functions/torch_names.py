"""The variables with which `torch.distributed` finds the other replicas."""

from __future__ import annotations

from airflow_provider_launch.schedulers.environment import RANK0_ENV, port_variable

TORCH_DEFAULTS = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
"""A replica is one process, and has its own GPUs."""


def torch_variables(role: str, port: str) -> dict[str, str]:
    """Return each variable of torch, and the variable of the replica that has its value.

    Args:
        role: name of the role; its replicas are the ranks.
        port: name of the port on replica 0.
    """
    return {
        "MASTER_ADDR": RANK0_ENV,
        "MASTER_PORT": port_variable(role, port),
        "RANK": "LAUNCH_REPLICA_ID",
        "WORLD_SIZE": "LAUNCH_NUM_REPLICAS",
        "GROUP_RANK": "LAUNCH_REPLICA_ID",
        "GROUP_WORLD_SIZE": "LAUNCH_NUM_REPLICAS",
    }
