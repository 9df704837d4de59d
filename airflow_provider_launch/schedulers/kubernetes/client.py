"""Client of the Kubernetes API: sends requests as JSON and translates their errors.

The `kubernetes` package gives credentials and connections. Its models are not used, because they are three times
slower than the JSON itself.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from airflow_provider_launch.schedulers._kit.http import (
    BusyRetry,
    NotFoundError,
    TakenError,
    epoch_of,
    server_message,
    unreachable,
)
from airflow_provider_launch.schedulers.kubernetes.access import Access, stamps
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    LaunchError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.specs.secrets import masked_text
from airflow_provider_launch.util.http_answer import HttpAnswer, HttpTarget, open_answer
from airflow_provider_launch.util.whole_answers import TooLargeError, beginning, time_limit, whole

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

    from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection

PAGE = 1000
_PIECE_BYTES, _MAX_ANSWER, _MAX_LIST = 16 * 1024, 64 * 1024 * 1024, 512 * 1024 * 1024
"""A compressed piece may grow a thousandfold. `_MAX_LIST` limits all pages of a list together."""
_ANSWER_S, _MESSAGE_S = 300.0, 30.0
"""Time limits for a whole answer, and for the text of a refusal."""
_GROUPS = {
    "jobs": "/apis/batch/v1",
    "services": "/api/v1",
    "configmaps": "/api/v1",
    "pods": "/api/v1",
    "events": "/api/v1",
    "workloads": "/apis/kueue.x-k8s.io/v1beta1",
}
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _GONE, _INVALID, _TOO_MANY = 401, 403, 404, 409, 410, 422, 429
_BAD_REQUEST, _FAILURES, _SERVER_ERROR = 400, 400, 500
_BUSY_RETRY_S = 8.0
"""Seconds for which a request is repeated while the server is too busy."""
_ONE_APP_RETRY_S = 1.0
"""Seconds for which a request is repeated that only a webhook or a node fails: other apps must not wait for it."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0
_RELISTS = 3
_CLOCK_SET_S = 2.0
_CANNOT = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)"')
_JSON_PATCH, _MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"


class ConflictError(LaunchError):
    """The object has changed since it was read; read it again."""


class NotStartedError(LaunchError):
    """The container of the pod has not started, so it has no log."""


