"""The Docker engine as we use it: its containers, with what belongs to them."""

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
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow_provider_launch.schedulers._kit.http import NotFoundError, TakenError
from airflow_provider_launch.schedulers.docker.containers import Container, container_in
from airflow_provider_launch.schedulers.docker.images import Images
from airflow_provider_launch.schedulers.docker.naming import UNSET, Label
from airflow_provider_launch.schedulers.docker.networks import Networks
from airflow_provider_launch.schedulers.docker.outside_stops import OutsideStop, Uptimes, learn
from airflow_provider_launch.schedulers.docker.wire import ANSWER_S, LIST_NEWER, Wire, document_in, documents_in
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.util.json_rows import json_rows
from airflow_provider_launch.util.whole_answers import bounded, time_limit

if TYPE_CHECKING:
    from requests import Response

    from airflow_provider_launch.schedulers.docker.options import DockerConnection
    from airflow_provider_launch.util.http_answer import HttpAnswer

log = logging.getLogger(__name__)

_STOP_WAIT_S = 0.3
_CREATION_S = 5.0
_EVENTS_S = 30.0
"""How long the list of events may take; an engine remembers some hundred."""
_PIECE_BYTES = 64 * 1024
_MAX_LIST = 512 * 1024 * 1024
"""Of all containers together: 50 KB for each of ten thousand."""
_MAX_HEADERS = 256 * 1024
"""Of a file in an archive: names and attributes, which may be chained without an end."""
_LEADS_NOWHERE = re.compile(
    r"too many links|too many levels of symbolic links|lstat .*: not a directory", re.IGNORECASE
)
"""What the engine reports of a path that no file can have: the program made a loop or a file of its directory."""
_AMBIGUOUS = re.compile(r"network (?P<name>\S+) is ambiguous")


