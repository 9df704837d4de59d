"""An image with an ENTRYPOINT, for the engines that run images of Docker."""

from __future__ import annotations

from uuid import uuid4

from docker import DockerClient

from tests.engines.docker.images import PRINTS_ITS_ARGS


def image_with_entrypoint(client: DockerClient, image: str) -> str:
    """Return an image whose ENTRYPOINT prints each argument as `<argument>`; its CMD is one argument."""
    name = f"launch-entrypoint:{uuid4().hex[:8]}"
    container = client.api.create_container(image, ["true"])["Id"]
    try:
        conf = {"Entrypoint": [PRINTS_ITS_ARGS], "Cmd": ["cmd of the image"]}
        client.api.commit(container, *name.split(":"), conf=conf)
    finally:
        client.api.remove_container(container)
    return name
