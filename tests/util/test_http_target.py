"""Connections to servers."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_launch.util.http_answer import HttpTarget, RefusedError, open_answer


class TimeIsOver(BaseException):
    """As if Airflow ended the task at its time limit, with an error that is not an `Exception`."""


class Interrupted(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        raise TimeIsOver


@pytest.mark.parametrize("kind", ["interrupted", "garbage", "silent"])
def test_a_connection_is_closed_after_a_failed_handshake(kind: str) -> None:
    """Also while the error is kept, as in a task that reports it."""
    context = ssl.create_default_context()
    if kind == "interrupted":
        context.sslsocket_class = Interrupted
    ends: list[bytes | str] = []

    def serve() -> None:
        peer, _ = server.accept()
        with peer:
            peer.settimeout(20)
            if kind == "garbage":
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            try:
                while peer.recv(65536):
                    pass
                ends.append("closed")
            except ConnectionResetError:
                ends.append("closed")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises((OSError, TimeIsOver)) as raised:
            HttpTarget("127.0.0.1", server.getsockname()[1], context=context).connect(1)
        thread.join(10)

    assert ends == ["closed"], raised.value


@contextmanager
def server_of(data: bytes, ends: list[str], *, then: Callable[[socket.socket], object] = id) -> Iterator[int]:
    """The port of a server that reads a request, sends the data, and notes whether the client has closed."""

    def serve() -> None:
        peer, _ = server.accept()
        with peer:
            peer.settimeout(20)
            peer.recv(65536)
            peer.sendall(data)
            then(peer)
            try:
                while peer.recv(65536):
                    pass
            except TimeoutError:
                ends.append("still open")
            except OSError:
                ends.append("closed")
            else:
                ends.append("closed")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(30)


def shut(peer: socket.socket) -> None:
    peer.shutdown(socket.SHUT_WR)


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


FIELDS = b"X: y\r\n" * 200


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"garbage\r\n\r\n", "the answer is not valid HTTP: list index"),
        (b"HTTP/1.1 abc\r\n\r\n", "the answer is not valid HTTP: invalid literal"),
        (b"HTTP/1.1 200 OK\r\n" + FIELDS + b"\r\n", "the answer is not valid HTTP: got more than 100 headers"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\nno access", "403: no access"),
        (b"HTTP/1.1 200 OK\r\n", "closed before the answer"),
    ],
)
def test_a_connection_is_closed_after_a_failed_request(data: bytes, reason: str) -> None:
    ends: list[str] = []
    with server_of(data, ends, then=shut) as port, pytest.raises(OSError, match=reason) as raised:
        open_answer(HttpTarget("127.0.0.1", port), "/", {}, 10)

    assert ends == ["closed"], raised.value
    assert isinstance(raised.value, RefusedError) == (reason != "closed before the answer")


@pytest.mark.parametrize(
    ("data", "then"),
    [(b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", shut), (b"Content-Length: 9\r\n\r\n", reset)],
    ids=["no chunk", "reset"],
)
def test_a_refusal_whose_text_cannot_be_read_has_its_status(data, then) -> None:
    with (
        server_of(b"HTTP/1.1 403 Forbidden\r\n" + data, [], then=then) as port,
        pytest.raises(RefusedError, match=r"^403: no reason$"),
    ):
        open_answer(HttpTarget("127.0.0.1", port), "/", {}, 10)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"SSH-2.0-x\r\n\r\n", "the proxy 127.0.0.1 does not answer as an HTTP proxy: it sends data"),
        (b"HTTP/1.1 407 Who are you\r\n\r\n", "the proxy 127.0.0.1 refuses: 407 Who are you"),
        (b"HTTP/1.1 200", "closed before the answer"),
    ],
)
def test_a_connection_to_a_proxy_is_closed_after_a_wrong_answer(data: bytes, reason: str) -> None:
    ends: list[str] = []
    with server_of(data, ends, then=shut) as port, pytest.raises(OSError, match=reason) as raised:
        HttpTarget("engine", proxy=("127.0.0.1", port)).connect(10)

    assert ends == ["closed"], raised.value


def test_a_socket_that_nothing_listens_at_is_closed(tmp_path) -> None:
    """Also while the error is kept."""
    before = set(Path("/proc/self/fd").iterdir())

    with pytest.raises(FileNotFoundError) as raised:
        HttpTarget("", unix_path=str(tmp_path / "absent")).connect(10)

    assert set(Path("/proc/self/fd").iterdir()) <= before, raised.value
