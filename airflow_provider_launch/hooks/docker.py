"""Connections of type `launch_docker`: containers of one Docker engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow_provider_launch.hooks.extras import LaunchOptions
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.schedulers.docker.options import DockerConnection, DockerOpts

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler

__all__ = ["DockerLaunchHook"]


class DockerLaunchHook(LaunchHook):
    """Containers of one Docker engine; the extras are the fields of `DockerConnection` and `DockerOpts`.

    Args:
        launch_conn_id: the connection.
    """

    default_conn_name = "launch_docker_default"
    conn_type = "launch_docker"
    hook_name = "Launch (Docker)"
    backend: ClassVar[str] = "docker"

    def __init__(self, launch_conn_id: str = default_conn_name) -> None:
        super().__init__(launch_conn_id)

    def _options(self, extras: Mapping[str, Any]) -> LaunchOptions:
        return self._typed_options("docker", extras, DockerConnection, DockerOpts, ("host",))

    def test_connection(self) -> tuple[bool, str]:
        """Check the extras, and prove that the engine lets us create a container; it is never started."""
        try:
            engine = cast("DockerScheduler", self.scheduler).engine
            engine.probe()
        except Exception as error:  # noqa: BLE001 - Airflow shows whatever is wrong as text
            return False, str(error)
        finally:
            self.close()
        return True, f"extras are valid; the Docker engine at {engine.wire.url} let us create and remove a container"
