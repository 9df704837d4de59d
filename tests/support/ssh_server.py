"""An SSH server in this process that hangs or sends invalid answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import paramiko

ANSWER = b"HTTP/1.1 200 OK\r\nApi-Version: 1.44\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]"


class SSHServer(paramiko.ServerInterface):
    """Accepts every login, and answers each engine request with an empty list.

    `silent` names the step at which it falls silent: banner, auth, session or exec.
    """

    def __init__(self) -> None:
        self.silent: str | None = None
        self.act: Callable[[paramiko.Channel], None] | None = None
        """The answer to requests, except the version request."""
        self.key = paramiko.ECDSAKey.generate()
        self.transports: list[paramiko.Transport] = []
        self._ended = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.port = self._socket.getsockname()[1]
        self._start(self._accept)

    def close(self) -> None:
        self._ended.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for transport in self.transports:
            transport.close()
        for one in self._sockets:
            one.close()
        for thread in [*self._threads]:
            thread.join(10)

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._wait("auth")
        return paramiko.AUTH_FAILED if self.silent == "auth" else paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        self._wait("session")
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._wait("exec")
        self._start(lambda: self._answer(channel))
        return True

    def _wait(self, step: str) -> None:
        if self.silent == step:
            self._ended.wait(30)

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            try:
                one, _address = self._socket.accept()
            except OSError:
                return
            self._sockets.append(one)
            if self.silent != "banner":
                transport = paramiko.Transport(one)
                transport.add_server_key(self.key)
                self.transports.append(transport)
                transport.start_server(event=threading.Event(), server=self)

    def _answer(self, channel: paramiko.Channel) -> None:
        got = b""
        with contextlib.suppress(OSError):
            while data := channel.recv(65536):
                got += data
                while b"\r\n\r\n" in got:  # no request here has a body
                    request, _, got = got.partition(b"\r\n\r\n")
                    if self.act is not None and b"/_ping" not in request:
                        self.act(channel)
                    else:
                        channel.sendall(ANSWER)
