"""A Redis of our own, from Debian's package: nothing on disk, a port of loopback, no password."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.engines.docker import packages
from tests.live.airflow import free_ports
from tests.support.apps import until

_READY_S = 30


@contextlib.contextmanager
def redis_broker() -> Iterator[str]:
    """Start a Redis, and return its URL; skips the test where it cannot be installed."""
    if os.geteuid() != 0:
        pytest.skip("a Redis of the tests needs root, which installs it")
    packages.install(**{"redis-server": "redis-server"})
    (port,) = free_ports(1)
    server = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    try:
        until(lambda: _answers(port), _READY_S, 0.1)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(_READY_S)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(7) == b"+PONG\r\n"
    return False
