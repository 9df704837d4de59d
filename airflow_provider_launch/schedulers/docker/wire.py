"""Sends requests to a Docker engine and translates its errors."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_launch.schedulers._kit.http import NotFoundError, TakenError, server_message, unreachable
from airflow_provider_launch.schedulers.docker.access import (
    connect,
    has_no_session,
    http_target,
    invalid_host,
    is_dead,
    is_plaintext,
    transport_errors,
)
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    LaunchError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.specs.secrets import masked_text
from airflow_provider_launch.util.http_answer import HttpAnswer, HttpTarget, open_answer
from airflow_provider_launch.util.whole_answers import beginning, lines_of, time_limit, whole

if TYPE_CHECKING:
    from docker import APIClient
    from requests import Response

    from airflow_provider_launch.schedulers.docker.options import DockerConnection

PULL = "the pull"
LIST_NEWER = "the list of newer containers"
_BAD_REQUEST, _NOT_FOUND, _CONFLICT, _TOO_MANY = 400, 404, 409, 429
_GATEWAY = {502, 503, 504}
_UNAVAILABLE = {_TOO_MANY, *_GATEWAY}
_SERVER_ERROR = 500
_REDIRECTS, _NOT_MODIFIED = 300, 304
_PIECE_BYTES = 64 * 1024
_MAX_DOCUMENT, _LONGEST_LINE = 64 * 1024 * 1024, 16 * 1024 * 1024
ANSWER_S = 300.0
"""Maximum seconds for a response that is not a stream."""
_LIMITED = "the registry limits the rate of pulls, which a login may raise"
_GPU_CURE = "install the GPU runtime on the engine's host"
# Permanent errors for which the engine responds with 404 or 500.
_LASTING = (
    ("address pool", "remove unused networks, or use the network 'launch'"),
    ("port is already allocated", "choose another port"),
    ("could not select device driver", _GPU_CURE),
    ("failed to discover gpu vendor", _GPU_CURE),
    ("no known gpu vendor", _GPU_CURE),
    ("cannot unmarshal", "use a smaller value"),
)


class RegistryError(LaunchError):
    """The registry refuses a pull, or the engine cannot use it."""


class BadRequestError(SchedulerRejectedError):
    """The request can never succeed, for example because of an invalid path."""


class Wire:
    """The connection to one engine. May be used from several threads at once.

    Every method raises `SchedulerUnavailableError` if the engine is not reached or does not respond, and
    `SchedulerRejectedError` if it refuses.
    """

    def __init__(self, connection: DockerConnection, client: APIClient | None = None) -> None:
        self._connection = connection
        self._url = connection.host or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        self.url = masked_text(self._url)
        """The address for messages, without a password."""
        try:
            self.hostname = urlsplit(self._url).hostname
            """Name of the engine's host, None if it is this host."""
        except ValueError as error:
            raise invalid_host(self._url, error) from error
        self._client = client
        self._target: HttpTarget | None = None
        self._mutex = threading.Lock()

    @property
    def is_plaintext(self) -> bool:
        """Whether requests are sent over the network without encryption."""
        return is_plaintext(self._url, self._connection)

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        with self._mutex:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    @contextmanager
    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        **how: Any,
    ) -> Iterator[Response]:
        """Send a request and yield its response, which is closed afterwards; arguments as for `open`."""
        from urllib3.exceptions import HTTPError

        response = self.open(method, path, query, body, **how)
        try:
            yield response
        except transport_errors(HTTPError) as error:
            # The response was cut off. Errors about its content are left to the caller.
            raise self._unreachable(error) from error
        finally:
            response.close()

    def open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        data: bytes | IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        what: str = "",
    ) -> Response:
        """Send a request and return its response with the body unread; the caller closes it.

        `body` is sent as JSON, `data` unchanged. `timeout_s` limits the seconds without data from the engine. `what`
        names a request whose refusals have another meaning (`PULL`, `LIST_NEWER`).

        Raises:
            NotFoundError: the object does not exist.
            TakenError: the name is taken, or another process is changing the object.
            AppUnavailableError: the engine fails for this container.
            RegistryError: a registry refuses a pull.
        """
        from urllib3.exceptions import HTTPError

        client, response = self._sent(
            method,
            path,
            params=query,
            json=body,
            data=data,
            headers=headers,
            timeout=(self._connection.timeout_s, timeout_s or self._connection.timeout_s),
        )
        if response.headers.get("Content-Encoding", "identity") != "identity":
            response.close()
            raise self._unreachable(OSError("its response is compressed, which was not requested"))
        if response.status_code < _REDIRECTS or response.status_code == _NOT_MODIFIED:
            return response
        with response:
            if response.status_code < _BAD_REQUEST:
                raise SchedulerRejectedError(
                    f"the Docker engine at {self.url} redirects {method} {path} ({response.status_code}), which is not "
                    f"followed; set host of the connection to the engine itself"
                )
            try:
                with time_limit(self._connection.timeout_s):
                    text = server_message(beginning(response.iter_content(_PIECE_BYTES), _PIECE_BYTES))
                outdated = response.status_code == _BAD_REQUEST and "client version" in text
                refusal = self._refused(response.status_code, text, what or f"{method} {path}", outdated=outdated)
            except transport_errors(HTTPError) as error:
                # The message of the refusal was cut off.
                raise self._unreachable(error) from error
            # After an upgrade or downgrade the engine refuses the API version that was negotiated before.
            if outdated:
                self._drop(client)
            raise refusal

    def open_socket(self, path: str) -> HttpAnswer | None:
        """Send a GET request and return its response on a separate socket; None if the connection has no sockets."""
        target = self._target
        if target is None:
            target = self._target = http_target(self._url, self._connection)
        if target is None:
            return None
        client = self._connected()
        headers = {"User-Agent": str(client.headers["User-Agent"])}
        return open_answer(target, f"/v{client.api_version}{path}", headers, self._connection.timeout_s)

    def _sent(self, method: str, path: str, **how: Any) -> tuple[APIClient, Response]:
        """Send a request; return the client that was used, and the response."""
        from requests import ReadTimeout

        has_tried = False
        while True:
            client = self._connected()
            try:
                url = f"{client.base_url}/v{client.api_version}{path}"
                return client, client.request(method, url, stream=True, allow_redirects=False, **how)
            except transport_errors() as error:
                # All requests share one ssh connection, so a broken one must be replaced here.
                if self._url.startswith("ssh://") and not isinstance(error, ReadTimeout):
                    self._drop(client)
                # Open logs may use all sessions of the old connection, and continue there.
                if has_tried or not has_no_session(error):
                    raise self._unreachable(error) from error
                has_tried = True

    def _connected(self) -> APIClient:
        with self._mutex:
            if self._client is None or is_dead(self._client):
                self._client = self._connect()
            return self._client

    def _drop(self, client: APIClient) -> None:
        """Make the next request open a new connection."""
        with self._mutex:
            if self._client is not client:
                return  # another thread was faster
            self._client = None
        # A working connection is closed when the last thread has finished with it.
        if is_dead(client):
            with suppress(Exception):
                client.close()

    def _connect(self) -> APIClient:
        try:
            return connect(self._url, self._connection)
        except LaunchError:
            raise  # first, because without docker-py `transport_errors` cannot be called
        except transport_errors() as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> SchedulerUnavailableError:
        return unreachable(f"the Docker engine at {self.url}", _root(error))

    def _refused(self, code: int, text: str, what: str, *, outdated: bool) -> LaunchError:
        for words, cure in _LASTING:
            if words in text.lower():
                return SchedulerRejectedError(f"the Docker engine at {self.url} refuses: {text}; {cure}")
        if what == PULL and code not in _GATEWAY:
            # Newer engines pass on the registry's status; 429 is its rate limit and not a busy engine.
            return RegistryError(f"{text}; {_LIMITED}" if code == _TOO_MANY else text)
        if code == _NOT_FOUND or (what == LIST_NEWER and "no such container" in text.lower()):
            # While the older container is being removed, the engine responds with 500 instead of 404.
            return NotFoundError(text)
        if code == _CONFLICT:
            return TakenError(text)
        passes = code in _UNAVAILABLE or (code >= _SERVER_ERROR and not what.endswith("/start"))
        if passes or outdated:
            is_of_one = code == _SERVER_ERROR and " /containers/" in what and not what.endswith(" /containers/json")
            unavailable = AppUnavailableError if is_of_one else SchedulerUnavailableError
            return unavailable(f"the Docker engine at {self.url} cannot serve {what} now ({code}): {text}")
        kind = BadRequestError if code == _BAD_REQUEST else SchedulerRejectedError
        return kind(f"the Docker engine at {self.url} refuses {what} ({code}): {text}")


