"""The contract of the Docker scheduler, on a real engine behind a proxy that counts and breaks its requests."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from docker import DockerClient

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.schedulers.docker.naming import Kind, Label
from airflow_provider_launch.testing import SchedulerContract
from tests.contract.proxied import StreamingEngine
from tests.engines.docker.fixtures import DockerEngine
from tests.engines.docker.images import PRINTS_ITS_ARGS
from tests.faults import FaultProxy
from tests.support.capabilities import EVERYWHERE
from tests.support.processes import parent_of, processes_of
from tests.support.repeats import often


class DockerEngineView(StreamingEngine):
    """Reads the containers directly, without the proxy."""

    log_path = r"/logs$"

    def __init__(self, client: DockerClient, proxy: FaultProxy, image: str) -> None:
        super().__init__(proxy)
        self._client = client
        self._image = image

    def alive(self, app_id: str) -> int:
        live = sum(state in {"running", "paused", "restarting"} for state in self._states(app_id))
        return max(live, len(processes_of(app_id)))

    def starts(self, app_id: str) -> int:
        # Each attempt is a separate container, which stays until the app is deleted.
        return sum(state != "created" for state in self._states(app_id))

    def lose(self, app_id: str, role: str) -> bool:
        for row in self._rows(app_id):
            if row["Labels"][Label.ROLE] == role:
                self._client.api.remove_container(row["Id"], force=True)
        return True

    def give_up(self, app_id: str, role: str) -> bool | None:
        if not processes_of(app_id):
            return None  # the engine is on another host
        for row in self._rows(app_id):
            if row["Labels"][Label.ROLE] == role:
                # The shim through which the engine watches the container.
                program = self._client.api.inspect_container(row["Id"])["State"]["Pid"]
                os.kill(parent_of(program), signal.SIGKILL)
        return True

    def stop(self, app_id: str, role: str) -> bool:
        for row in self._rows(app_id):
            if row["Labels"][Label.ROLE] == role:
                self._client.api.stop(row["Id"])
        return True

    @contextlib.contextmanager
    def damaged(self, app_id: str) -> Iterator[None]:
        with self._container(f"{app_id}-main-9", {Label.APP_ID: app_id, Label.KIND: Kind.REPLICA}):
            yield

    @contextlib.contextmanager
    def forged(self, app_id: str) -> Iterator[None]:
        with self._container(app_id, {Label.APP_ID: app_id, Label.KIND: Kind.APP}):
            yield

    @contextlib.contextmanager
    def _container(self, name: str, labels: dict[str, str]) -> Iterator[None]:
        nonsense = {Label.PLAN: "{", Label.ROLE: "main", Label.REPLICA: "9" * 5000, Label.OWNER: "["}
        labels = {Label.MANAGED: "true", Label.NAME: name, **nonsense, **labels}
        made = self._client.api.create_container(self._image, ["true"], name=name, labels=labels)
        try:
            yield
        finally:
            self._client.api.remove_container(made["Id"])

    def _states(self, app_id: str) -> list[str]:
        return [row["State"] for row in self._rows(app_id)]

    def _rows(self, app_id: str) -> list[dict[str, Any]]:
        labels = [f"{Label.APP_ID}={app_id}", f"{Label.KIND}={Kind.REPLICA}"]
        rows: list[dict[str, Any]] = self._client.api.containers(all=True, filters={"label": labels})
        return rows

    def left(self, app_id: str) -> int:
        # Records and marks are containers too; volumes belong to the user.
        filters = {"label": f"{Label.APP_ID}={app_id}"}
        return len(self._client.api.containers(all=True, filters=filters)) + len(
            self._client.api.networks(filters=filters)
        )


# docker-py leaves a refused Unix socket to the garbage collector.
@pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <socket.socket fd=\d+, family=1,:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.timeout(600)  # 200 containers take minutes on a busy machine
@pytest.mark.engine("docker")
class TestDocker(SchedulerContract):
    factory = "airflow_provider_launch.schedulers.docker.scheduler:create_scheduler"
    many = often(50, 200)
    capabilities = EVERYWHERE | {
        Capability.STREAMS,
        Capability.BIND_MOUNT,
        Capability.VOLUME_MOUNT,
        Capability.IMAGE_ENTRYPOINT,
        Capability.DEVICE_MOUNT,
        Capability.WORKSPACE,
    }

    @pytest.fixture
    def engine(self, docker_engine: DockerEngine, docker_proxy: FaultProxy) -> DockerEngineView:
        return DockerEngineView(docker_engine.client, docker_proxy, docker_engine.image)

    @pytest.fixture
    def params(self, docker_proxy: FaultProxy) -> dict[str, Any]:
        return {"host": docker_proxy.url}

    @pytest.fixture
    def unreachable_params(self) -> dict[str, Any]:
        return {"host": "tcp://127.0.0.1:1"}

    @pytest.fixture
    def image(self, docker_engine: DockerEngine) -> str:
        return docker_engine.image

    @pytest.fixture
    def program_with_a_space(self) -> str:
        return PRINTS_ITS_ARGS
