"""Apps on the Docker engine behind a proxy: how these tests launch and inspect them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from docker import DockerClient

from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.schedulers.docker.naming import Kind, Label
from airflow_provider_launch.schedulers.docker.request import DockerRequest
from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler, create_scheduler
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, Role, is_terminal
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from tests.engines.docker.fixtures import DockerEngine
from tests.faults import FaultProxy


class DockerApps:
    """Launches apps, waits for them, and inspects them on the engine itself."""

    def __init__(self, url: str, client: DockerClient, image: str) -> None:
        self.url = url
        self.client = client
        self.image = image
        self.ids: set[str] = set()
        self._made: list[DockerScheduler] = []
        self.scheduler = self.another()

    def another(self, **connection: object) -> DockerScheduler:
        """Return a scheduler like in another process."""
        made = create_scheduler("tests", **{"host": self.url, "timeout_s": 20, **connection})
        self._made.append(made)
        return made

    def sh(self, script: str, name: str = "main", **fields: Any) -> Role:
        return Role(name, **{"image": self.image, "entrypoint": "sh", "args": ["-c", script], **fields})

    def info(self, *roles: Role, app_id: str | None = None, **cfg: object) -> AppDryRunInfo[DockerRequest]:
        chosen = app_id or make_unique("test")
        self.ids.add(chosen)
        cfg = {"pull": "never", "grace_s": 1, **cfg}
        return self.scheduler.submit_dryrun(AppDef("app", list(roles)), cfg, app_id=chosen)

    def start(self, *roles: Role, **how: Any) -> str:
        return self.scheduler.schedule(self.info(*roles, **how))

    def end(
        self, app_id: str, scheduler: DockerScheduler | None = None, timeout_s: float = 60.0
    ) -> DescribeAppResponse:
        deadline = time.monotonic() + timeout_s
        while True:
            found = (scheduler or self.scheduler).describe(app_id)
            assert found is not None
            if is_terminal(found.state):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    def run(self, *roles: Role, **how: Any) -> DescribeAppResponse:
        return self.end(self.start(*roles, **how))

    def lines(self, app_id: str, role: str = "main", k: int = 0, **how: Any) -> list[str]:
        return [str(line) for line in self.scheduler.log_iter(app_id, role, k, **how)]

    # ---- what the engine has ----

    def containers(self, app_id: str, kind: str = Kind.REPLICA) -> list[dict[str, Any]]:
        """Return the inspections of the app's containers."""
        labels = [f"{Label.APP_ID}={app_id}", f"{Label.KIND}={kind}"]
        rows = self.client.api.containers(all=True, filters={"label": labels})
        return [self.client.api.inspect_container(row["Id"]) for row in rows]

    def container(self, app_id: str) -> dict[str, Any]:
        """Return the inspection of the only container of the only replica."""
        (found,) = self.containers(app_id)
        return found

    def left(self, app_id: str) -> list[str]:
        """Return the names of all containers of the app."""
        rows = self.client.api.containers(all=True, filters={"label": f"{Label.APP_ID}={app_id}"})
        return [name for row in rows for name in row["Names"]]

    def begun(self, app_id: str) -> list[int]:
        """Return how often each container of the app that was ever started has written `begun`."""
        started = [one for one in self.containers(app_id) if one["State"]["Status"] != "created"]
        return [self.client.api.logs(one["Id"]).splitlines().count(b"begun") for one in started]

    def close(self) -> None:
        for scheduler in self._made:
            scheduler.close()
        for app_id in self.ids:
            for name in self.left(app_id):
                self.client.api.remove_container(name.lstrip("/"), v=True, force=True)
            for network in self.client.networks.list(filters={"label": f"{Label.APP_ID}={app_id}"}):
                network.remove()


@pytest.fixture
def docker_apps(docker_engine: DockerEngine, docker_proxy: FaultProxy) -> Iterator[DockerApps]:
    """Apps behind the proxy; all of them are removed at the end."""
    with contextlib.closing(DockerApps(docker_proxy.url, docker_engine.client, docker_engine.image)) as apps:
        yield apps
        docker_proxy.clear()


@pytest.fixture
def gpus() -> list[str]:
    """Return UUIDs of GPUs that no other test uses; the engine has none of them, so nothing starts with one."""
    token = uuid4().hex[:8]
    return [f"GPU-{token}-{number}" for number in range(5)]
