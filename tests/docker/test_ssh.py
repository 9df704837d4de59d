"""A Docker engine behind ssh: a server that falls silent, and files in `~/.ssh` that are broken."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from airflow_provider_launch.schedulers.docker.access import _limited
from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.schedulers.docker.wire import Wire
from airflow_provider_launch.specs import SchedulerRejectedError, SchedulerUnavailableError

TIMEOUT_S = 1.0
ANSWER = b"HTTP/1.1 200 OK\r\nApi-Version: 1.44\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]"


class SSHServer(paramiko.ServerInterface):
    """Lets everybody in, and answers each request to the engine with an empty list.

    `silent` names the step at which it falls silent: banner, auth, session or exec.
    """

    def __init__(self) -> None:
        self.silent: str | None = None
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
                    got = got.partition(b"\r\n\r\n")[2]
                    channel.sendall(ANSWER)


@pytest.fixture
def ssh_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The `~/.ssh` of a user with three keys."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    folder = tmp_path / ".ssh"
    folder.mkdir()
    for bits, name in ((256, "id_ecdsa"), (384, "id_ecdsa_2"), (521, "id_ecdsa_3")):
        paramiko.ECDSAKey.generate(bits=bits).write_private_key_file(str(folder / name))
    return folder


@pytest.fixture
def server(ssh_home: Path) -> Iterator[SSHServer]:
    with contextlib.closing(SSHServer()) as server:
        (ssh_home / "known_hosts").write_text(
            f"[127.0.0.1]:{server.port} {server.key.get_name()} {server.key.get_base64()}\n", encoding="utf-8"
        )
        yield server


@pytest.fixture
def wire(server: SSHServer) -> Iterator[Wire]:
    url = f"ssh://launch@127.0.0.1:{server.port}"
    with contextlib.closing(Wire(DockerConnection(host=url, timeout_s=TIMEOUT_S))) as wire:
        yield wire


def ask(wire: Wire) -> bytes:
    with wire.request("GET", "/containers/json") as response:
        return response.content


def refused_within(wire: Wire, limit_s: float) -> str:
    """Return the text of the outage; the request is made in a thread, as it may hang."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(ask(wire))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)

    assert found, f"hangs after {limit_s} s"
    assert isinstance(found[0], SchedulerUnavailableError), found
    return str(found[0])


@pytest.mark.parametrize("step", ["banner", "session", "exec"])
def test_a_server_that_falls_silent_is_not_waited_for(server, wire, step):
    """All who follow apps on this engine would hang with the request."""
    server.silent = step

    assert "does not answer" in refused_within(wire, TIMEOUT_S + 4)


def test_keys_that_get_no_answer_have_one_limit_together(server, wire, ssh_home):
    """A user may have many keys, and the silence at each of them counts alone."""
    server.silent = "auth"
    names = [f"id_{k}" for k in range(9)]
    for name in names:
        paramiko.ECDSAKey.generate().write_private_key_file(str(ssh_home / name))
    files = "".join(f"  IdentityFile {ssh_home / name}\n" for name in names)
    (ssh_home / "config").write_text(f"Host *\n{files}", encoding="utf-8")

    assert "does not answer" in refused_within(wire, 3 * TIMEOUT_S + 3)


@pytest.mark.parametrize("step", ["session", "exec"])
def test_a_server_that_falls_silent_later_is_reached_again(server, wire, step):
    """The first session is busy, as with a log that is read, and the next one is not opened."""
    busy = wire.open("GET", "/events")
    server.silent = step
    assert "does not answer" in refused_within(wire, TIMEOUT_S + 4)
    server.silent = None

    assert ask(wire) == b"[]"
    assert busy.content == b"[]"


def test_a_connection_that_nobody_has_any_more_ends(server, wire):
    """Each outage would leave one behind, and its thread."""
    busy = wire.open("GET", "/events")
    server.silent = "session"
    refused_within(wire, TIMEOUT_S + 4)
    busy.close()
    del busy
    server._ended.set()  # the transport of the server may go on, and see the end

    deadline = time.monotonic() + 10
    while server.transports[0].is_active():
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "more", "cause"),
    [
        ("known_hosts", b"other ssh-rsa AAAA=broken!\n", "the key of 'other' is broken: Incorrect padding"),
        ("known_hosts", b"other ssh-rsa AAAAB3NzaC1yc2EAAA\n", "the key of 'other' is broken: Incorrect padding"),
        ("known_hosts", b"\xff\xfe ssh-rsa AAAA\n", "can't decode byte 0xff"),
        ("config", b"Host *\n # \xff\xfe\n", "can't decode byte 0xff"),
        ("config", b"Host\n\x00nonsense\n", "Unparsable line"),
    ],
    ids=["broken key", "cut key", "binary known_hosts", "binary config", "config that cannot be parsed"],
)
def test_a_broken_file_of_ssh_is_named(server, wire, ssh_home, name, more, cause):
    """The followed app is borne for a while, and whoever set up the worker reads what to mend."""
    with (ssh_home / name).open("ab") as file:
        file.write(more)

    with pytest.raises(SchedulerRejectedError, match=rf"^~/\.ssh/{name} of the user .*{cause}.*; ask the admin"):
        ask(wire)
    (ssh_home / name).write_bytes((ssh_home / name).read_bytes().removesuffix(more))
    assert ask(wire) == b"[]"


def test_what_ended_in_the_moment_of_its_limit_is_given_up_quietly():
    """A timer would print the error, and nobody could catch it."""

    def step() -> None:
        time.sleep(0.3)
        raise OSError("closed")

    def end() -> None:
        raise EOFError

    with pytest.raises(TimeoutError, match="no answer by ssh"):
        _limited(0.05, step, end)
