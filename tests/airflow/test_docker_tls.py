"""The TLS files of a Docker connection, with a TLS server in front of the real engine."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading

import pytest

from airflow_provider_launch.follow.events import LogLines
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.follow.stream_loop import stream_loop
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, Role
from tests.support.certificates import write_pair

SCRIPT = "x=$(printf '%0300d' 0 | tr 0 x); sleep 1; for i in $(seq 2000); do echo $i $x; done; sleep 1"
pytestmark = pytest.mark.engine("docker")


class TlsFront:
    """Passes on to a Unix socket what comes in by TLS from clients that prove who they are."""

    def __init__(self, path: str, server: dict[str, str], client: dict[str, str]) -> None:
        self._path = path
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(server["cert"], server["key"])
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.load_verify_locations(client["cert"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            self._context.wrap_socket(plain, server_side=True) as outer,
            socket.socket(socket.AF_UNIX) as inner,
        ):
            inner.connect(self._path)
            back = threading.Thread(target=self._pump, args=(inner, outer), daemon=True)
            back.start()
            self._pump(outer, inner)
            back.join()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def files(tmp_path) -> dict[str, dict[str, str]]:
    return {name: write_pair(tmp_path, name) for name in ("server", "client", "stranger")}


@pytest.fixture
def connect(docker_engine, files, monkeypatch):
    """Tests the connection with these extras, and valid values for the rest."""
    if not docker_engine.host.startswith("unix://"):
        pytest.skip("the engine is not at a Unix socket")
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    front = TlsFront(docker_engine.host.removeprefix("unix://"), files["server"], files["client"])
    good = {
        "host": front.url,
        "tls_ca": files["server"]["cert"],
        "tls_cert": files["client"]["cert"],
        "tls_key": files["client"]["key"],
    }

    def connect(**extra) -> tuple[bool, str]:
        connection = {"conn_type": "launch_docker", "extra": {**good, "timeout_s": 10, **extra}}
        monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps(connection))
        return LaunchHook.for_connection("c").test_connection()

    yield connect
    front.close()


def test_the_files_of_the_connection_are_used(connect) -> None:
    is_fine, text = connect()

    assert is_fine, text


def test_a_log_is_followed_by_a_stream(connect, docker_engine) -> None:
    """TLS hands out whole records, of which a selector sees nothing once they are decrypted."""
    connect()
    with contextlib.closing(LaunchHook.for_connection("c").new_scheduler()) as scheduler:
        role = Role("main", docker_engine.image, entrypoint="sh", args=["-c", SCRIPT])
        info = scheduler.submit_dryrun(AppDef("tls", [role]), {"pull": "never"}, app_id=make_unique("tls"))
        app_id = scheduler.schedule(info)
        open_at_once, events = 0, []
        with Follower(scheduler, app_id) as follower:
            for event in follower:
                events.append(event)
                open_at_once = max(open_at_once, stream_loop().count())
        scheduler.delete(app_id)

    lines = [line.text for event in events if isinstance(event, LogLines) for line in event.lines]
    assert lines == [f"{number} {'x' * 300}\n" for number in range(1, 2001)]
    assert open_at_once == 1


def test_the_environment_does_not_replace_the_authority(connect, files, monkeypatch) -> None:
    """Workers behind a company's proxy have such a variable."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", files["stranger"]["cert"])
    is_fine, text = connect()

    assert is_fine, text


def test_an_engine_of_another_authority_is_refused(connect, files) -> None:
    is_fine, text = connect(tls_ca=files["stranger"]["cert"])

    assert not is_fine
    assert "does not answer" in text
    assert "certificate verify failed" in text


def test_an_engine_that_does_not_know_us_reports_it(connect, files) -> None:
    is_fine, text = connect(tls_cert=files["stranger"]["cert"], tls_key=files["stranger"]["key"])

    assert not is_fine
    assert "does not answer" in text


def test_without_tls_the_engine_is_not_reached(connect) -> None:
    is_fine, text = connect(tls_ca=None, tls_cert=None, tls_key=None)

    assert not is_fine
    assert "does not answer" in text
