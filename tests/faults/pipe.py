"""A TCP proxy without a protocol: it passes, cuts or stalls connections."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class TcpPipe:
    """Forwards to a port of this host inside the context."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._refuses = self._stalls = self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._thread.join()
        for key in [*self._selector.get_map().values()]:
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    @contextlib.contextmanager
    def refused(self) -> Iterator[None]:
        """Cut current connections, and new ones inside the context."""
        self._refuses = True
        try:
            yield
        finally:
            self._refuses = False

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Stall all connections inside the context, without closing them."""
        self._stalls = True
        try:
            yield
        finally:
            self._stalls = False

    def _run(self) -> None:
        while not self._ends:
            ready = self._selector.select(0.02)
            if self._refuses:
                for key in [*self._selector.get_map().values()]:
                    if key.data is not None:
                        self._drop(key.fileobj)  # type: ignore[arg-type]
            for key, _ in ready:
                if key.data is None:
                    self._accept()
                elif not self._stalls and not self._refuses:
                    self._pass_on(key.fileobj, key.data)  # type: ignore[arg-type]
            if self._stalls:
                self._selector.select(0)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._refuses:
            client.close()
            return
        behind = socket.create_connection(("127.0.0.1", self._behind))
        for one, other in ((client, behind), (behind, client)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(one, selectors.EVENT_READ, other)

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        try:
            data = one.recv(256 * 1024)
            other.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(one)
            self._drop(other)

    def _drop(self, sock: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
