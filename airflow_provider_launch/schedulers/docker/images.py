"""Images on a Docker engine: pulls, builds and pushes them with the credentials of the connection."""

from __future__ import annotations

import base64
import json
import logging
import tarfile
import threading
import warnings
from collections import deque
from collections.abc import Mapping
from typing import IO, Any

from cachetools import TTLCache

from airflow_provider_launch.schedulers._kit.http import NotFoundError
from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.schedulers.docker.wire import PULL, RegistryError, Wire, document_in, documents_in
from airflow_provider_launch.specs.errors import InvalidAppError, SchedulerRejectedError
from airflow_provider_launch.util.strings import END, START, unfolded
from airflow_provider_launch.util.untrusted import one_line

_PULL_SILENCE_S = 600.0
_MOST_LABELS, _LARGE_LABEL = 64 * 1024, 1024
_KEPT_NAMES, _KEPT_S = 1000, 10.0
_DOCKER_HUB, _HUB_NAMES = "https://index.docker.io/v1/", frozenset({"hub.docker.com", "registry-1.docker.io"})


class Images:
    """The images of one engine; raises the errors of `Wire`."""

    def __init__(self, wire: Wire, connection: DockerConnection) -> None:
        self._wire = wire
        self._connection = connection
        self._large: TTLCache[str, list[str]] = TTLCache(_KEPT_NAMES, _KEPT_S)
        """Large labels of images, by name. Cached for seconds only, because a pull or build may move a tag."""
        self._mutex = threading.Lock()

    def pull(self, image: str, platform: str | None) -> None:
        """Pull an image."""
        from docker.utils import parse_repository_tag

        repository, tag = parse_repository_tag(image)
        query = {"fromImage": repository, "tag": tag or "latest", **({"platform": platform} if platform else {})}
        headers = self.auth_headers(repository)
        how = {"headers": headers, "timeout_s": _PULL_SILENCE_S, "what": PULL}
        with self._mutex:
            self._large.pop(image, None)
        try:
            with self._wire.request("POST", "/images/create", query, **how) as response:
                # The engine responds with 200 at once, and reports errors in the stream.
                for document in documents_in(response):
                    # Newer engines report only the detail.
                    if text := document.get("error") or (document.get("errorDetail") or {}).get("message"):
                        raise self._pull_refused(image, text, platform)
        except RegistryError as error:
            raise self._pull_refused(image, str(error), platform) from error

    def ids(self) -> list[str]:
        """Return the ids of all images."""
        with self._wire.request("GET", "/images/json") as response:
            return [image["Id"] for image in document_in(response)]

    def labels(self, image: str) -> Mapping[str, str]:
        """Return the labels of an image; empty if it was removed."""
        return self._labels(image) or {}

    def large_labels(self, image: str) -> list[str]:
        """Return the names of labels that are too large for a container to inherit; cached for ten seconds.

        The engine repeats all labels of a container in each list. Some builders add labels of 100 KB to their images,
        which no container needs. Refuses an image whose other labels are still too large.
        """
        with self._mutex:
            if (cached := self._large.get(image)) is not None:
                return cached
        if (labels := self._labels(image)) is None:
            return []
        large: list[str] = []
        if _size(labels) > _MOST_LABELS:
            large = [name for name, value in labels.items() if len(value) > _LARGE_LABEL]
            if (size := _size({**labels, **dict.fromkeys(large, "")})) > _MOST_LABELS:
                raise InvalidAppError(
                    f"image {image!r} has {len(labels)} labels of {size} bytes, the limit is {_MOST_LABELS}, "
                    f"because the engine repeats them for each container in each list; build it with fewer"
                )
        with self._mutex:
            self._large[image] = large
        return large

    def _labels(self, image: str) -> Mapping[str, str] | None:
        # Such a part would lead to another path of the engine; a tag such as `1..2` is valid.
        if {"", ".", ".."} & {*image.split("/")}:
            return None
        try:
            with self._wire.request("GET", f"/images/{image}/json") as response:
                return (document_in(response).get("Config") or {}).get("Labels") or {}
        except NotFoundError:
            return None

    def import_empty(self) -> str:
        """Create an empty image, and return its id."""
        empty = bytes(tarfile.BLOCKSIZE * 2)
        how = {"headers": {"Content-Type": "application/x-tar"}, "data": empty}
        with self._wire.request("POST", "/images/create", {"fromSrc": "-"}, **how) as response:
            *_, last = documents_in(response)
            image: str = last["status"]
            return image

    def remove(self, image: str) -> None:
        """Remove an image."""
        with self._wire.request("DELETE", f"/images/{image}"):
            pass

    def _pull_refused(self, image: str, text: str, platform: str | None) -> SchedulerRejectedError:
        from docker.utils import parse_repository_tag

        login = self.auth_headers(parse_repository_tag(image)[0])
        user = self._connection.registry_username
        sender = f"the credentials of {user!r}" if user else "the login of ~/.docker/config.json of the worker"
        sent = f"sent {sender}" if login else "no credentials were sent"
        which = f"image {image!r} of platform {platform!r}, which the engine lacks," if platform else f"image {image!r}"
        return SchedulerRejectedError(
            f"{which} cannot be pulled: {text} ({sent}); "
            f"check its name, the connection's registry options, and that the engine's host can reach the registry"
        )

    def auth_headers(self, repository: str) -> dict[str, str]:
        """Return the header with the login for the registry of a repository; empty if there is none.

        The login is that of the connection, else of `docker login` on this host.
        """
        from docker.auth import encode_header, resolve_index_name, resolve_repository_name
        from docker.errors import InvalidRepository

        connection = self._connection
        try:
            server, _ = resolve_repository_name(repository)
        except InvalidRepository as error:
            raise InvalidAppError(
                f"{repository!r} is not a valid image name ({error}); write name:tag or registry/name:tag"
            ) from error
        registry = resolve_index_name((connection.registry or "docker.io").strip().lower())
        # The password of one registry is not sent to another.
        is_theirs = server.lower() == ("docker.io" if registry in _HUB_NAMES else registry)
        if not (connection.registry_username and is_theirs):
            # Logins of this host must not be sent over an unencrypted connection.
            login = {} if self._wire.is_plaintext else _login_of_host(server)
            return {"X-Registry-Auth": encode_header(login).decode()} if login else {}
        login = {
            "username": connection.registry_username,
            "password": connection.registry_password,
            "serveraddress": _DOCKER_HUB if server.lower() == "docker.io" else server,
        }
        return {"X-Registry-Auth": encode_header(login).decode()}


def _login_of_host(server: str) -> dict[str, Any]:
    """Return the login of `docker login` on this host, from `~/.docker/config.json` and its credential helpers."""
    from docker.auth import load_config
    from docker.errors import DockerException

    try:
        # It reads `DOCKER_CONFIG`, too; None stands for Docker Hub. The error below names a missing helper.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = load_config().resolve_authconfig(None if server.lower() == "docker.io" else server)
    except (DockerException, OSError, ValueError) as error:
        raise SchedulerRejectedError(
            f"the login for registry {server!r} in ~/.docker/config.json of the worker cannot be read: {error}; "
            f"correct that file or its credential helper, or set the registry options of the connection"
        ) from error
    return dict(found or {})


def _size(labels: Mapping[str, str]) -> int:
    """Return the size of the labels in the engine's JSON, which escapes `<`, `>` and `&`."""
    text = json.dumps(labels)
    return len(text) + 5 * sum(map(text.count, "<>&"))


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
        """Build an image from a tar archive, read from its current position.

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
        """Push an image under a name, unless the registry has it."""
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

    `docker_client`, of docker-py, has priority over the address `host`; without both it is `DOCKER_HOST`, or the
    default socket.
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
