"""The requests to a Docker engine: containers, their logs, files and events, and networks."""

from __future__ import annotations

import io
import json
import logging
import math
import re
import secrets
import tarfile
import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow_provider_launch.schedulers._kit.http import NotFoundError, TakenError, epoch_of
from airflow_provider_launch.schedulers.docker.containers import Container, container_in
from airflow_provider_launch.schedulers.docker.images import Images
from airflow_provider_launch.schedulers.docker.naming import UNSET, Label
from airflow_provider_launch.schedulers.docker.outside_stops import OutsideStop, Uptimes, add_event
from airflow_provider_launch.schedulers.docker.wire import ANSWER_S, LIST_NEWER, Wire, document_in, documents_in
from airflow_provider_launch.specs.errors import AppUnavailableError, SchedulerRejectedError, SchedulerUnavailableError
from airflow_provider_launch.util.json_rows import json_rows
from airflow_provider_launch.util.whole_answers import bounded, time_limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from requests import Response

    from airflow_provider_launch.schedulers.docker.options import DockerConnection
    from airflow_provider_launch.util.http_answer import HttpAnswer

log = logging.getLogger(__name__)

_STOP_WAIT_S = 0.3
_CREATION_S = 5.0
_EVENTS_S = 30.0
"""Maximum seconds for the list of events; an engine keeps some hundred."""
_PIECE_BYTES = 64 * 1024
_MAX_LIST = 512 * 1024 * 1024
"""Maximum size of the list of containers: 50 KB for each of ten thousand."""
_MAX_HEADERS = 256 * 1024
"""Maximum size of the headers of a file in an archive, because they may be chained without end."""
_LEADS_NOWHERE = re.compile(
    r"too many links|too many levels of symbolic links|lstat .*: not a directory", re.IGNORECASE
)
"""The engine's messages for a path that cannot exist: the program has replaced its directory by a loop or a file."""
_REMOVAL_S = 10.0
_REMOVED_S = 3.0
"""Maximum seconds until a container without files is gone."""
_STILL_IN_USE = re.compile(r"directory not empty|device or resource busy", re.IGNORECASE)
"""The engine's messages while processes of a killed container, or the engine itself, still use its files."""
_AMBIGUOUS = re.compile(r"network (?P<name>\S+) is ambiguous")


