"""Removes leftovers of tests from an engine; objects without our label are never touched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import docker
from docker.errors import APIError, NotFound

MANAGED = "launch.io/managed=true"
APP_ID = "launch.io/app-id"


def remove_managed(client: docker.DockerClient, wanted: Callable[[str], bool] = lambda _: True) -> list[str]:
    """Remove the managed containers, and the networks and volumes of single apps, whose names are wanted.

    Return the names. The network that all apps share stays: another session may be about to use it.
    """
    removed = []
    for row in client.api.containers(all=True, filters={"label": MANAGED}):
        # An older engine can list a removed container without a name.
        name = (row["Names"] or [row["Id"]])[0].lstrip("/")
        if wanted(name):
            with contextlib.suppress(NotFound):
                client.api.remove_container(row["Id"], v=True, force=True)
                removed.append(name)
    for found in (client.networks, client.volumes):
        for one in found.list(filters={"label": [MANAGED, APP_ID]}):
            if wanted(one.name):
                with contextlib.suppress(APIError):  # in use, or gone
                    one.remove()
                    removed.append(one.name)
    return removed
