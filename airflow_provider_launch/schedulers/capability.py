"""The optional features of schedulers, with one sentence for each."""

from __future__ import annotations

from enum import Enum


class Capability(str, Enum):
    """A feature that only some schedulers have; the others refuse it at dry run."""

    REPLICA_RETRY = "REPLICA_RETRY"
    """Restarts only the failed replica, exactly `max_retries` times."""
    APPLICATION_RETRY = "APPLICATION_RETRY"
    """Restarts all roles when a replica fails, exactly `max_retries` times."""
    ROLE_RETRY = "ROLE_RETRY"
    """Restarts the role of the failed replica."""
    ADOPT = "ADOPT"
    """`schedule` twice with one id starts one app."""
    STREAMS = "STREAMS"
    """Keeps stdout and stderr apart."""
    TIME_FILTER = "TIME_FILTER"
    """Filters log lines by `since` and `until`, to the second."""
    RANK0 = "RANK0"
    """Every replica can reach replica 0 of the first role by name."""
    PORTS = "PORTS"
    """Agrees on free ports between the replicas."""
    GPU = "GPU"
    """Gives each replica GPUs of its own."""
    BIND_MOUNT = "BIND_MOUNT"
    """Mounts a directory of the host."""
    VOLUME_MOUNT = "VOLUME_MOUNT"
    """Mounts a volume of the scheduler."""
    DEVICE_MOUNT = "DEVICE_MOUNT"
    """Passes a device of the host."""
    RESULT = "RESULT"
    """Returns the JSON document that a replica wrote to `LAUNCH_RESULT_PATH`."""
    ADDRESSES = "ADDRESSES"
    """Replaces `macros.rank0_host` and `macros.port(role, name)`, and so offers `torch_env`."""
    SERVICE_ROLES = "SERVICE_ROLES"
    """Stops the roles with `service=True` when all other roles have succeeded."""
    ELASTIC = "ELASTIC"
    """Runs a role with any number of replicas between `min_replicas` and `num_replicas`."""
    WORKSPACE = "WORKSPACE"
    """Mirrors local directories into the replicas."""
