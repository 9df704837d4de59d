"""The Docker engine's API, by docker-py: requests, and what their failures mean for us."""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_launch.schedulers.docker.access import connect, is_dead, no_address, transport_errors
from airflow_provider_launch.schedulers.docker.containers import Container, container_in
from airflow_provider_launch.schedulers.docker.naming import Label
from airflow_provider_launch.specs.errors import (
    InvalidAppError,
    LaunchError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.util.json_rows import json_rows

if TYPE_CHECKING:
    from docker import APIClient
    from requests import Response

    from airflow_provider_launch.schedulers.docker.options import DockerConnection

__all__ = ["Engine", "NotFoundError", "TakenError"]

_BAD_REQUEST, _NOT_FOUND, _CONFLICT, _TOO_MANY = 400, 404, 409, 429
_GATEWAY = {502, 503, 504}
_UNAVAILABLE = {_TOO_MANY, *_GATEWAY}
_SERVER_ERROR = 500
_STOP_WAIT_S = 0.3
_CREATION_S = 5.0
_PIECE_BYTES = 64 * 1024
_PULL = "the pull"
_LIST_NEWER = "the list of newer containers"
_PULL_SILENCE_S = 600.0
_LIMITED = "the registry limits the rate of pulls, which a login may raise"
_DOCKER_HUB = "https://index.docker.io/v1/"
_AMBIGUOUS = re.compile(r"network (?P<name>\S+) is ambiguous")
# The engine answers 404 or 500 to these, and they do not pass by themselves.
_LASTING = (
    ("address pool", "remove unused networks, or use the network 'launch'"),
    ("port is already allocated", "choose another port"),
    ("could not select device driver", "install the GPU runtime on the engine's host"),
)


class NotFoundError(LaunchError):
    """The engine has no such container, image or network."""


class TakenError(LaunchError):
    """The name of the container belongs to another one.

    Args:
        text: what the engine says.
        labels: of the other container, where it was looked at.
    """

    def __init__(self, text: str, labels: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.labels = labels or {}


class _RegistryError(LaunchError):
    """The registry refuses a pull, or the engine does not get on with it."""


class Engine:
    """One Docker engine. May be used from several threads at once.

    Every method raises `SchedulerUnavailableError` when the engine is not reached or does not answer, and
    `SchedulerRejectedError` when it refuses.
    """

    def __init__(self, connection: DockerConnection) -> None:
        self._connection = connection
        self.url = connection.host or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        try:
            self.hostname = urlsplit(self.url).hostname
            """Name of the engine's host; None: it is this one."""
        except ValueError as error:
            raise no_address(self.url, error) from error
        self._client: APIClient | None = None
        self._mutex = threading.Lock()

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        with self._mutex:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # ---- containers --------------------------------------------------------------------------------------------------

    def containers(
        self, *, app_id: str | None = None, since: str | None = None, known: Mapping[str, Container] | None = None
    ) -> tuple[list[Container], float]:
        """Return our containers, and the engine's time in epoch seconds.

        Args:
            app_id: only those of this app.
            since: only those created after the container with this id.
            known: what an earlier list has shown, by id; what has not changed is returned from there.

        Raises:
            NotFoundError: there is no container `since`.
        """
        filters: dict[str, list[str]] = {
            "label": [f"{Label.MANAGED}=true", *([f"{Label.APP_ID}={app_id}"] if app_id else [])]
        }
        if since:
            filters["since"] = [since]
        query = {"all": "1", "filters": json.dumps(filters)}
        with self._request("GET", "/containers/json", query, what=_LIST_NEWER if since else "") as response:
            rows = json_rows(response.iter_content(_PIECE_BYTES))
            containers = [container_in(row, known or {}) for row in rows]
            return containers, parsedate_to_datetime(response.headers["Date"]).timestamp()

    def inspect(self, container: str) -> dict[str, Any]:
        """Return all that is known of a container."""
        with self._request("GET", f"/containers/{container}/json") as response:
            document: dict[str, Any] = response.json()
            return document

    def create(self, name: str, body: Mapping[str, Any], platform: str | None = None) -> str:
        """Create a container and return its id.

        Raises:
            TakenError: there is a container of that name; the error has its labels.
            NotFoundError: the image is missing.
        """
        query = {"name": name, **({"platform": platform} if platform else {})}
        deadline = time.monotonic() + _CREATION_S
        while True:
            try:
                with self._request("POST", "/containers/create", query, body) as response:
                    container_id: str = response.json()["Id"]
                    return container_id
            except TakenError as error:
                try:
                    labels = self.inspect(name)["Config"]["Labels"]
                except NotFoundError:
                    # The engine takes a name some time before it shows the container; or it was renamed meanwhile.
                    if time.monotonic() >= deadline:
                        raise SchedulerUnavailableError(
                            f"the name {name!r} is taken by a container that the Docker engine does not show"
                        ) from error
                    time.sleep(0.1)
                else:
                    raise TakenError(str(error), labels) from error

    def start(self, container: str) -> None:
        """Start a container; no-op for a running one.

        Raises:
            NotFoundError: there is no container of this name (any more).
            SchedulerRejectedError: it cannot be started; its inspection says why from now on.
        """
        deadline = time.monotonic() + _CREATION_S
        while True:
            try:
                with self._request("POST", f"/containers/{container}/start"):
                    return
            except SchedulerRejectedError as error:
                found = _AMBIGUOUS.search(str(error))
                if found is None or time.monotonic() >= deadline:
                    raise
                # Another launcher makes ours in this moment, or has died over it; what others have made stays.
                if not self._keep_one(self._networks(found["name"])):
                    raise
                time.sleep(0.1)

    def wait(self, container: str, timeout_s: float) -> bool:
        """Wait until a container has ended, or is gone; False: it has not within the time."""
        began = time.monotonic()
        try:
            with self._request("POST", f"/containers/{container}/wait", timeout_s=timeout_s) as response:
                response.json()
        except NotFoundError:
            pass
        except SchedulerUnavailableError:
            if time.monotonic() - began < timeout_s:
                raise
            return False
        return True

    def stop(self, container: str, *, wait_s: float | None = None) -> None:
        """Send TERM, and KILL after the container's own grace time; no-op for an ended or unknown one.

        Args:
            container: id or name.
            wait_s: how long to wait until it has ended. None: not at all, the engine goes on with it alone.
        """
        from requests import ReadTimeout

        limit_s = _STOP_WAIT_S if wait_s is None else wait_s
        try:
            with self._request("POST", f"/containers/{container}/stop", timeout_s=limit_s):
                pass
        except NotFoundError:
            pass
        except SchedulerUnavailableError as error:
            # The engine has heard it, and answers when the container has ended.
            if wait_s is not None or not isinstance(error.__cause__, ReadTimeout):
                raise

    def rename(self, container: str, name: str) -> None:
        """Give a container another name; `NotFoundError` if somebody else was faster."""
        with self._request("POST", f"/containers/{container}/rename", {"name": name}):
            pass

    def remove(self, container: str, *, force: bool = True) -> None:
        """Remove a container with its anonymous volumes, no-op for an unknown one; a live one only by force."""
        try:
            with self._request("DELETE", f"/containers/{container}", {"force": str(int(force)), "v": "1"}):
                pass
        except (NotFoundError, TakenError):
            pass  # 409: its removal is under way

    def logs(self, container: str, since: str | None, tail: int | None) -> Response:
        """Return the open answer with the frames of both streams, each line with its time."""
        query = {"stdout": "1", "stderr": "1", "timestamps": "1", "tail": "all" if tail is None else str(tail)}
        if since:
            query["since"] = since
        return self._open("GET", f"/containers/{container}/logs", query)

    def read_file(self, container: str, path: str, limit: int) -> tuple[bytes, int] | None:
        """Return the beginning of a file in a container, and its size; None: it is not there, or being removed."""
        try:
            with self._request("GET", f"/containers/{container}/archive", {"path": path}) as response:
                return _only_file(_Stream(response.iter_content(65536)), limit)
        except (NotFoundError, TakenError):
            return None

    # ---- images and networks -----------------------------------------------------------------------------------------

    def pull(self, image: str, platform: str | None) -> None:
        """Pull an image.

        Raises:
            SchedulerRejectedError: the registry refused, has no such image, or is not reached by the engine.
            InvalidAppError: there can be no image of that name.
        """
        from docker.utils import parse_repository_tag

        repository, tag = parse_repository_tag(image)
        query = {"fromImage": repository, "tag": tag or "latest", **({"platform": platform} if platform else {})}
        headers = self._registry_auth(repository)
        how = {"headers": headers, "timeout_s": _PULL_SILENCE_S, "what": _PULL}
        try:
            with self._request("POST", "/images/create", query, **how) as response:
                # The engine answers 200 at once, and tells what went wrong in the stream.
                for line in response.iter_lines():
                    document = _loads(line)
                    # Newer engines tell only the detail.
                    if text := document.get("error") or (document.get("errorDetail") or {}).get("message"):
                        raise self._pull_refused(image, text)
        except _RegistryError as error:
            raise self._pull_refused(image, str(error)) from error

    def image_ids(self) -> list[str]:
        """Return the ids of all images."""
        with self._request("GET", "/images/json") as response:
            return [image["Id"] for image in response.json()]

    def ensure_network(self, name: str, labels: Mapping[str, str]) -> None:
        """Make a bridge network if there is none of that name.

        Raises:
            SchedulerRejectedError: the engine is out of addresses.
        """
        found = self._networks(name)
        if not found:
            body = {"Name": name, "CheckDuplicate": True, "Driver": "bridge", "Labels": dict(labels)}
            try:
                with self._request("POST", "/networks/create", body=body):
                    pass
            except TakenError:
                return
            found = self._networks(name)
        self._keep_one(found)

    def _keep_one(self, networks: list[dict[str, Any]]) -> bool:
        """Remove all but the first network of a name, which must be unique to be used; False: they are not ours.

        Two launchers make it at the same moment: the engine's own check is not atomic. One of them may have died since.
        """
        later = sorted(networks, key=lambda network: (network["Created"], network["Id"]))[1:]
        ours = [network for network in later if Label.MANAGED in (network.get("Labels") or {})]
        for network in ours:
            self._remove_network(network["Id"])
        return len(ours) == len(later)

    def has_network(self, name: str) -> bool:
        """Tell whether containers can join a network of that name."""
        return bool(self._networks(name))

    def remove_network(self, name: str, app_id: str) -> None:
        """Remove the network that was made for this app."""
        for network in self._networks(name):
            if (network.get("Labels") or {}).get(Label.APP_ID) == app_id:
                self._remove_network(network["Id"])

    def started_at(self) -> str | None:
        """Return since when the engine runs (RFC 3339); it makes this network when it starts. None: it has none."""
        try:
            with self._request("GET", "/networks/bridge") as response:
                created: str = response.json()["Created"]
                return created
        except NotFoundError:
            return None

    def _networks(self, name: str) -> list[dict[str, Any]]:
        with self._request("GET", "/networks", {"filters": json.dumps({"name": [name]})}) as response:
            # The engine's filter takes parts of names too.
            return [network for network in response.json() if network["Name"] == name]

    def _remove_network(self, network_id: str) -> None:
        try:
            with self._request("DELETE", f"/networks/{network_id}"):
                pass
        except (NotFoundError, SchedulerRejectedError):
            pass  # gone, or in use by somebody

    # ---- requests ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        **how: Any,
    ) -> Iterator[Response]:
        from urllib3.exceptions import HTTPError

        response = self._open(method, path, query, body, **how)
        try:
            yield response
        except transport_errors(HTTPError, ValueError, tarfile.TarError) as error:
            # The answer was cut off: what it said is not known.
            raise self._unreachable(error) from error
        finally:
            response.close()

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        what: str = "",
    ) -> Response:
        from requests import ReadTimeout

        client = self._connected()
        read_s = timeout_s or self._connection.timeout_s
        try:
            response = client.request(
                method,
                f"{client.base_url}/v{client.api_version}{path}",
                params=query,
                json=body,
                headers=headers,
                timeout=(self._connection.timeout_s, read_s),
                stream=True,
            )
        except transport_errors() as error:
            # All requests share one connection by ssh, and nobody else replaces it.
            if self.url.startswith("ssh://") and not isinstance(error, ReadTimeout):
                self._drop(client)
            raise self._unreachable(error) from error
        if response.status_code < _BAD_REQUEST:
            return response
        with response:
            if _is_outdated(response):
                self._drop(client)
            raise self._refused(response, what or f"{method} {path}")

    def _connected(self) -> APIClient:
        with self._mutex:
            if self._client is None or is_dead(self._client):
                self._client = self._connect()
            return self._client

    def _drop(self, client: APIClient) -> None:
        """See that the next request connects anew."""
        with self._mutex:
            if self._client is not client:
                return  # another thread was faster
            self._client = None
        # A connection that works ends with the last of the threads that may be at work with it.
        if is_dead(client):
            with suppress(Exception):
                client.close()

    def _connect(self) -> APIClient:
        try:
            return connect(self.url, self._connection)
        except LaunchError:
            raise  # first: without docker-py there are no names for what follows
        except transport_errors() as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> SchedulerUnavailableError:
        return SchedulerUnavailableError(
            f"the Docker engine at {self.url} does not answer: {_root(error)}; "
            f"whoever runs it must see that it is up and that this host may use it"
        )

    def _refused(self, response: Response, what: str) -> LaunchError:
        text = _message(response)
        code = response.status_code
        for words, cure in _LASTING:
            if words in text:
                return SchedulerRejectedError(f"the Docker engine at {self.url} refuses: {text}; {cure}")
        if what == _PULL and code not in _GATEWAY:
            # Newer engines hand on what the registry says; 429 is its limit and not a busy engine.
            return _RegistryError(f"{text}; {_LIMITED}" if code == _TOO_MANY else text)
        if code == _NOT_FOUND or (what == _LIST_NEWER and "no such container" in text.lower()):
            # While the older one is being removed, the engine answers 500 instead of 404.
            return NotFoundError(text)
        if code == _CONFLICT:
            return TakenError(text)
        passes = code in _UNAVAILABLE or (code >= _SERVER_ERROR and not what.endswith("/start"))
        if passes or _is_outdated(response):
            return SchedulerUnavailableError(
                f"the Docker engine at {self.url} cannot serve {what} now ({code}): {text}"
            )
        return SchedulerRejectedError(f"the Docker engine at {self.url} refuses {what} ({code}): {text}")

    def _pull_refused(self, image: str, text: str) -> SchedulerRejectedError:
        from docker.utils import parse_repository_tag

        login = self._registry_auth(parse_repository_tag(image)[0])
        who = f"sent the credentials of {self._connection.registry_username!r}" if login else "no credentials were sent"
        return SchedulerRejectedError(
            f"image {image!r} cannot be pulled: {text} ({who}); "
            f"check its name, the connection's registry options, and that the engine's host reaches the registry"
        )

    def _registry_auth(self, repository: str) -> dict[str, str]:
        from docker.auth import encode_header, resolve_index_name, resolve_repository_name
        from docker.errors import InvalidRepository

        known = self._connection
        if not known.registry_username:
            return {}
        try:
            server, _ = resolve_repository_name(repository)
        except InvalidRepository as error:
            raise InvalidAppError(
                f"image {repository!r} is no name of an image ({error}); write name:tag or registry/name:tag"
            ) from error
        # The password of one registry is not shown to another.
        if server.lower() != resolve_index_name((known.registry or "docker.io").strip().lower()):
            return {}
        login = {
            "username": known.registry_username,
            "password": known.registry_password,
            "serveraddress": _DOCKER_HUB if server.lower() == "docker.io" else server,
        }
        return {"X-Registry-Auth": encode_header(login).decode()}

    def probe(self) -> None:
        """Prove that containers may be created: make one, never started, and remove it, with any image there is."""
        images = self.image_ids()
        made = None if images else self._import_empty_image()
        try:
            body = {"Image": made or images[0], "Cmd": ["true"], "HostConfig": {"NetworkMode": "none"}}
            self.remove(self.create(f"launch-probe-{secrets.token_hex(4)}", body))
        finally:
            if made is not None:
                with self._request("DELETE", f"/images/{made}"):
                    pass

    def _import_empty_image(self) -> str:
        """Make an image of nothing, and return its id."""
        try:
            answer = self._connected().import_image_from_data(bytes(tarfile.BLOCKSIZE * 2))
        except transport_errors() as error:
            raise self._unreachable(error) from error
        image: str = json.loads(answer.splitlines()[-1])["status"]
        return image