def document_in(response: Response, limit_s: float = ANSWER_S) -> Any:
    """Return the JSON document of a response; an OSError means that it is not valid JSON, too large or too slow."""
    with time_limit(limit_s):
        return _document(whole(response.iter_content(_PIECE_BYTES), _MAX_DOCUMENT))


def documents_in(response: Response, *, skip_longer: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a response, one per line, as they arrive.

    Raises an OSError if a line is not valid JSON; with `skip_longer` lines longer than 16 MB are skipped.
    """
    # A piece has only the data that the engine sends at once.
    for line in lines_of(response.iter_content(_PIECE_BYTES), _LONGEST_LINE, skip_longer=skip_longer):
        document = _document(line) if line.strip() else {}
        yield document if isinstance(document, dict) else {}


def _document(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise OSError(f"the response is not valid JSON, or was cut off: {error}") from error


def _root(error: BaseException) -> str:
    """Return the message of the root cause of an error, which the layers above repeat with other names."""
    lowest = error
    # The engine's own message is one level above the error of its HTTP status.
    while not getattr(lowest, "explanation", None) and (below := lowest.__cause__ or lowest.__context__) is not None:
        lowest = below
    message = getattr(lowest, "explanation", None) or getattr(lowest, "strerror", None)
    text = message or str(lowest) or type(lowest).__name__
    return str(text).splitlines()[0][:300]
