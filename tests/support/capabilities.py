"""The capabilities that the contract expects of every built-in scheduler; the package has its own list."""

from __future__ import annotations

from airflow_provider_launch.schedulers.capability import Capability

EVERYWHERE = frozenset(
    {
        Capability.REPLICA_RETRY,
        Capability.APPLICATION_RETRY,
        Capability.ADOPT,
        Capability.RANK0,
        Capability.PORTS,
        Capability.GPU,
        Capability.RESULT,
        Capability.ADDRESSES,
        Capability.SERVICE_ROLES,
        Capability.TIME_FILTER,
    }
)