class _Stream(io.RawIOBase):
    """Chunks of an answer as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts, wanted = [self._rest], size - len(self._rest)
        while size < 0 or wanted > 0:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            parts.append(chunk)
            wanted -= len(chunk)
        data = b"".join(parts)
        cut = len(data) if size < 0 else size
        self._rest = data[cut:]
        return data[:cut]


def _only_file(stream: _Stream, limit: int) -> tuple[bytes, int] | None:
    # Read as it comes, so that a large file is not loaded.
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        member = archive.next()
        if member is None or not member.isfile():
            return None
        file = archive.extractfile(member)
        return (file.read(limit) if file else b""), member.size


def _is_outdated(response: Response) -> bool:
    """Tell whether an engine that was exchanged refuses the version of the API that was negotiated with the old one."""
    return response.status_code == _BAD_REQUEST and "client version" in _message(response)


def _message(response: Response) -> str:
    try:
        text = response.json()["message"]
    except (ValueError, KeyError, TypeError):
        text = response.text
    return " ".join(str(text).split())[:1000]


def _root(error: BaseException) -> str:
    """Return what is at the bottom of an error: the layers above repeat it with names of their own."""
    lowest = error
    # What the engine itself has said stands above the error of its HTTP status.
    while not getattr(lowest, "explanation", None) and (below := lowest.__cause__ or lowest.__context__) is not None:
        lowest = below
    said = getattr(lowest, "explanation", None) or getattr(lowest, "strerror", None)
    text = said or str(lowest) or type(lowest).__name__
    return str(text).splitlines()[0][:300]


def _loads(line: bytes) -> dict[str, Any]:
    document = json.loads(line) if line.strip() else {}
    return document if isinstance(document, dict) else {}
