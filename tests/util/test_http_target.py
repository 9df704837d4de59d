"""Connections to servers."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest

from airflow_provider_launch.util.http_answer import HttpTarget


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
