"""The part of HTTP/1.1 that a proxy needs: heads, and bodies that are streamed."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

Headers = list[tuple[str, str]]
_PIECE = 65536


class Stream:
    """A socket with a read buffer."""

    def __init__(self, sock: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
        self.sock = sock
        self.buffer = bytearray()
        self._ready = ready  # called before each read that may block

    def _fill(self) -> bool:
        self._ready()
        data = self.sock.recv(_PIECE)
        self.buffer += data
        return bool(data)

    def _need(self) -> None:
        if not self._fill():
            raise ConnectionError("the other side left in the middle of a message")

    def _take(self, size: int) -> bytes:
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    def until(self, mark: bytes) -> bytes:
        """Return the bytes before the mark, without it; empty at the end of the stream."""
        while (at := self.buffer.find(mark)) < 0:
            if not self.buffer:
                if not self._fill():
                    return b""
            else:
                self._need()
        data = self._take(at)
        self._take(len(mark))
        return data

    def some(self, most: int) -> bytes:
        """Return available bytes, at least one byte and at most `most`."""
        if not self.buffer:
            self._need()
        return self._take(most)

    def rest(self) -> Iterator[bytes]:
        """Yield all up to the end of the stream."""
        while self.buffer or self._fill():
            yield self._take(_PIECE)


@dataclass
class Request:
    """The request of a client."""

    method: str
    target: str
    headers: Headers
    body: bytes
    time: float = field(default_factory=time.monotonic)
    status: int | None = None
    """Status of the answer; None without an answer."""

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def head(self, query: dict[str, str], extra: Headers) -> bytes:
        """Return the request's first bytes, up to its body, as they go to the engine."""
        parts = urlsplit(self.target)
        # An unchanged query is passed on byte for byte.
        target = self.target if query == self.query else parts._replace(query=urlencode(query)).geturl()
        replaced = {"transfer-encoding", "content-length", *(name.lower() for name, _ in extra)}
        headers = [header for header in self.headers if header[0].lower() not in replaced] + extra
        if self.body or self.method in {"POST", "PUT", "PATCH"}:
            headers.append(("Content-Length", str(len(self.body))))
        return _head(f"{self.method} {target} HTTP/1.1", headers)


@dataclass
class Answer:
    """The answer of the engine: a head, and a body that is read by iterating."""

    status: int
    reason: str
    headers: Headers
    body: Iterator[bytes]

    @property
    def head(self) -> bytes:
        return _head(f"HTTP/1.1 {self.status} {self.reason}", self.headers)

    def header(self, name: str) -> str:
        return _find(self.headers, name)

    def with_body(self, body: bytes) -> Answer:
        """Return the answer with another whole body."""
        headers = [header for header in self.headers if header[0].lower() != "content-length"]
        return Answer(self.status, self.reason, [*headers, ("Content-Length", str(len(body)))], iter([body]))


def _head(first: str, headers: Headers) -> bytes:
    return "\r\n".join([first, *(f"{name}: {value}" for name, value in headers), "", ""]).encode("latin-1")


def _find(headers: Headers, name: str) -> str:
    return next((value for found, value in headers if found.lower() == name), "")


def _read_head(stream: Stream) -> tuple[str, Headers] | None:
    text = stream.until(b"\r\n\r\n").decode("latin-1")
    if not text:
        return None
    first, *lines = text.split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, [(name, value.strip()) for name, _, value in pairs]


def _counted(stream: Stream, left: int) -> Iterator[bytes]:
    while left:
        piece = stream.some(min(left, _PIECE))
        left -= len(piece)
        yield piece


def _chunked(stream: Stream) -> Iterator[bytes]:
    while True:
        line = stream.until(b"\r\n")
        if not line:
            raise ConnectionError("the other side left between two chunks")
        if not (size := int(line.split(b";")[0], 16)):
            break
        yield from _counted(stream, size)
        stream.until(b"\r\n")
    while stream.until(b"\r\n"):  # trailers
        pass


def body_of(stream: Stream, headers: Headers, *, to_the_end: bool) -> Iterator[bytes]:
    """Yield the body while it arrives; without a length it is empty, or all `to_the_end` of the stream."""
    if "chunked" in _find(headers, "transfer-encoding").lower():
        return _chunked(stream)
    if length := _find(headers, "content-length"):
        return _counted(stream, int(length))
    return stream.rest() if to_the_end else iter(())


def read_request(stream: Stream) -> Request | None:
    """Return the next request with its whole body, or None if the client has left."""
    if (head := _read_head(stream)) is None:
        return None
    method, target, _ = head[0].split(" ", 2)
    body = b"".join(body_of(stream, head[1], to_the_end=False))
    return Request(method, target, head[1], body)


def read_answer(stream: Stream, method: str) -> Answer:
    """Return the answer to a request of the method as soon as its head has come."""
    if (head := _read_head(stream)) is None:
        raise ConnectionError("the engine left without an answer")
    _, status, *reason = head[0].split(" ", 2)
    code = int(status)
    empty = method == "HEAD" or code in {204, 304}
    body: Iterator[bytes] = iter(()) if empty else body_of(stream, head[1], to_the_end=True)
    return Answer(code, " ".join(reason), head[1], body)


def framed(answer: Answer, method: str) -> Iterator[bytes]:
    """Yield the body as it goes over the wire."""
    if method == "HEAD" or "chunked" not in answer.header("transfer-encoding").lower():
        yield from answer.body
        return
    for piece in answer.body:
        if piece:
            yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"
