"""Cost of the task `true` for the engine without Airflow, with and without the requests of our guarantees."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import docker_engine

if TYPE_CHECKING:
    from docker import APIClient
    from task_pairs import Cost

LABEL = f"{docker_engine.LABEL}-alone"


def pairs(number: int) -> tuple[list[Cost], list[Cost]]:
    """Run `true` in turn with the fewest requests and with those of our guarantees; the first pair is dropped."""
    from docker import APIClient

    client = APIClient(docker_engine.HOST, version="auto")
    found: dict[Callable[..., None], list[Cost]] = {_bare: [], _guarded: []}
    label = f"{LABEL}={os.getpid()}"
    with contextlib.closing(client):
        try:
            for pair in range(number + 1):
                for run in (_bare, _guarded) if pair % 2 else (_guarded, _bare):
                    start = time.perf_counter()
                    run(client, uuid.uuid4().hex)
                    if pair:
                        found[run].append({"wall": time.perf_counter() - start})
        finally:
            docker_engine.remove(label)
    return found[_bare], found[_guarded]


def _create(client: APIClient, name: str, **host: Any) -> str:
    made = client.create_container(
        docker_engine.IMAGE,
        ["sh", "-c", "true"],
        name=name,
        labels={LABEL: str(os.getpid()), f"{LABEL}-app": name.partition("-")[0]},
        host_config=client.create_host_config(**host),
    )
    return str(made["Id"])


def _bare(client: APIClient, name: str) -> None:
    container = _create(client, name)
    client.start(container)
    client.wait(container)


def _guarded(client: APIClient, name: str) -> None:
    from docker.errors import NotFound

    app = {"label": f"{LABEL}-app={name}"}
    # A repeated submission finds the record and starts nothing, even if the container was removed.
    _create(client, name, network_mode="none")
    # Without an init, process 1 ignores signals without a handler.
    container = _create(client, f"{name}-0", init=True)
    # A cancel in between is noticed before the start, and the end is reported correctly.
    client.containers(all=True, filters=app)
    client.start(container)
    client.wait(container)
    client.containers(all=True, filters=app)
    client.logs(container, timestamps=True)
    with contextlib.suppress(NotFound):
        client.get_archive(container, "/tmp/launch-result.json")
