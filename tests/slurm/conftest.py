"""Fixtures: a cluster for a single test, which it may break, and launches of apps there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.schedulers.slurm.scheduler import SlurmScheduler, create_scheduler
from airflow_provider_launch.specs import Resource
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from tests.engines.slurm import engine
from tests.engines.slurm.cluster import NODES, Cluster
from tests.engines.slurm.fixtures import own_port
from tests.support.apps import Apps, until
from tests.support.processes import processes_of


class Place(Apps[SlurmScheduler]):
    """A cluster and a scheduler on it."""

    resource = Resource(cpu=1, gpu=0, memMB=64)
    timeout_s = 150.0
    pause_s = 0.2

    def __init__(self, cluster: Cluster, root: Path, **params: Any) -> None:
        self.cluster = cluster
        self.root = root
        self.params = {"root": str(root), "slurm_conf": str(cluster.conf), "settle_s": 2.0, **params}
        super().__init__(lambda **more: create_scheduler("tests", **{**self.params, **more}))

    def patiently(self, call: Callable[[], Any], timeout_s: float = 60) -> Any:
        """Return the answer, once there is one."""
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(SchedulerUnavailableError):
                return call()
            assert time.monotonic() < deadline, "Slurm does not answer"
            time.sleep(0.3)

    def end(
        self, app_id: str, scheduler: SlurmScheduler | None = None, timeout_s: float | None = None
    ) -> DescribeAppResponse:
        """Return the description of the ended app, also if Slurm does not answer for a while."""
        limit_s = timeout_s or self.timeout_s
        return self.patiently(lambda: super(Place, self).end(app_id, scheduler, limit_s), limit_s)

    def alive(self, app_id: str) -> int:
        """Return the number of live processes of the app, including those on nodes that Slurm considers lost."""
        return len(processes_of(app_id))

    def written(self, app_id: str, text: str, role: str = "main", k: int = 0) -> None:
        """Wait until a replica has written a line with this text."""
        until(lambda: any(text in line for line in self.lines(app_id, role, k)), pause_s=0.2)


@pytest.fixture
def place(slurm_cluster: Cluster, slurm_root: Path) -> Iterator[Place]:
    """The shared cluster."""
    place = Place(slurm_cluster, slurm_root)
    yield place
    for row in place.scheduler.list():
        place.scheduler.cancel(row.app_id)


@pytest.fixture
def make_own_cluster() -> Iterator[Callable[..., Place]]:
    """Return a function that starts a cluster for this test only."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Place:
            cluster = stack.enter_context(engine.own_cluster(own_port(27817), **options))
            return Place(cluster, cluster.dir / "root")

        yield make


def resume_nodes(cluster: Cluster) -> None:
    """Resume nodes that an administrator has drained."""
    for node in NODES:
        with contextlib.suppress(Exception):
            cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
