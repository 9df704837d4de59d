"""Builds and pushes workspace images with a Docker engine, also for other schedulers."""

from __future__ import annotations

import base64
import json
import logging
from collections import deque
from collections.abc import Mapping
from typing import IO, Any

from airflow_provider_launch.schedulers._kit.http import NotFoundError
from airflow_provider_launch.schedulers.docker.images import Images
from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.schedulers.docker.wire import PULL, RegistryError, Wire, document_in, documents_in
from airflow_provider_launch.specs.errors import InvalidAppError, SchedulerRejectedError
from airflow_provider_launch.util.log_groups import END, START, unfolded
from airflow_provider_launch.util.untrusted import one_line

log = logging.getLogger(__name__)

_SILENCE_S = 1800.0
"""Maximum seconds without output of a build step."""
_OUTPUT_LINES = 12
_PUSHED = "Pushed"
"""Status of a layer that the registry did not have."""
_SYNTAX = ("dockerfile parse error", "unknown instruction", "failed to parse", "syntax error")


class Builds:
    """Builds and pushes images on one engine; raises the errors of `Wire`."""

    def __init__(self, wire: Wire, images: Images, connection: DockerConnection) -> None:
        self._wire = wire
        self._images = images
        self._connection = connection

    def image_id(self, image: str) -> str | None:
        """Return `sha256:...` of an image of the engine; None if the image does not exist."""
        try:
            with self._wire.request("GET", f"/images/{image}/json") as response:
                found: str = document_in(response)["Id"]
                return found
        except NotFoundError:
            return None

    def pull(self, image: str, platform: str | None) -> None:
        """Pull an image with the credentials of the connection."""
        self._images.pull(image, platform)

    def build(self, context: IO[bytes], query: Mapping[str, Any], *, quiet: bool) -> None:
        """Build an image.

        Args:
            context: a tar archive, read from its current position.
            query: parameters of the engine's build request.
            quiet: leave the output out of the log.

        Raises:
            InvalidAppError: the Dockerfile is wrong.
            SchedulerRejectedError: a build step failed; the message has the last lines of the output.
        """
        headers = {"Content-Type": "application/x-tar", **self._registry_config()}
        how = {"data": context, "headers": headers, "timeout_s": _SILENCE_S}
        output: deque[str] = deque(maxlen=_OUTPUT_LINES)
        if not quiet:
            log.info("%sbuild of %s", START, unfolded(str(query["t"])))
        try:
            with self._wire.request("POST", "/build", dict(query), **how) as response:
                for document in documents_in(response):
                    for text in str(document.get("stream") or document.get("status") or "").splitlines():
                        if text.strip():
                            output.append(text.rstrip())
                            if not quiet:
                                log.info("build: %s", unfolded(text.rstrip()))
                    if error := document.get("error") or (document.get("errorDetail") or {}).get("message"):
                        raise _build_failed(query, str(error), output)
        except SchedulerRejectedError as error:
            if any(word in str(error).lower() for word in _SYNTAX):
                raise InvalidAppError(
                    f"{query['dockerfile']} of the workspace is wrong: {error}; correct it"
                ) from error
            raise
        finally:
            if not quiet:
                log.info("%s", END)

    def push(self, image: str, repository: str, tag: str) -> None:
        """Push an image under a name, unless the registry has it.

        Raises:
            SchedulerRejectedError: the registry refuses, or the engine cannot reach it.
            InvalidAppError: the name is not a valid repository.
        """
        login = self._push_headers(repository)
        name = f"{repository}:{tag}"
        if self._is_in_registry(name, login):
            log.info("%s is in its registry already", name)
            return
        with self._wire.request("POST", f"/images/{image}/tag", {"repo": repository, "tag": tag}):
            pass
        log.info("pushing %s", name)
        how = {"headers": login, "timeout_s": _SILENCE_S, "what": PULL}
        try:
            with self._wire.request("POST", f"/images/{repository}/push", {"tag": tag}, **how) as response:
                for document in documents_in(response):
                    if text := document.get("error") or (document.get("errorDetail") or {}).get("message"):
                        raise self._push_refused(name, str(text))
                    if document.get("status") == _PUSHED:
                        log.info("pushed layer %s of %s", unfolded(one_line(str(document.get("id")), 64)), name)
        except RegistryError as error:
            raise self._push_refused(name, str(error)) from error

    def _is_in_registry(self, name: str, login: Mapping[str, str]) -> bool:
        """Return whether the registry has the name; False on errors, which the push then reports."""
        try:
            with self._wire.request("GET", f"/distribution/{name}/json", headers=login, what=PULL) as response:
                return "Descriptor" in document_in(response)
        except (NotFoundError, RegistryError, SchedulerRejectedError):
            return False

    def _push_headers(self, repository: str) -> dict[str, str]:
        from docker.auth import encode_header

        # The engine refuses a push without this header, even if the registry needs no login.
        return self._images.auth_headers(repository) or {"X-Registry-Auth": encode_header({}).decode()}

    def _registry_config(self) -> dict[str, str]:
        """Return the header with the login that a build uses to pull base images."""
        connection = self._connection
        if not connection.registry_username:
            return {}
        server = (connection.registry or "docker.io").strip().lower()
        if server in {"docker.io", "index.docker.io"}:
            server = "https://index.docker.io/v1/"
        login = {server: {"username": connection.registry_username, "password": connection.registry_password}}
        return {"X-Registry-Config": base64.urlsafe_b64encode(json.dumps(login).encode()).decode()}

    def _push_refused(self, name: str, text: str) -> SchedulerRejectedError:
        return SchedulerRejectedError(
            f"the workspace image {name!r} cannot be pushed: {text}; check the option image_repo, the registry "
            f"options of the connection or `docker login` on this host, and that the engine at {self._wire.url} "
            f"can reach the registry"
        )


def connect_builds(host: str | None, docker_client: Any = None) -> Builds:
    """Return the builder of an engine, without a request to it.

    Args:
        host: the address of the engine. None: `DOCKER_HOST`, or the default socket.
        docker_client: a client of docker-py for the engine; it has priority over `host`.
    """
    connection = DockerConnection(host=host or (docker_client.api.base_url if docker_client is not None else None))
    wire = Wire(connection, None if docker_client is None else docker_client.api)
    return Builds(wire, Images(wire, connection), connection)


def _build_failed(query: Mapping[str, Any], text: str, output: deque[str]) -> Exception:
    shown = "".join(f"\n  {line}" for line in output)
    if any(word in text.lower() for word in _SYNTAX):
        return InvalidAppError(f"{query['dockerfile']} of the workspace is wrong: {text}; correct it{shown}")
    return SchedulerRejectedError(
        f"the image of the workspace cannot be built: {text}; correct {query['dockerfile']} or its inputs. "
        f"Its last lines:{shown}"
    )
