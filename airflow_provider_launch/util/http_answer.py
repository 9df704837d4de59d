"""HTTP responses that last for hours, read from a plain socket, so that one thread can wait for many of them.

The SDKs' libraries hide the socket, and need a thread for each response.
"""

from __future__ import annotations

import io
import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, parse_headers

_OK = 200
_MAX_HEADER_BYTES, _MAX_SIZE_LINE, _MAX_TEXT = 64 * 1024, 1024, 2000
_READ_BYTES = 64 * 1024
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,16})[ \t]*(?:;|\r?\Z)")
# Notices a connection that a firewall dropped after one minute, and keeps balancers from closing it as idle.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 30, 10, 3


class RefusedError(OSError):
    """The server answered with an error; the text is the reason."""


@dataclass(frozen=True)
class HttpTarget:
    """The address of a server."""

    host: str
    port: int = 80
    unix_path: str = ""
    """Path of a Unix socket, used instead of host and port."""
    context: ssl.SSLContext | None = None
    """None: without TLS."""
    server_name: str = ""
    """Host name that the certificate must match; `host` if empty."""
    proxy: tuple[str, int] | None = None
    """A proxy that opens the connection by CONNECT."""
    proxy_headers: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """A name that is unique per server."""
        return self.unix_path or f"{self.host}:{self.port}"

    def connect(self, timeout_s: float) -> socket.socket:
        """Return a new connection, or raise `OSError`."""
        if self.unix_path:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(timeout_s)
            try:
                connection.connect(self.unix_path)
            except BaseException:
                connection.close()
                raise
            return connection
        connection = (
            self._tunnel(timeout_s) if self.proxy else socket.create_connection((self.host, self.port), timeout_s)
        )
        try:
            _keep_alive(connection)
            if self.context is not None:
                # `ssl` itself closes the new socket only after some kinds of errors, not when a task times out.
                connection = secured = self.context.wrap_socket(
                    connection, server_hostname=self.server_name or self.host, do_handshake_on_connect=False
                )
                secured.do_handshake()
        except BaseException:
            connection.close()
            raise
        return connection

    def _tunnel(self, timeout_s: float) -> socket.socket:
        assert self.proxy is not None
        connection = socket.create_connection(self.proxy, timeout_s)
        deadline = time.monotonic() + timeout_s
        try:
            name = f"[{self.host}]" if ":" in self.host else self.host.encode("idna").decode()
            fields = [("Host", f"{name}:{self.port}"), *self.proxy_headers]
            lines = [f"CONNECT {name}:{self.port} HTTP/1.1", *(f"{field}: {value}" for field, value in fields)]
            connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
            # Not by http.client, which only limits the length of single lines.
            _check_tunnel(*_read_header(connection, deadline), self.proxy[0])
            connection.settimeout(timeout_s)
        except ValueError as error:
            connection.close()
            raise OSError(f"the proxy {self.proxy[0]} does not answer as an HTTP proxy: {error}") from error
        except BaseException:
            connection.close()
            raise
        return connection


class Body:
    """The body of a response, decoded piece by piece; does no I/O.

    A `chunked` body ends with its last chunk; another one ends with the connection.
    """

    __slots__ = ("_chunked", "_left", "_line", "_skip", "complete")

    def __init__(self, *, chunked: bool) -> None:
        self.complete = False
        """The server has marked the end."""
        self._chunked = chunked
        self._left = self._skip = 0
        self._line = b""

    def feed(self, data: bytes) -> bytes:
        """Return the part of the body in these bytes; a ValueError if they are not a valid chunk."""
        if not self._chunked:
            return data
        parts: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.complete:
            if self._left:
                part = data[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                self._skip = 0 if self._left else 2
            elif self._skip:
                # The line break that ends a chunk.
                skipped = min(self._skip, size - at)
                at += skipped
                self._skip -= skipped
            else:
                end = data.find(b"\n", at)
                self._line += data[at : size if end < 0 else end]
                if len(self._line) > _MAX_SIZE_LINE:
                    raise ValueError("a chunk without a size")
                if end < 0:
                    break
                at = end + 1
                found = _CHUNK_SIZE.match(self._line)
                if found is None:
                    raise ValueError(f"{self._line[:40]!r} is not the size of a chunk")
                self._left = int(found[1], 16)
                self._line = b""
                # After the last chunk there may be trailers, which are ignored.
                self.complete = self._left == 0
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass
class HttpAnswer:
    """A response whose body is still to be read; the caller closes its socket."""

    sock: socket.socket
    body: Body
    first: bytes
    """Bytes that came with the header; pass them to `body.feed`."""


def open_answer(target: HttpTarget, path: str, headers: Mapping[str, str], timeout_s: float) -> HttpAnswer:
    """Send a GET request and return the response as soon as its header is complete.

    `timeout_s` limits connecting, sending, and the whole header.

    Raises:
        RefusedError: the status of the answer is not 200.
        OSError: there is no response.
    """
    sock = target.connect(timeout_s)
    try:
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {target.host}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        # If a header comes byte by byte, each read stays below its limit.
        deadline = time.monotonic() + timeout_s
        header, first = _read_header(sock, deadline)
        status_line, _, rest = header.partition(b"\r\n")
        fields = parse_headers(io.BytesIO(rest))
        status = int(status_line.split()[1])
        body = Body(chunked=fields.get("Transfer-Encoding", "").lower() == "chunked")
        _check(status, sock, body, first, deadline)
    except (ValueError, IndexError, HTTPException) as error:
        sock.close()
        raise RefusedError(f"the answer is not valid HTTP: {error}") from error
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return HttpAnswer(sock, body, first)


def _check_tunnel(header: bytes, more: bytes, proxy: str) -> None:
    """Raise `ValueError` or `OSError` if the proxy did not open the connection that CONNECT asks for."""
    version, *status = header.split(b"\r\n", 1)[0].split() or [b""]
    if not version.startswith(b"HTTP/1.") or not status or more:
        raise ValueError("it sends data that is not an HTTP response, or sends it too early")
    if not status[0].startswith(b"2"):
        raise OSError(f"the proxy {proxy} refuses: {b' '.join(status).decode('latin-1')[:300]}")


def _read_header(sock: socket.socket, deadline: float) -> tuple[bytes, bytes]:
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        if len(data) > _MAX_HEADER_BYTES:
            raise ValueError("the header has no end")
        if not (part := _receive(sock, deadline)):
            raise OSError("the connection was closed before the answer")
        data += part
    return data[: end + 4], data[end + 4 :]


def _check(status: int, sock: socket.socket, body: Body, first: bytes, deadline: float) -> None:
    if status != _OK:
        raise RefusedError(f"{status}: {_text(sock, body, first, deadline)}")


def _receive(sock: socket.socket, deadline: float) -> bytes:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the answer takes too long")
    sock.settimeout(left_s)
    return sock.recv(_READ_BYTES)


def _text(sock: socket.socket, body: Body, first: bytes, deadline: float) -> str:
    try:
        text = body.feed(first)
        while not text and not body.complete and (part := _receive(sock, deadline)):
            text += body.feed(part)
    except (OSError, ValueError):
        return "no reason"
    return " ".join(text[:_MAX_TEXT].decode("utf-8", "replace").split())


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": _KEEPALIVE_IDLE_S,
        "TCP_KEEPINTVL": _KEEPALIVE_INTERVAL_S,
        "TCP_KEEPCNT": _KEEPALIVE_PROBES,
    }
    for name, value in options.items():
        # Not every system has these options.
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
