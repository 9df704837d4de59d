"""A Docker engine behind ssh: a server that stalls, and broken files in `~/.ssh`."""

from __future__ import annotations

import contextlib
import gc
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.schedulers.docker.wire import Wire, document_in
from airflow_provider_launch.specs import SchedulerRejectedError, SchedulerUnavailableError
from airflow_provider_launch.util.threads import limited
from tests.support.ssh_server import SSHServer

TIMEOUT_S = 1.0


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
    """All followers of apps on this engine would hang with the request."""
    server.silent = step

    assert "does not answer" in refused_within(wire, TIMEOUT_S + 4)


def test_keys_that_get_no_answer_have_one_limit_together(server, wire, ssh_home):
    """A user may have many keys, and the server may stall at each of them."""
    server.silent = "auth"
    names = [f"id_{k}" for k in range(9)]
    for name in names:
        paramiko.ECDSAKey.generate().write_private_key_file(str(ssh_home / name))
    files = "".join(f"  IdentityFile {ssh_home / name}\n" for name in names)
    (ssh_home / "config").write_text(f"Host *\n{files}", encoding="utf-8")

    assert "does not answer" in refused_within(wire, 3 * TIMEOUT_S + 3)


def endless(first: bytes, data: bytes, pause_s: float = 0.0) -> Callable[[paramiko.Channel], None]:
    def act(channel: paramiko.Channel) -> None:
        channel.sendall(first)
        while True:
            channel.sendall(data)
            time.sleep(pause_s)

    return act


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HOSTILE = {
    "a header that drips": endless(b"HTTP/1.1 200 OK\r\nX: ", b"x", 0.1),
    "headers that drip": endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.1),
    "a body that drips": endless(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n[", b" ", 0.1),
    "a size without an end": endless(CHUNKED, b"0" * 65536),
    "a chunk of size -1": endless(CHUNKED + b"-1\r\n", b"x" * 65536),
}


@pytest.mark.parametrize("act", HOSTILE.values(), ids=HOSTILE)
def test_an_answer_by_ssh_has_one_limit(server, wire, act, monkeypatch):
    """Like a response by a socket."""
    server.act = act

    def read(wire: Wire) -> object:
        with wire.request("GET", "/containers/json") as response:
            return document_in(response, TIMEOUT_S)

    monkeypatch.setitem(globals(), "ask", read)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Compared with the server, which would never end; the machine may be busy.
    refused_within(wire, 60)

    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 200 * 2**20
    server.act = None
    assert read(wire) == []


@pytest.mark.parametrize("step", ["session", "exec"])
def test_a_server_that_falls_silent_later_is_reached_again(server, wire, step):
    """The first session is busy, as with an open log, and the next one is not opened."""
    busy = wire.open("GET", "/events")
    server.silent = step
    assert "does not answer" in refused_within(wire, TIMEOUT_S + 4)
    server.silent = None

    assert ask(wire) == b"[]"
    assert busy.content == b"[]"


def test_an_unused_connection_ends(server, wire):
    """Each outage would leave a connection behind, and its thread."""
    busy = wire.open("GET", "/events")
    server.silent = "session"
    refused_within(wire, TIMEOUT_S + 4)
    busy.close()
    del busy
    server._ended.set()  # the transport of the server may continue, and see the end

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
    """Followers retry for a while, and the worker's administrator reads which file to fix."""
    with (ssh_home / name).open("ab") as file:
        file.write(more)

    with pytest.raises(SchedulerRejectedError, match=rf"^~/\.ssh/{name} of the user .*{cause}.*; ask the admin"):
        ask(wire)
    (ssh_home / name).write_bytes((ssh_home / name).read_bytes().removesuffix(more))
    assert ask(wire) == b"[]"


def test_what_ended_in_the_moment_of_its_limit_is_given_up_quietly():
    """A timer would print the error, and no caller could catch it."""

    def step() -> None:
        time.sleep(0.3)
        raise OSError("closed")

    def end() -> None:
        raise EOFError

    with pytest.raises(TimeoutError, match="no answer by ssh"):
        limited(0.05, step, end)
