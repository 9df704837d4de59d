"""Apps on the Docker engine behind a proxy: how these tests launch and inspect them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from docker import DockerClient

from airflow_provider_launch.schedulers.docker.naming import Kind, Label
from airflow_provider_launch.schedulers.docker.request import DockerRequest
from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler, create_scheduler
from airflow_provider_launch.specs import Role
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from tests.engines.docker.fixtures import DockerEngine
from tests.faults import FaultProxy
from tests.support.apps import Apps


class DockerApps(Apps[DockerScheduler]):
    """Launches apps, waits for them, and inspects them on the engine itself."""

    cfg: ClassVar[Mapping[str, object]] = {"pull": "never", "grace_s": 1}

    def __init__(self, url: str, client: DockerClient, image: str) -> None:
        self.url = url
        self.client = client
        self.image = image
        self.ids: set[str] = set()
        super().__init__(lambda **more: create_scheduler("tests", **{"host": url, "timeout_s": 20, **more}))

    def info(self, *roles: Role, app_id: str | None = None, **cfg: object) -> AppDryRunInfo[DockerRequest]:
        info = super().info(*roles, app_id=app_id, **cfg)
        self.ids.add(info.request.app_id)
        return info

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
        super().close()
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
