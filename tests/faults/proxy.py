"""A proxy in front of a real engine that injects faults and records requests.

    with FaultProxy() as proxy:                          # in front of the engine of DOCKER_HOST
        proxy.add(Fault(drop_answer(), "POST", "/containers/create"))
        docker.DockerClient(proxy.url)...
        assert proxy.count("POST", "/start") == 3

HTTP/1.1 over a Unix socket or TCP on both sides; TLS and a token towards the engine if given. Bodies are streamed,
also endless ones; connections last as long as those of the client. Upgraded connections (attach, exec) are unsupported.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NoReturn
from urllib.parse import urlsplit

from tests.faults.actions import Action, Fault
from tests.faults.clock import Clock
from tests.faults.wire import Answer, Headers, Request, Stream, framed, read_answer, read_request

if TYPE_CHECKING:
    from typing_extensions import Self

DEFAULT_HOST = "unix:///var/run/docker.sock"
_TICK_S = 0.05


class _Dropped(Exception):
    """The connection must be closed, or is closed."""


def connector(url: str, tls: ssl.SSLContext | None = None) -> Callable[[], socket.socket]:
    """Return a function that connects to `unix:///path`, `tcp://host:port`, `http://host:port` or `https://host:port`."""
    parts = urlsplit(url)

    def unix() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(parts.path)
        except OSError:
            sock.close()
            raise
        return sock

    def tcp() -> socket.socket:
        sock = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 443))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if parts.scheme == "https" or tls:
            return (tls or ssl.create_default_context()).wrap_socket(sock, server_hostname=parts.hostname)
        return sock

    if parts.scheme not in {"unix", "tcp", "http", "https"}:
        raise ValueError(f"the proxy cannot stand before {url!r}; use unix, tcp, http or https")
    return unix if parts.scheme == "unix" else tcp


class Exchange:
    """One request and its answer, as an action sees them."""

    def __init__(self, proxy: FaultProxy, request: Request, client: socket.socket, upstream: Stream) -> None:
        self.request = request
        self._proxy = proxy
        self._client = client
        self._upstream = upstream
        self._clock = proxy._clock

    def forward(self) -> Answer:
        """Pass the request to the engine, and return its answer after the head."""
        self._send_on()
        with _broken_off():
            answer = read_answer(self._upstream, self.request.method)
        return self._clock.moved(self.request, answer) if self._clock else answer

    def leave(self) -> NoReturn:
        """Pass the request to the engine, and close the connection before the answer."""
        self._send_on()
        self.drop()

    def _send_on(self) -> None:
        query = self._clock.query(self.request) if self._clock else self.request.query
        with _broken_off():
            self._upstream.sock.sendall(self.request.head(query, self._proxy._headers) + self.request.body)

    def relay(self, answer: Answer, body: Iterable[bytes] | None = None, *, whole: bool = True) -> None:
        """Send the answer while it arrives, or with another body; without `whole` the end is not marked."""
        self.request.status = answer.status
        self.send(answer.head)
        if body is not None:
            answer.body = iter(body)
        chunked = "chunked" in answer.header("transfer-encoding").lower()
        with _broken_off():
            for piece in framed(answer, self.request.method):
                if whole or not chunked or piece != b"0\r\n\r\n":
                    self.send(piece)
        if whole and not chunked and not answer.header("content-length") and answer.status not in {204, 304}:
            self.drop()  # only the end of the stream ends such a body

    def send(self, data: bytes) -> None:
        """Send bytes to the client, unless stalled."""
        self._proxy._wait_for_gates(self)
        with _broken_off():
            self._client.sendall(data)

    def wait(self, seconds: float | None = None) -> None:
        """Wait, or keep the connection open until the client leaves."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while deadline is None or time.monotonic() < deadline:
            self.pause(_TICK_S if deadline is None else min(_TICK_S, max(0.0, deadline - time.monotonic())))

    def pause(self, seconds: float) -> None:
        """Wait for a moment, shorter when the client leaves."""
        readable, _, _ = select.select([self._client], [], [], seconds)
        if readable:
            self._check_client()
            time.sleep(min(seconds, 0.01))
        if self._proxy._closing:
            raise _Dropped

    def _check_client(self) -> None:
        with _broken_off():
            if not self._client.recv(1, socket.MSG_PEEK):
                raise _Dropped

    def drop(self) -> NoReturn:
        """Close the connection."""
        raise _Dropped


