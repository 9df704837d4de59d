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

    def _probe(self) -> str:
        """Check the commands and the directory; with `test_node` also that a node can write a file."""
        return cast("SlurmScheduler", self.scheduler).probe()