class Engine:
    """One Docker engine. May be used from several threads at once.

    Every method raises `SchedulerUnavailableError` if the engine is not reached or does not respond, and
    `SchedulerRejectedError` if it refuses.
    """

    def __init__(self, connection: DockerConnection) -> None:
        self.wire = Wire(connection)
        self.images = Images(self.wire, connection)
        self.networks = Networks(self.wire)
        self._copies: dict[str, bool] = {}
        self._uptimes = Uptimes()

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        self.wire.close()

    def containers(
        self, *, app_id: str | None = None, since: str | None = None, cached: Mapping[str, Container] | None = None
    ) -> tuple[list[Container], float]:
        """Return the containers of the launcher, and the engine's time in epoch seconds.

        `app_id` and `since`, the id of a container, select those of one app and newer ones; `cached` are containers
        from an earlier list, of which unchanged ones are reused.

        Raises:
            NotFoundError: the container `since` does not exist.
        """
        filters: dict[str, list[str]] = {
            "label": [f"{Label.MANAGED}=true", *([f"{Label.APP_ID}={app_id}"] if app_id else [])]
        }
        if since:
            filters["since"] = [since]
        query = {"all": "1", "filters": json.dumps(filters)}
        with self.wire.request("GET", "/containers/json", query, what=LIST_NEWER if since else "") as response:
            restarts = self._uptimes.restarts
            try:
                now = epoch_of(response.headers["Date"])
                with time_limit(ANSWER_S):
                    pieces = bounded(response.iter_content(_PIECE_BYTES), _MAX_LIST)
                    rows = json_rows(pieces, _warn_of_skipped)
                    # Docker 20.10 may list a container without a name until it is restarted: a removed one.
                    there = [row for row in rows if row.get("Names") != []]
                    return [container_in(row, cached or {}, self._is_copy, restarts(row, now)) for row in there], now
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise OSError(f"its list of containers cannot be read, or is cut off: {error}") from error

    def _is_copy(self, image_id: str) -> bool:
        """Return whether an image was made from a container of the launcher, and so has its labels."""
        if image_id not in self._copies:
            self._copies[image_id] = Label.NAME in self.images.labels(image_id)
        return self._copies[image_id]

    def stops(self, ids: Collection[str], since: int, until: int, *, signalled: bool = False) -> dict[str, OutsideStop]:
        """Return the stops of containers, from the events that the engine still has.

        Reads events between two times in epoch seconds, waiting for the ends of the containers, or with `signalled`
        only for their signals. A slow response is dropped, so that it does not delay other apps.
        """
        filters = {"type": ["container"], "label": [f"{Label.MANAGED}=true"], "event": ["kill", "die", "restart"]}
        query = {"since": str(since), "until": str(until), "filters": json.dumps(filters)}
        found: dict[str, OutsideStop] = {}
        missing = set(ids)
        started_at = math.inf
        try:
            with self.wire.request("GET", "/events", query) as response, time_limit(_EVENTS_S):
                started_at = time.monotonic()
                # Each event repeats all labels of its container.
                for event in documents_in(response, skip_longer=True):
                    missing.discard(add_event(found, event))
                    if signalled:
                        missing -= {one for one in missing if one in found and (found[one].by or found[one].signals)}
                    if not missing:
                        break  # the rest of the response would only arrive at `until`
        except SchedulerUnavailableError as error:
            if time.monotonic() - started_at < _EVENTS_S:
                raise
            log.warning("stops of containers are unknown, because the events take too long: %s", error)
        return found

    def inspect(self, container: str) -> dict[str, Any]:
        """Return the inspection of a container."""
        with self.wire.request("GET", f"/containers/{container}/json") as response:
            document: dict[str, Any] = document_in(response)
            return document

    def create(self, name: str, body: Mapping[str, Any], platform: str | None = None) -> str:
        """Create a container and return its id.

        Raises TakenError with the labels of an existing one, and NotFoundError without the image.
        """
        query = {"name": name, **({"platform": platform} if platform else {})}
        deadline = time.monotonic() + _CREATION_S
        while True:
            try:
                with self.wire.request("POST", "/containers/create", query, body) as response:
                    document = document_in(response)
                    for text in document.get("Warnings") or []:
                        log.warning("the Docker engine reports of container %s: %s", name, text)
                    container_id: str = document["Id"]
                    return container_id
            except TakenError as error:
                try:
                    labels = self.inspect(name)["Config"]["Labels"]
                except NotFoundError:
                    # The engine reserves a name before it shows the container, or it was renamed meanwhile.
                    if time.monotonic() >= deadline:
                        raise SchedulerUnavailableError(
                            f"the name {name!r} is taken by a container that the Docker engine does not show"
                        ) from error
                    time.sleep(0.1)
                else:
                    raise TakenError(str(error), labels) from error

    def start(self, container: str) -> None:
        """Start a container; no-op for a running one. If it cannot be started, its inspection shows the reason."""
        deadline = time.monotonic() + _CREATION_S
        while True:
            try:
                with self.wire.request("POST", f"/containers/{container}/start"):
                    return
            except SchedulerRejectedError as error:
                found = _AMBIGUOUS.search(str(error))
                if found is None or time.monotonic() >= deadline:
                    raise
                # Another launcher creates the same network now, or died during that. Networks of others are kept.
                if not self.networks.keep_first(found["name"]):
                    raise
                time.sleep(0.1)

    def wait(self, container: str, timeout_s: float) -> bool:
        """Wait until a container has ended or no longer exists; return False at the timeout."""
        started_at = time.monotonic()
        try:
            with self.wire.request("POST", f"/containers/{container}/wait", timeout_s=timeout_s) as response:
                document_in(response, timeout_s)
        except NotFoundError:
            pass
        except SchedulerUnavailableError:
            if time.monotonic() - started_at < timeout_s:
                raise
            return False
        return True

    def stop(self, container: str, *, wait_s: float | None = None) -> None:
        """Send TERM, and KILL after the container's own grace time; no-op for an ended or unknown one.

        Wait up to `wait_s` for its end; None: do not wait, the engine stops it in the background.
        """
        from requests import ReadTimeout

        limit_s = _STOP_WAIT_S if wait_s is None else wait_s
        try:
            with self.wire.request("POST", f"/containers/{container}/stop", timeout_s=limit_s):
                pass
        except NotFoundError:
            pass
        except SchedulerUnavailableError as error:
            # The engine has received the request, and responds when the container has ended.
            if wait_s is not None or not isinstance(error.__cause__, ReadTimeout):
                raise

    def rename(self, container: str, name: str) -> None:
        """Rename a container; raises `NotFoundError` if another process was faster."""
        deadline = time.monotonic() + _REMOVED_S
        while True:
            try:
                with self.wire.request("POST", f"/containers/{container}/rename", {"name": name}):
                    return
            except AppUnavailableError:
                # The files of a container that is being removed are gone before its name.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)

    def remove(self, container: str, *, force: bool = True) -> None:
        """Remove a container with its anonymous volumes, a live one only with `force`; no-op for an unknown one."""
        deadline = time.monotonic() + _REMOVAL_S
        while True:
            try:
                with self.wire.request("DELETE", f"/containers/{container}", {"force": str(int(force)), "v": "1"}):
                    return
            except (NotFoundError, TakenError):
                return  # 409: its removal has already started
            except AppUnavailableError as error:
                if not _STILL_IN_USE.search(str(error)) or time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)

    def logs(self, container: str, since: str | None, tail: int | None) -> Response:
        """Return the open response with the frames of both streams, each line with its time."""
        return self.wire.open("GET", f"/containers/{container}/logs", _log_query(since, tail))

    def follow_logs(self, container: str, since: str | None, tail: int | None) -> HttpAnswer | None:
        """Return the same as a stream that stays open until the container ends; None if the transport has none."""
        query = {**_log_query(since, tail), "follow": "1"}
        return self.wire.open_socket(f"/containers/{container}/logs?{urlencode(query)}")

    def read_file(self, container: str, path: str, limit: int) -> tuple[bytes, int] | None:
        """Return the first bytes of a file in a container, and its size; None if the file does not exist.

        Also None while the container is being removed.

        Raises:
            NotFoundError: the container does not exist.
            AppUnavailableError: the engine cannot read the file system of the container.
        """
        try:
            archive = self.wire.request("GET", f"/containers/{container}/archive", {"path": path})
            with archive as response, time_limit(ANSWER_S):
                return _only_file(_Stream(response.iter_content(65536), _MAX_HEADERS + limit), limit)
        except TakenError:
            return None
        except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
            raise AppUnavailableError(
                f"the engine sends a damaged archive of {path} of container {container}: {error}"
            ) from error
        except NotFoundError as error:
            if path in str(error):
                return None
            raise
        except AppUnavailableError as error:
            if _LEADS_NOWHERE.search(str(error)):
                return None
            raise

    def started_at(self) -> str | None:
        """Return the start time of the engine (RFC 3339), which is that of its bridge network; None without one."""
        try:
            with self.wire.request("GET", "/networks/bridge") as response:
                created: str = document_in(response)["Created"]
                return created
        except (NotFoundError, KeyError):
            return None

    def probe(self) -> None:
        """Check that containers can be created: create one from any image and remove it without a start."""
        images = self.images.ids()
        made = None if images else self.images.import_empty()
        try:
            body = {
                "Image": made or images[0],
                "Cmd": ["true"],
                "HostConfig": {"NetworkMode": "none"},
                "Labels": dict(UNSET),
            }
            self.remove(self.create(f"launch-probe-{secrets.token_hex(4)}", body))
        finally:
            if made is not None:
                self.images.remove(made)


