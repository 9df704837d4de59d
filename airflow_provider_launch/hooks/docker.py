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

    def test_connection(self) -> tuple[bool, str]:
        """Check the extras, and that the engine allows creating a container, which is never started."""
        try:
            engine = cast("DockerScheduler", self.scheduler).engine
            engine.probe()
        except Exception as error:  # noqa: BLE001 - Airflow shows any error as text
            return False, str(error)
        finally:
            self.close()
        return True, f"extras are valid; a container could be created and removed at {engine.wire.url}"
