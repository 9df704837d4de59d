"""Logs in to Amazon ECR for the Docker engine that builds and pushes the images of workspaces."""

from __future__ import annotations

import base64
import importlib
import re
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from airflow_provider_launch.schedulers.aws_batch.client import Aws
from airflow_provider_launch.workspace.docker_workspace import ImageBuilds

# https://docs.aws.amazon.com/AmazonECR/latest/userguide/Registries.html and .../general/latest/gr/ecr.html
_ECR = re.compile(
    r"(\d{12}\.dkr[.-]ecr(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|on\.(?:aws|amazonwebservices\.com\.cn)))/"
)
_BUILDS = "airflow_provider_launch.schedulers.docker.images"
"""Imported by name, because backends do not import each other, and few launches need it."""
_SPARE_S = 1800.0
"""Seconds before its end at which a login is renewed: a push must be able to finish."""


class _Connected(NamedTuple):
    builds: ImageBuilds
    renew_at: float


class EcrBuilds:
    """Docker engines with the login of an ECR registry, which is never part of a request."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._lock = threading.Lock()
        self._connected: dict[tuple[str | None, str], _Connected] = {}
        """Address of the engine and registry to the engine with its login."""

    def connect(self, cfg: Mapping[str, Any]) -> ImageBuilds | None:
        """Return the engine that builds; None if option `image_repo` is not in ECR."""
        found = _ECR.match(cfg.get("image_repo") or "")
        if found is None:
            return None
        registry, region = found.groups()
        key = cfg.get("build_host"), registry
        with self._lock:
            cached = self._connected.get(key)
            if cached is None or cached.renew_at < self._aws.now():
                token, expires_at = self._aws.registry_login(region)
                cached = _Connected(_builds(cfg.get("build_host"), registry, token), expires_at.timestamp() - _SPARE_S)
                self._connected[key] = cached
            return cached.builds


def _builds(host: str | None, registry: str, token: str) -> ImageBuilds:
    docker: Any = importlib.import_module(_BUILDS)
    user, _, password = base64.b64decode(token).decode().partition(":")
    connection = docker.DockerConnection(
        host=host, registry=registry, registry_username=user, registry_password=password
    )
    # It refuses an engine that is reached without encryption.
    wire = docker.Wire(connection)
    builds: ImageBuilds = docker.Builds(wire, docker.Images(wire, connection), connection)
    return builds
