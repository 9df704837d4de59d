"""The Docker engine of the measures: that of the tests, with their shell image."""

from __future__ import annotations

import contextlib
import os
import sys

from rows import skip

LABEL = "launch-bench"
IMAGE = os.environ.get("BENCH_IMAGE", "")
HOST = os.environ.get("DOCKER_HOST", "")


def use(what: str) -> None:
    """Find the engine and its image; skip the measure if no engine answers."""
    global HOST, IMAGE  # noqa: PLW0603 - found once
    from docker import DockerClient
    from tests.engines.docker import engine, images

    host, why = engine.find()
    if host is None:
        skip(what, why)
        sys.exit(0)
    HOST = host
    with contextlib.closing(DockerClient(HOST)) as client:
        IMAGE = images.busybox(client)
    # For the processes of the tasks too.
    os.environ.update(DOCKER_HOST=HOST, BENCH_IMAGE=IMAGE)


def use_python() -> None:
    """Give the processes of the tasks the image with Python."""
    from docker import DockerClient
    from tests.engines.docker import images

    with contextlib.closing(DockerClient(HOST)) as client:
        os.environ["BENCH_IMAGE"] = images.python(client)


def remove(*labels: str) -> None:
    """Remove all containers that have one of the labels."""
    # Imported here, because imports of a task are part of the measure.
    from docker import DockerClient

    with contextlib.closing(DockerClient(HOST)) as client:
        for label in labels:
            for found in client.api.containers(all=True, filters={"label": label}):
                client.api.remove_container(found["Id"], v=True, force=True)