def _says_nothing(sock: socket.socket | None) -> bool:
    """Return whether only TLS session tickets have arrived."""
    if not isinstance(sock, ssl.SSLSocket):
        return False
    sock.setblocking(False)
    try:
        sock.recv(1)
    except ssl.SSLWantReadError:
        return True
    finally:
        sock.setblocking(True)
    return False


@contextlib.contextmanager
def _broken_off() -> Iterator[None]:
    # If one side leaves, close the connection of the other side.
    try:
        yield
    except OSError as error:
        raise _Dropped from error


class FaultProxy:
    """A proxy that listens while the `with` block runs."""

    clock_type: ClassVar[type[Clock]] = Clock

    def __init__(
        self,
        upstream: str | Callable[[], socket.socket] | None = None,
        listen: Literal["unix", "tcp"] = "unix",
        *,
        tls: ssl.SSLContext | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Forward to `upstream`: a URL, a connect function, or None for the Docker engine of this machine.

        `headers` are added to each request, for example a token.
        """
        upstream = upstream or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        self._connect = connector(upstream, tls) if isinstance(upstream, str) else upstream
        self._headers: Headers = list((headers or {}).items())
        self._listen = listen
        self._address: str | tuple[str, int] = ("127.0.0.1", 0)
        self._dir: str | None = None
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: set[socket.socket] = set()
        self._following: dict[socket.socket, str] = {}
        self._faults: list[Fault] = []
        self._added: list[Fault] = []
        self._gates: list[tuple[re.Pattern[str], threading.Event]] = []
        self._clock: Clock | None = None
        self._closing = False
        self.requests: list[Request] = []

    @property
    def url(self) -> str:
        """The address for the client: `unix:///path` or `tcp://127.0.0.1:port`."""
        if isinstance(self._address, str):
            return f"unix://{self._address}"
        return "tcp://{}:{}".format(*self._address)

    def __enter__(self) -> Self:
        if self._listen == "unix":
            # Not below pytest's folder, because the path of a Unix socket is limited to 107 bytes.
            self._dir = tempfile.mkdtemp(prefix="launch-proxy-")
            self._address = str(Path(self._dir, "p.sock"))
        self._open()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing = True
        self._shut()
        if self._dir:
            shutil.rmtree(self._dir)
        for thread in self._threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in self._threads), "a connection of the proxy does not end"

    # Calls of tests

    def add(self, fault: Fault) -> Fault:
        """Add a fault. If several faults match a request, the first one acts and all count it."""
        with self._lock:
            self._faults.append(fault)
            self._added.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    def missed(self) -> list[Fault]:
        """Return the unused faults, which show that the test did not reach them."""
        with self._lock:
            return [fault for fault in self._added if not fault.hits and not fault.may_miss]

    def matching(self, method: str | None = None, path: str = "") -> list[Request]:
        """Return the requests so far with this method and a matching path."""
        with self._lock:
            found = list(self.requests)
        return [one for one in found if method in {None, one.method} and re.search(path, one.path)]

    def count(self, method: str | None = None, path: str = "") -> int:
        """Return the number of requests so far, including refused and lost ones."""
        return len(self.matching(method, path))

    def connections(self) -> int:
        """Return the number of open client connections."""
        with self._lock:
            # One of the client and one to the engine.
            return len(self._sockets) // 2

    def cut(self, query: str) -> int:
        """Close connections with running answers and this text in the query; return their number."""
        with self._lock:
            cut = [client for client, asked in self._following.items() if query in asked]
            for client in cut:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
        return len(cut)

    @contextlib.contextmanager
    def refused(self) -> Iterator[None]:
        """Act as an engine that is down: open connections end, new ones are refused."""
        self._shut()
        try:
            yield
        finally:
            self._open()

    @contextlib.contextmanager
    def answering(self, action: Action) -> Iterator[None]:
        """Apply this to each request."""
        self.add(Fault(action, times=None))
        try:
            yield
        finally:
            self.clear()

    @contextlib.contextmanager
    def stalled(self, path: str = "") -> Iterator[None]:
        """Stall requests with a matching path, including running answers; they continue afterwards."""
        gate = (re.compile(path), threading.Event())
        self._gates.append(gate)
        try:
            yield
        finally:
            self._gates.remove(gate)
            gate[1].set()

    @contextlib.contextmanager
    def clock(self, offset_s: float = 0.0) -> Iterator[Clock]:
        """Act as an engine with a clock offset in seconds, for new requests; it may also step."""
        self._clock = self.clock_type(offset_s)
        try:
            yield self._clock
        finally:
            self._clock = None

    # Connections

    def _open(self) -> None:
        if isinstance(self._address, str):
            Path(self._address).unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
        else:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(self._address)
        listener.listen(128)
        if not isinstance(self._address, str):
            self._address = listener.getsockname()
        self._listener = listener
        self._start(self._accept, listener)

    def _shut(self) -> None:
        if self._listener:
            # Wakes the thread that accepts, which closes it. The file stays: "refused" and not "no such file".
            self._listener.shutdown(socket.SHUT_RDWR)
            self._accepting.join(20)
            self._listener = None
        with self._lock:
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _start(self, target: Callable[[socket.socket], None], sock: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(sock,), name="fault-proxy", daemon=True)
        if target == self._accept:
            self._accepting = thread
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with self._lock:
                    self._sockets.add(client)
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        upstream: socket.socket | None = None
        try:
            with _broken_off():
                upstream = self._connect()
                with self._lock:
                    self._sockets.add(upstream)
                stream = Stream(upstream, lambda: self._readable(client, upstream))
                asked = Stream(client, lambda: self._next_request(client, upstream))
                while request := read_request(asked):
                    self._answer(Exchange(self, request, client, stream))
                    if "close" in dict(request.headers).get("Connection", "").lower():
                        return
        except _Dropped:
            pass
        finally:
            with self._lock:
                self._sockets -= {client, upstream}
            client.close()
            if upstream:
                upstream.close()

    def _answer(self, exchange: Exchange) -> None:
        with self._lock:
            self.requests.append(exchange.request)
            self._following[exchange._client] = str(exchange.request.query)
            fault = next(iter([fault for fault in self._faults if fault.due(exchange.request)]), None)
        try:
            self._wait_for_gates(exchange)
            if fault:
                fault.hit()
                fault.action(exchange)
            else:
                exchange.relay(exchange.forward())
        finally:
            with self._lock:
                self._following.pop(exchange._client, None)

    def _wait_for_gates(self, exchange: Exchange) -> None:
        for pattern, opened in list(self._gates):
            while pattern.search(exchange.request.path) and not opened.is_set():
                exchange.pause(_TICK_S)

    def _readable(self, client: socket.socket, upstream: socket.socket | None) -> None:
        """Wait until the engine sends; ends if the client leaves."""
        watched = [client, upstream]
        while True:
            if isinstance(upstream, ssl.SSLSocket) and upstream.pending():
                return
            readable, _, _ = select.select(watched, [], [], 1.0)
            if self._closing:
                raise _Dropped
            if upstream in readable:
                return
            if client in readable and not client.recv(1, socket.MSG_PEEK):
                raise _Dropped
            if client in readable:
                watched = [upstream]  # the client sends its next request already

    def _next_request(self, client: socket.socket, upstream: socket.socket | None) -> None:
        """Wait until the client sends; if the engine closes the idle connection, close that of the client too."""
        while True:
            readable, _, _ = select.select([client, upstream], [], [])
            if client in readable:
                return
            if not _says_nothing(upstream):
                raise _Dropped
