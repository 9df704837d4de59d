"""Connections of type `launch_docker`: containers of one Docker engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from airflow_provider_launch.hooks.launch import BuiltinLaunchHook

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler

__all__ = ["DockerLaunchHook"]


class DockerLaunchHook(BuiltinLaunchHook):
    """Containers of one Docker engine; the extras are the fields of `DockerConnection` and `DockerOpts`.

    Args:
        launch_conn_id: the connection.
    """

    backend: ClassVar[str] = "docker"

    def _probe(self) -> str:
        """Check that the engine allows creating a container, which is never started."""
        engine = cast("DockerScheduler", self.scheduler).engine
        engine.probe()
        return f"a container could be created and removed at {engine.wire.url}"
