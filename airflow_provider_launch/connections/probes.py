"""The test of a connection: ask its scheduler as far as that is possible without a launch."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.errors import SchedulerRejectedError

if TYPE_CHECKING:
    from airflow_provider_launch.connections.launch import LaunchConnection


def probe(connection: LaunchConnection) -> str:
    """Check the extras, ask the scheduler, and return which checks passed; nothing is launched."""
    ask = _PROBES.get(connection.backend, _listed)
    connection.options  # noqa: B018 - checks the extras, also where the scheduler cannot be created
    connection.check()
    return f"extras are valid; {ask(connection, connection.scheduler)}"


def _listed(connection: LaunchConnection, scheduler: Any) -> str:
    return f"scheduler {connection.options.backend!r} {_counted(scheduler)}"


def _counted(scheduler: Any) -> str:
    return f"answered and lists {len(scheduler.list())} apps; nothing was launched"


def _local(connection: LaunchConnection, scheduler: Any) -> str:
    root = connection.options.params.get("root") or "the default root"
    return f"the local scheduler on host {socket.gethostname()} at {root} {_counted(scheduler)}"


def _docker(_connection: LaunchConnection, scheduler: Any) -> str:
    """Check that the engine allows creating a container, which is never started."""
    engine = scheduler.engine
    engine.probe()
    return f"a container could be created and removed at {engine.wire.url}"


def _kubernetes(_connection: LaunchConnection, scheduler: Any) -> str:
    """Ask the cluster for all required permissions."""
    missing = scheduler.missing_rights()
    namespace = f"namespace {scheduler.cluster.namespace!r} of {scheduler.cluster.url}"
    if missing:
        raise SchedulerRejectedError(
            f"the credentials lack rights in {namespace}: {', '.join(missing)}; "
            f"ask the administrator of the cluster to grant them, docs/kubernetes.md has the Role"
        )
    return f"{namespace} answered and grants all rights that apps need; nothing was launched"


def _aws_batch(connection: LaunchConnection, scheduler: Any) -> str:
    """Check the permission for each action that can be checked."""
    if missing := scheduler.missing_permissions(connection.options.cfg.get("queue")):
        raise SchedulerRejectedError(f"the credentials lack {', '.join(missing)}; docs/aws_batch.md has the policy")
    return (
        f"AWS Batch in {scheduler.aws.region} answered and allows all actions that can be checked; "
        f"RegisterJobDefinition and PassRole are checked only by the first launch"
    )


def _slurm(_connection: LaunchConnection, scheduler: Any) -> str:
    """Check the commands and the directory; with `test_node` also that a node can write a file."""
    return str(scheduler.probe())


_PROBES: Mapping[str, Callable[[LaunchConnection, Any], str]] = {
    "local": _local,
    "docker": _docker,
    "kubernetes": _kubernetes,
    "aws_batch": _aws_batch,
    "slurm": _slurm,
}
