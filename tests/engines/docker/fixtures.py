"""Fixtures around the Docker engine; a test that uses them is marked `engine("docker")`."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests.engines.docker.daemon import EngineError
from tests.faults import FaultProxy
from tests.support.engines import required

if TYPE_CHECKING:
    from docker import DockerClient


@dataclass(frozen=True)
class DockerEngine:
    """A running engine."""

    host: str
    client: DockerClient
    """A client of the engine without a proxy."""
    image: str
    """Image with a shell and its tools."""

    def python_image(self) -> str:
        """Return the image with Python and the example's word count; the first call builds it in two seconds."""
        return _image("python", self.client)

    def remove_made(self, proxy: FaultProxy) -> None:
        """Remove only the managed containers, networks and volumes that were created through the proxy."""
        from tests.engines.docker import cleanup

        containers = proxy.matching("POST", r"/containers/create$")
        others = proxy.matching("POST", r"/(networks|volumes)/create$")
        made = {one.query.get("name") for one in containers} | {one.json["Name"] for one in others}
        cleanup.remove_managed(self.client, made.__contains__)


def _image(kind: Literal["busybox", "python"], client: DockerClient) -> str:
    from tests.engines.docker import images

    build = {"busybox": images.busybox, "python": images.python}[kind]
    try:
        return build(client)
    except EngineError as error:
        if required("docker"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[DockerEngine]:
    """The engine of this session, with the image of a shell."""
    import docker

    with contextlib.closing(docker.from_env()) as client:
        yield DockerEngine(os.environ["DOCKER_HOST"], client, _image("busybox", client))


@pytest.fixture
def docker_proxy(docker_engine: DockerEngine) -> Iterator[FaultProxy]:
    """A proxy in front of the engine; objects created through it are removed afterwards."""
    with FaultProxy(docker_engine.host) as proxy:
        yield proxy
    docker_engine.remove_made(proxy)
    assert not proxy.missed()


@pytest.fixture
def docker_project(tmp_path: Path, docker_engine: DockerEngine, docker_proxy: FaultProxy) -> Iterator[Path]:
    """A workspace that no other test has. Only its own images are removed, because other tests may run now."""
    import docker

    root = tmp_path / "project"
    root.mkdir()
    (root / "mark").write_text(secrets.token_hex(8))
    yield root
    for build in docker_proxy.matching("POST", r"/build$"):
        with contextlib.suppress(docker.errors.ImageNotFound):
            docker_engine.client.api.remove_image(build.query["t"], force=True)