class Engine:
    """One Docker engine. May be used from several threads at once.

    Every method raises `SchedulerUnavailableError` when the engine is not reached or does not answer, and
    `SchedulerRejectedError` when it refuses.
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
        with self.wire.request("GET", "/containers/json", query, what=LIST_NEWER if since else "") as response:
            restarts = self._uptimes.restarts
            try:
                now = parsedate_to_datetime(response.headers["Date"]).timestamp()
                with time_limit(ANSWER_S):
                    pieces = bounded(response.iter_content(_PIECE_BYTES), _MAX_LIST)
                    rows = json_rows(pieces, _warn_of_skipped)
                    return [container_in(row, known or {}, self._is_copy, restarts(row, now)) for row in rows], now
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise OSError(f"its list of containers cannot be read, or is cut off: {error}") from error

    def _is_copy(self, image_id: str) -> bool:
        """Return whether an image was made from a container of ours, and so gives our labels to others."""
        if image_id not in self._copies:
            self._copies[image_id] = Label.NAME in self.images.labels(image_id)
        return self._copies[image_id]

    def stops(self, ids: Collection[str], since: int, until: int) -> dict[str, OutsideStop]:
        """Return what somebody has done to containers that have ended, as far as the engine remembers it.

        Args:
            ids: of the containers.
            since: when the first of them was created, in epoch seconds.
            until: when to stop waiting for their ends.

        An answer that takes too long is given up: what is known of other apps must not wait for it.
        """
        filters = {"type": ["container"], "label": [f"{Label.MANAGED}=true"], "event": ["kill", "die", "restart"]}
        query = {"since": str(since), "until": str(until), "filters": json.dumps(filters)}
        found: dict[str, OutsideStop] = {}
        missing = set(ids)
        began = math.inf
        try:
            with self.wire.request("GET", "/events", query) as response, time_limit(_EVENTS_S):
                began = time.monotonic()
                # Each event repeats all labels of its container.
                for event in documents_in(response, skip_longer=True):
                    missing.discard(learn(found, event))
                    if not missing:
                        break  # the rest of the answer would come when the time is over
        except SchedulerUnavailableError as error:
            if time.monotonic() - began < _EVENTS_S:
                raise
            log.warning("who has stopped containers that ended is not known, since the events take too long: %s", error)
        return found

    def inspect(self, container: str) -> dict[str, Any]:
        """Return all that is known of a container."""
        with self.wire.request("GET", f"/containers/{container}/json") as response:
            document: dict[str, Any] = document_in(response)
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
            SchedulerRejectedError: it cannot be started; its inspection shows why from now on.
        """
        deadline = time.monotonic() + _CREATION_S
        while True:
            try:
                with self.wire.request("POST", f"/containers/{container}/start"):
                    return
            except SchedulerRejectedError as error:
                found = _AMBIGUOUS.search(str(error))
                if found is None or time.monotonic() >= deadline:
                    raise
                # Another launcher makes ours in this moment, or has died over it; what others have made stays.
                if not self.networks.keep_first(found["name"]):
                    raise
                time.sleep(0.1)

    def wait(self, container: str, timeout_s: float) -> bool:
        """Wait until a container has ended, or is gone; False: it has not within the time."""
        began = time.monotonic()
        try:
            with self.wire.request("POST", f"/containers/{container}/wait", timeout_s=timeout_s) as response:
                document_in(response, timeout_s)
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
            with self.wire.request("POST", f"/containers/{container}/stop", timeout_s=limit_s):
                pass
        except NotFoundError:
            pass
        except SchedulerUnavailableError as error:
            # The engine has heard it, and answers when the container has ended.
            if wait_s is not None or not isinstance(error.__cause__, ReadTimeout):
                raise

    def rename(self, container: str, name: str) -> None:
        """Give a container another name; `NotFoundError` if somebody else was faster."""
        with self.wire.request("POST", f"/containers/{container}/rename", {"name": name}):
            pass

    def remove(self, container: str, *, force: bool = True) -> None:
        """Remove a container with its anonymous volumes, no-op for an unknown one; a live one only by force."""
        try:
            with self.wire.request("DELETE", f"/containers/{container}", {"force": str(int(force)), "v": "1"}):
                pass
        except (NotFoundError, TakenError):
            pass  # 409: its removal is under way

    def logs(self, container: str, since: str | None, tail: int | None) -> Response:
        """Return the open answer with the frames of both streams, each line with its time."""
        return self.wire.open("GET", f"/containers/{container}/logs", _log_query(since, tail))

    def follow_logs(self, container: str, since: str | None, tail: int | None) -> HttpAnswer | None:
        """Return the same as an answer that goes on until the container ends; None: not by this kind of connection.

        Raises:
            OSError: there is no such answer.
        """
        query = {**_log_query(since, tail), "follow": "1"}
        return self.wire.open_socket(f"/containers/{container}/logs?{urlencode(query)}")

    def read_file(self, container: str, path: str, limit: int) -> tuple[bytes, int] | None:
        """Return the beginning of a file in a container, and its size; None: it is not there, or being removed.

        Raises:
            NotFoundError: the container is not there.
            AppUnavailableError: the engine fails at its file system.
        """
        try:
            archive = self.wire.request("GET", f"/containers/{container}/archive", {"path": path})
            with archive as response, time_limit(ANSWER_S):
                return _only_file(_Stream(response.iter_content(65536), _MAX_HEADERS + limit), limit)
        except TakenError:
            return None
        except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
            raise AppUnavailableError(f"the engine sends {path} of container {container} damaged: {error}") from error
        except NotFoundError as error:
            if path in str(error):
                return None
            raise
        except AppUnavailableError as error:
            if _LEADS_NOWHERE.search(str(error)):
                return None
            raise

    def started_at(self) -> str | None:
        """Return since when the engine runs (RFC 3339); it makes this network when it starts. None: it has none."""
        try:
            with self.wire.request("GET", "/networks/bridge") as response:
                created: str = document_in(response)["Created"]
                return created
        except (NotFoundError, KeyError):
            return None

    def probe(self) -> None:
        """Prove that containers may be created: make one, never started, and remove it, with any image there is."""
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
    log.warning("a container is left out, of which the engine lists more than 16 MB: %s...; remove it", row[:100])


def _log_query(since: str | None, tail: int | None) -> dict[str, str]:
    query = {"stdout": "1", "stderr": "1", "timestamps": "1", "tail": "all" if tail is None else str(tail)}
    return {**query, "since": since} if since else query


class _Stream(io.RawIOBase):
    """Chunks of an answer as a file, of which so many bytes are read at most."""

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
    # Read as it comes, so that a large file is not loaded.
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        member = archive.next()
        if member is None or not member.isfile():
            return None
        file = archive.extractfile(member)
        data = file.read(limit) if file else b""
        return data, max(member.size, len(data))