class Cluster:
    """One namespace of one cluster. May be used from several threads at once.

    Every method raises `SchedulerUnavailableError` if the cluster is unreachable or too busy, `AppUnavailableError` if
    only a webhook is, and `SchedulerRejectedError` if the cluster refuses the request.
    """

    def __init__(self, connection: KubernetesConnection) -> None:
        self._connection = connection
        self._mutex = threading.Lock()
        self._access: Access | None = None
        self._targets: dict[Access, HttpTarget | None] = {}
        self.ahead_s = 0.0
        """Seconds by which the server's clock is ahead of ours, according to its answers."""

    @property
    def url(self) -> str:
        """The address of the API server, for messages."""
        return masked_text(self._accessed().url)

    @property
    def namespace(self) -> str:
        """The namespace of the apps."""
        return self._accessed().namespace

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        with self._mutex:
            access, self._access = self._access, None
        if access is not None:
            access.pool.clear()

    # ---- objects -----------------------------------------------------------------------------------------------------

    def list(self, kind: str, selector: str, *, fields: str = "") -> tuple[list[dict[str, Any]], float]:
        """Return the objects of a kind, and the server's time in epoch seconds; sends one request per 1000 objects."""
        for _ in range(_RELISTS):
            found: list[dict[str, Any]] = []
            query = {"labelSelector": selector, "limit": str(PAGE)}
            if fields:
                query["fieldSelector"] = fields
            try:
                with time_limit(_ANSWER_S):
                    return found, self._list(kind, query, found)
            except _ExpiredError:
                continue  # the rest of the list has expired: start again
        raise SchedulerUnavailableError(f"the list of {kind} at {self.url} changes faster than it is read")

    def _list(self, kind: str, query: dict[str, str], found: builtins.list[dict[str, Any]]) -> float:
        """Add the objects of all pages to `found`; return the server's time of the last page."""
        left = _MAX_LIST
        while True:
            try:
                page, now, size = self._get(self._path(kind), query)
            except _TooLargeError:
                if query["limit"] == "1":
                    raise
                # Objects may have a megabyte each.
                query["limit"] = str(int(query["limit"]) // 8 or 1)
                continue
            items, about = page.get("items") or [], page.get("metadata") or {}
            if not isinstance(items, list) or not isinstance(about, dict):
                raise self._unreachable(OSError(f"its list of {kind} is not a valid list"))
            found += items
            if (left := left - size) < 0:
                raise self._unreachable(OSError(f"its list of {kind} has more than {_MAX_LIST} bytes"))
            if not (token := about.get("continue")):
                return now
            query["continue"] = token

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object; None if it does not exist."""
        try:
            return self._get(self._path(kind, name))[0]
        except NotFoundError:
            return None

    def create(self, kind: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object of a kind in plural, such as `jobs`, and return it; with `dry_run` only check it.

        Raises:
            TakenError: the name is taken.
            NotFoundError: the namespace does not exist.
        """
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self._request("POST", self._path(kind), query, body)

    def patch(self, kind: str, name: str, change: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Change an object and return it: a list is a JSON Patch, anything else a merge patch.

        Raises:
            ConflictError: a test of the JSON Patch failed, or the object has another resourceVersion.
        """
        how = _JSON_PATCH if isinstance(change, list) else _MERGE_PATCH
        try:
            return self._request("PATCH", self._path(kind, name), {"fieldValidation": "Strict"}, change, how)
        except _InvalidError as error:
            if isinstance(change, list):
                raise ConflictError(str(error)) from error
            raise

    def delete(self, kind: str, name: str, uid: str) -> None:
        """Delete an object after the objects that it owns; no-op if it is gone or has another uid."""
        body = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        with contextlib.suppress(NotFoundError, ConflictError):
            self._request("DELETE", self._path(kind, name), {}, body)

    def may(self, verb: str, resource: str) -> bool:
        """Return whether we have this right; `resource` is a name such as `jobs.batch` or `pods/log`."""
        name, _, subresource = resource.partition("/")
        name, _, group = name.partition(".")
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": name}
        if subresource:
            asked["subresource"] = subresource
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = self._request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {}, body)
        return bool(answer["status"].get("allowed"))

    def log(self, pod: str, container: str, since: str | None, *, tail: int | None = None) -> BaseHTTPResponse:
        """Return the open answer with the log of a pod; each line starts with its time.

        It starts at `since`, in whole seconds of RFC 3339, and has at most the last `tail` lines.

        Raises:
            NotFoundError: the pod does not exist.
            NotStartedError: the container has not started.
        """
        try:
            return self._open("GET", f"{self._path('pods', pod)}/log", _log_query(container, since, tail))
        except _BadRequestError as error:
            raise NotStartedError(str(error)) from error

    def log_end(self, pod: str, container: str, lines: int, max_bytes: int) -> bytes:
        """Return the last lines of the log of a pod, without times; the last ones beyond `max_bytes` are missing."""
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(max_bytes)}
        try:
            with self._open("GET", f"{self._path('pods', pod)}/log", query) as response:
                return self._text(response, max_bytes)
        except _BadRequestError as error:
            raise NotFoundError(str(error)) from error

    def _text(self, response: BaseHTTPResponse, max_bytes: int) -> bytes:
        from urllib3.exceptions import HTTPError

        try:
            with time_limit(_MESSAGE_S):
                return beginning(response.stream(_PIECE_BYTES, decode_content=True), max_bytes)
        except (HTTPError, OSError) as error:
            response.close()
            raise self._unreachable(error) from error

    def follow_log(self, pod: str, container: str, since: str | None, *, tail: int | None = None) -> HttpAnswer | None:
        """Return the log as an answer on its own socket that continues until the container ends.

        None if the proxy of the cluster does not work with plain sockets.
        """
        access = self._accessed()
        if access not in self._targets:
            self._targets = {access: access.target()}
        target = self._targets[access]
        if target is None:
            return None
        query = {**_log_query(container, since, tail), "follow": "true"}
        path = f"{urlsplit(access.url).path}{self._path('pods', pod)}/log?{urlencode(query)}"
        return open_answer(target, path, {"Accept": "*/*", **access.headers()}, self._connection.timeout_s)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _path(self, kind: str, name: str = "") -> str:
        path = f"{_GROUPS[kind]}/namespaces/{quote(self.namespace)}/{kind}"
        return f"{path}/{quote(name, safe='')}" if name else path

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> tuple[dict[str, Any], float, int]:
        """Return a document, the server's time, and the size in bytes."""
        with self._open("GET", path, query or {}) as response:
            document, size = self._body(response)
            date = response.headers.get("Date")
        try:
            now = epoch_of(date) if date else time.time()
        except ValueError as error:
            raise self._unreachable(error) from error
        ahead_s = now - time.time()
        # The header has whole seconds, so the largest difference is the most exact one, unless a clock was set.
        self.ahead_s = ahead_s if abs(ahead_s - self.ahead_s) > _CLOCK_SET_S else max(ahead_s, self.ahead_s)
        return document, now, size

    def _request(
        self, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str = "application/json"
    ) -> dict[str, Any]:
        with self._open(method, path, query, body, content_type) as response:
            return self._body(response)[0]

    def _body(self, response: BaseHTTPResponse) -> tuple[dict[str, Any], int]:
        from urllib3.exceptions import HTTPError

        try:
            with time_limit(_ANSWER_S):
                data = whole(response.stream(_PIECE_BYTES, decode_content=True), _MAX_ANSWER)
            document = json.loads(data)
        except TooLargeError as error:
            response.close()
            raise _TooLargeError(str(self._unreachable(error))) from error
        except (HTTPError, OSError, ValueError, RecursionError) as error:
            # The answer was cut off.
            response.close()
            raise self._unreachable(error) from error
        return document if isinstance(document, dict) else {}, len(data)

    def _open(
        self, method: str, path: str, query: Mapping[str, str], body: Any = None, content_type: str = "application/json"
    ) -> BaseHTTPResponse:
        """Return a successful answer; repeat the request while the server is too busy.

        Every request may be repeated: a name is created once, and each change names the state that it changes.
        """
        retry, renewed = BusyRetry(_FIRST_PAUSE_S, _LONGEST_PAUSE_S), False
        while True:
            response = self._sent(method, path, query, body, content_type)
            if response.status < _FAILURES:
                return response
            code, wait_s = response.status, _seconds(response.headers.get("Retry-After"))
            text = _message(response)
            if code == _UNAUTHORIZED and not renewed:
                # A token is renewed in its file, or by its program.
                renewed = True
                self.close()
                continue
            if code != _TOO_MANY and code < _SERVER_ERROR:
                raise self._refused(code, text, f"{method} {path}")
            # A webhook refuses one object, and the kubelet of one node may not serve its logs.
            is_of_one = code == _SERVER_ERROR and ("webhook" in text if method != "GET" else path.endswith("/log"))
            limit_s = _ONE_APP_RETRY_S if is_of_one else min(_BUSY_RETRY_S, self._connection.timeout_s)
            if not retry.pause(limit_s, wait_s):
                kind = AppUnavailableError if is_of_one else SchedulerUnavailableError
                raise kind(f"the Kubernetes API at {self.url} cannot serve {method} {path} now ({code}): {text}")

    def _sent(self, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str) -> BaseHTTPResponse:
        from urllib3.exceptions import HTTPError, ProtocolError

        access = self._accessed()
        url = f"{access.url}{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip", **access.headers()}
        if data is not None:
            headers["Content-Type"] = content_type
        for last in (False, True):
            try:
                return _plain(
                    access.pool.request(
                        method,
                        url,
                        body=data,
                        headers=headers,
                        preload_content=False,
                        retries=False,
                        timeout=self._connection.timeout_s,
                    )
                )
            except ProtocolError as error:
                # The server has closed an idle connection of the pool.
                if last:
                    raise self._cut_off(access, error) from error
            except (HTTPError, OSError) as error:
                raise self._cut_off(access, error) from error
        raise AssertionError

    def _accessed(self) -> Access:
        with self._mutex:
            if self._access is None:
                self._access = Access(self._connection)
            return self._access

    def _cut_off(self, access: Access, error: Exception) -> SchedulerUnavailableError:
        """Return the error to raise; if the kubeconfig has changed, the next request uses the new one.

        A triggerer runs for months, and the cluster may get another address or certificate meanwhile. Requests of other
        threads finish with the old one.
        """
        unreachable = self._unreachable(error)
        if stamps(self._connection) == access.stamps:
            return unreachable
        try:
            fresh = Access(self._connection)
        except LaunchError:
            return unreachable  # the file may be half written
        with self._mutex:
            if self._access is access:
                self._access = fresh
        access.pool.clear()
        return unreachable

    def _unreachable(self, error: Exception) -> SchedulerUnavailableError:
        text = " ".join(str(error).split())[:300] or type(error).__name__
        return unreachable(f"the Kubernetes API at {self.url}", text)

    def _refused(self, code: int, text: str, what: str) -> LaunchError:
        kinds: dict[int, type[LaunchError]] = {
            _NOT_FOUND: NotFoundError,
            _GONE: _ExpiredError,
            _INVALID: _InvalidError,
            _BAD_REQUEST: _BadRequestError,
        }
        if code in kinds:
            return kinds[code](text)
        if code == _CONFLICT:
            return TakenError(text) if "already exists" in text else ConflictError(text)
        if code == _UNAUTHORIZED:
            return SchedulerRejectedError(
                f"the Kubernetes API at {self.url} does not accept our credentials ({text}); "
                f"give valid ones in the connection"
            )
        if code == _FORBIDDEN and (found := _CANNOT.search(text)):
            return SchedulerRejectedError(
                f"user {found['user']!r} may not {found['verb']} {found['resource']!r} in namespace "
                f"{self.namespace!r} of {self.url}; ask the administrator of the cluster to grant it, "
                f"docs/kubernetes.md has the Role"
            )
        return SchedulerRejectedError(f"the Kubernetes API at {self.url} refuses {what} ({code}): {text}")


class _TooLargeError(SchedulerUnavailableError):
    """The answer exceeds the size limit."""


class _ExpiredError(LaunchError):
    """The token of a list has expired."""


class MalformedError(SchedulerRejectedError):
    """The object is malformed, so a retry cannot succeed."""


class _InvalidError(MalformedError):
    """The object is malformed, or a test of a JSON Patch failed."""


class _BadRequestError(MalformedError):
    """The request is malformed, or the log that it asks for is not available yet."""


def _plain(response: BaseHTTPResponse) -> BaseHTTPResponse:
    """Return the answer; raises `OSError` if its compression is not the requested one."""
    if response.headers.get("Content-Encoding", "identity") not in {"identity", "gzip"}:
        response.close()
        raise OSError("its answer is compressed in a way that was not asked for")
    return response


def _log_query(container: str, since: str | None, tail: int | None) -> dict[str, str]:
    query = {"container": container, "timestamps": "true", **({"sinceTime": since} if since else {})}
    return query if tail is None else {**query, "tailLines": str(tail)}


def _message(response: BaseHTTPResponse) -> str:
    from urllib3.exceptions import HTTPError

    try:
        with time_limit(_MESSAGE_S):
            data = beginning(response.stream(_PIECE_BYTES, decode_content=True), _PIECE_BYTES)
    except (HTTPError, OSError):
        data = b""
    # The unread rest of an answer would be taken for the next answer.
    if 0 < len(data) < _PIECE_BYTES:
        response.release_conn()
    else:
        response.close()
    return server_message(data)


def _seconds(text: str | None) -> float | None:
    try:
        wait_s = 0.0 if text is None else float(text)
    except ValueError:
        return None
    return None if text is None or not math.isfinite(wait_s) else max(wait_s, 0.0)


def chunks(response: BaseHTTPResponse) -> Iterator[bytes]:
    """Yield the pieces of an answer as they arrive."""
    yield from response.stream(65536, decode_content=True)
