"""Nothing is sent unencrypted without consent, and nothing is sent to another server than that of the connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.schedulers.docker.images import connect_builds
from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.specs import InvalidAppError, SchedulerRejectedError


class Listener:
    """Stores requests, and sends the given responses."""

    def __init__(self, *answers: bytes) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._answers = list(answers)
        self.port = self._socket.getsockname()[1]
        self.url = f"tcp://127.0.0.1:{self.port}"
        self.heard = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    while data := connection.recv(65536):
                        self.heard += data
                        if self._answers:
                            connection.sendall(self._answers.pop(0))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listen(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Listener]]:
    made: list[Listener] = []
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)

    def make(*answers: bytes) -> Listener:
        made.append(Listener(*answers))
        return made[-1]

    yield make
    for one in made:
        one.close()


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Api-Version: 1.43", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("given", "environ", "named"),
    [
        ({"tls_verify": True}, {}, "tls_verify"),
        ({"tls_verify": True, "plaintext": True}, {}, "tls_verify"),
        ({}, {"DOCKER_TLS_VERIFY": "1"}, "DOCKER_TLS_VERIFY"),
        ({"host": None, "plaintext": True}, {"DOCKER_TLS_VERIFY": "1"}, "DOCKER_TLS_VERIFY"),
        ({"scheme": "http", "tls_ca": "/ca.pem"}, {}, "tls_ca"),
        ({"scheme": "http", "tls_cert": "/c.pem", "tls_key": "/k.pem"}, {}, "tls_cert"),
        ({"registry_username": "ci", "registry_password": "hunter2"}, {}, "registry_password"),
        ({"registry_username": "ci", "registry_password": "hunter2", "plaintext": True}, {}, "registry_password"),
    ],
)
def test_nothing_is_sent_in_clear_that_was_to_be_encrypted(listen, monkeypatch, given, environ, named):
    engine = listen()
    url = engine.url.replace("tcp:", f"{given.pop('scheme', 'tcp')}:")
    for name, value in {"DOCKER_HOST": url, **environ}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(InvalidAppError, match=named):
        Engine(DockerConnection(**{"host": url, **given})).create("app", {"Env": ["PASSWORD=hunter2"]})
    assert engine.heard == b""


@pytest.mark.parametrize("host", ["tcp://192.0.2.1:2375", "tcp://a.test:1", "http://192.0.2.1:2375", "192.0.2.1:2375"])
def test_a_host_beyond_this_one_needs_encryption_or_consent(monkeypatch, host):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("connected"))

    with pytest.raises(InvalidAppError, match=r"tls_ca.*ssh://.*plaintext"):
        Engine(DockerConnection(host=host)).images.ids()
    with pytest.raises(InvalidAppError, match=r"tls_ca.*ssh://.*plaintext"):
        connect_builds(host).image_id("image")


def test_consent_reaches_a_host_beyond_this_one(monkeypatch):
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)

    def refuse(*_args: object, **_how: object) -> None:
        raise ConnectionRefusedError("asked")

    monkeypatch.setattr("urllib3.util.connection.create_connection", refuse)
    with pytest.raises(Exception, match="asked"):
        Engine(DockerConnection(host="tcp://192.0.2.1:2375", plaintext=True)).images.ids()


@pytest.mark.parametrize("host", ["tcp://127.0.0.1", "tcp://localhost", "tcp://[::1]", "tcp://127.8.8.8"])
def test_this_host_needs_no_consent(monkeypatch, host):
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)

    def refuse(*_args: object, **_how: object) -> None:
        raise ConnectionRefusedError("asked")

    monkeypatch.setattr("urllib3.util.connection.create_connection", refuse)
    with pytest.raises(Exception, match="asked"):
        Engine(DockerConnection(host=f"{host}:2375")).images.ids()


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_a_redirect_is_not_followed(listen, status):
    elsewhere = listen()
    engine = listen(answer("200 OK"), answer(status, b"", f"Location: http://127.0.0.1:{elsewhere.port}/x"))

    with pytest.raises(SchedulerRejectedError, match="redirects"):
        Engine(DockerConnection(host=engine.url)).create("app", {"Env": ["PASSWORD=hunter2"]})
    assert elsewhere.heard == b""


def test_the_first_request_follows_no_redirect_either(listen):
    elsewhere = listen()
    moved = answer("302 Found", b"", f"Location: http://127.0.0.1:{elsewhere.port}/x").replace(b"Api-Version", b"X")
    engine = listen(moved, moved, moved)

    with pytest.raises(Exception, match=r"JSON|does not answer"):
        Engine(DockerConnection(host=engine.url)).images.ids()
    assert elsewhere.heard == b""


def test_logins_of_this_host_are_not_sent_in_clear(monkeypatch):
    monkeypatch.setattr("docker.auth.load_config", lambda *_: pytest.fail("read"))

    assert connect_builds("tcp://127.0.0.1:1")._push_headers("registry.test/a") == {"X-Registry-Auth": "e30="}
    assert Engine(DockerConnection(host="tcp://127.0.0.1:1")).images.auth_headers("registry.test/a") == {}


@pytest.mark.parametrize(
    "host", ["tcp://ci:hunter2pw@127.0.0.1:1", "tcp://ci:hunter2pw@[x:1", "tcp://ci:hunter2pw@h:x"]
)
def test_a_password_in_the_host_is_in_no_error(host):
    """Errors are shown in the task log and stored in the database."""
    with pytest.raises(Exception, match="ci:") as caught:
        Engine(DockerConnection(host=host, plaintext=True)).images.ids()
    assert "hunter2pw" not in str(caught.value)


def test_the_shown_address_is_not_the_one_that_is_used(listen):
    engine = listen(answer("200 OK"), answer("200 OK", b"[]"))
    address = engine.url.replace("://", "://ci:hunter2pw@")

    wire = Engine(DockerConnection(host=address, plaintext=True)).wire
    assert wire.hostname == "127.0.0.1"
    assert wire.url == address.replace("hunter2pw", "***")