def _warn_of_skipped(row: str) -> None:
    log.warning(
        "a container is skipped, because its row in the engine's list exceeds 16 MB: %s...; remove it", row[:100]
    )


def _log_query(since: str | None, tail: int | None) -> dict[str, str]:
    query = {"stdout": "1", "stderr": "1", "timestamps": "1", "tail": "all" if tail is None else str(tail)}
    return {**query, "since": since} if since else query


class _Stream(io.RawIOBase):
    """Chunks of a response as a file; at most `most` bytes can be read."""

    def __init__(self, chunks: Iterator[bytes], most: int) -> None:
        self._chunks = chunks
        self._rest = b""
        self._left = most

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
        self._left -= size if size >= 0 else sum(map(len, parts))
        if self._left < 0:
            raise tarfile.ReadError("its headers are too large")
        data = b"".join(parts)
        cut = len(data) if size < 0 else size
        self._rest = data[cut:]
        return data[:cut]


def _only_file(stream: _Stream, limit: int) -> tuple[bytes, int] | None:
    # Read as a stream, so that a large file is not loaded.
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        member = archive.next()
        if member is None or not member.isfile():
            return None
        file = archive.extractfile(member)
        data = file.read(limit) if file else b""
        return data, max(member.size, len(data))


class Networks:
    """The networks of one engine; raises the errors of `Wire`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def ensure(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a bridge network of that name, unless it exists."""
        found = self._named(name)
        if not found:
            body = {"Name": name, "CheckDuplicate": True, "Driver": "bridge", "Labels": dict(labels)}
            try:
                with self._wire.request("POST", "/networks/create", body=body):
                    pass
            except TakenError:
                return
            found = self._named(name)
        self._keep_first(found)

    def keep_first(self, name: str) -> bool:
        """Remove all but the first network of a name; return False if a duplicate does not belong to the launcher.

        Two launchers may have created it at the same moment, because the engine's own check is not atomic.
        """
        return self._keep_first(self._named(name))

    def _keep_first(self, networks: list[dict[str, Any]]) -> bool:
        later = sorted(networks, key=lambda network: (network["Created"], network["Id"]))[1:]
        ours = [network for network in later if Label.MANAGED in (network.get("Labels") or {})]
        for network in ours:
            self._remove(network["Id"])
        return len(ours) == len(later)

    def has(self, name: str) -> bool:
        """Return whether containers can join a network of that name."""
        return bool(self._named(name))

    def remove(self, name: str, app_id: str) -> None:
        """Remove the network that was created for this app."""
        for network in self._named(name):
            if (network.get("Labels") or {}).get(Label.APP_ID) == app_id:
                self._remove(network["Id"])

    def _named(self, name: str) -> list[dict[str, Any]]:
        with self._wire.request("GET", "/networks", {"filters": json.dumps({"name": [name]})}) as response:
            # The engine's filter also matches parts of names.
            return [network for network in document_in(response) if network["Name"] == name]

    def _remove(self, network_id: str) -> None:
        try:
            with self._wire.request("DELETE", f"/networks/{network_id}"):
                pass
        except (NotFoundError, SchedulerRejectedError):
            pass  # already removed, or in use
