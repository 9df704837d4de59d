"""Connections of type `launch_slurm`: jobs of a Slurm cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from airflow_provider_launch.hooks.launch import BuiltinLaunchHook

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.slurm.scheduler import SlurmScheduler

__all__ = ["SlurmLaunchHook"]


class SlurmLaunchHook(BuiltinLaunchHook):
    """Jobs of a Slurm cluster; the extras are the fields of `SlurmConnection` and `SlurmOpts`.

    Args:
        launch_conn_id: the connection.
    """

    backend: ClassVar[str] = "slurm"

    def test_connection(self) -> tuple[bool, str]:
        """Check the extras, the commands and the directory; with `test_node` also that a node can write a file."""
        try:
            text = cast("SlurmScheduler", self.scheduler).probe()
        except Exception as error:  # noqa: BLE001 - Airflow shows any error as text
            return False, str(error)
        finally:
            self.close()
        return True, f"extras are valid; {text}"
