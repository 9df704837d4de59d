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
from airflow_provider_launch.specs import AppDef, Resource, Role
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.specs.states import is_terminal
from tests.engines.slurm import engine
from tests.engines.slurm.cluster import NODES, Cluster
from tests.engines.slurm.fixtures import own_port
from tests.support.processes import processes_of


class Place:
    """A cluster and a scheduler on it."""

    def __init__(self, cluster: Cluster, root: Path, **params: Any) -> None:
        self.cluster = cluster
        self.root = root
        self.params = {"root": str(root), "slurm_conf": str(cluster.conf), "settle_s": 2.0, **params}
        self.scheduler: SlurmScheduler = create_scheduler("tests", **self.params)

    def role(self, script: str, name: str = "main", **fields: Any) -> Role:
        """Return a role that runs a shell script; `$$` gives a `$`."""
        resource = fields.pop("resource", Resource(cpu=1, gpu=0, memMB=64))
        return Role(name, "", entrypoint="sh", args=["-c", script], resource=resource, **fields)

    def dryrun(self, *roles: Role, **cfg: Any) -> Any:
        return self.scheduler.submit_dryrun(AppDef("test", [*roles]), cfg)

    def start(self, *roles: Role, **cfg: Any) -> str:
        return self.scheduler.schedule(self.dryrun(*roles, **cfg))

    def patiently(self, call: Callable[[], Any], timeout_s: float = 60) -> Any:
        """Return the answer, once there is one."""
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(SchedulerUnavailableError):
                return call()
            assert time.monotonic() < deadline, "Slurm does not answer"
            time.sleep(0.3)

    def end(self, app_id: str, timeout_s: float = 150) -> DescribeAppResponse:
        """Wait until the app has ended, and return its status."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.patiently(lambda: self.scheduler.describe(app_id))
            assert found is not None
            if is_terminal(found.state):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.2)

    def alive(self, app_id: str) -> int:
        """Return the number of live processes of the app, including those on nodes that Slurm considers lost."""
        return len(processes_of(app_id))

    def until(self, app_id: str, text: str, role: str = "main", k: int = 0, timeout_s: float = 60) -> None:
        """Wait until a replica has written a line with this text."""
        deadline = time.monotonic() + timeout_s
        while not any(text in line for line in self.scheduler.log_iter(app_id, role, k)):
            assert time.monotonic() < deadline, f"{text!r} is not written"
            time.sleep(0.2)


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
