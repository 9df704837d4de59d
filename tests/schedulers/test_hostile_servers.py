"""A server that answers what it must not, or without an end: the client of each engine gives up in time."""

from __future__ import annotations

import contextlib
import gzip
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_launch.schedulers.docker import wire as docker_wire
from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.schedulers.docker.outside_stops import OutsideStop
from airflow_provider_launch.schedulers.kubernetes import client as kubernetes_client
from airflow_provider_launch.schedulers.kubernetes.client import Cluster
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection
from airflow_provider_launch.specs import LaunchError, SchedulerUnavailableError

Act = Callable[[socket.socket], None]
PING = b"HTTP/1.1 200 OK\r\nApi-Version: 1.43\r\nContent-Length: 2\r\n\r\nOK"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
STEP_S = 2.0
MB = 2**20
BOMB = gzip.compress(bytes(400 * MB), 6)


class Server:
    """Answers pings, and each other request by an act."""

    def __init__(self, act: Act) -> None:
        self._act = act
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                if b"/_ping" in data:
                    connection.sendall(PING)
                else:
                    self._act(connection)
                    return


@pytest.fixture
def serve() -> Iterator[Callable[[Act], str]]:
    made: list[Server] = []

    def make(act: Act) -> str:
        made.append(Server(act))
        return made[-1].address

    yield make
    for server in made:
        server.close()


def ask_docker(address: str) -> object:
    with contextlib.closing(Engine(DockerConnection(host=f"tcp://{address}", timeout_s=STEP_S))) as engine:
        return engine.inspect("container")


def list_docker(address: str) -> object:
    with contextlib.closing(Engine(DockerConnection(host=f"tcp://{address}", timeout_s=STEP_S))) as engine:
        return engine.containers()


def ask_kubernetes(address: str, scheme: str = "http", proxy: str | None = None) -> object:
    where = {"server": f"{scheme}://{address}", **({"proxy-url": proxy} if proxy else {})}
    cluster = {"clusters": [{"name": "c", "cluster": where}]}
    context = {"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c"}
    text = json.dumps({**cluster, **context, "users": [{"name": "u", "user": {}}]})
    with contextlib.closing(Cluster(KubernetesConnection(kubeconfig_secret=text, timeout_s=STEP_S))) as client:
        return client.list("jobs", "a=b")


def by_proxy(ask: Callable[[str], object]) -> Callable[[str], object]:
    """Return how to ask an engine that is reached by a proxy, which is the server."""

    def asked(address: str) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("http_proxy", f"http://{address}")
            for name in ("no_proxy", "NO_PROXY"):
                patch.delenv(name, raising=False)
            return ask("127.0.0.1:9")

    asked.__name__ = f"{ask.__name__}_by_proxy"
    return asked


def tunnel_to_kubernetes(address: str) -> object:
    """Ask a cluster behind a proxy, whose answer to CONNECT comes before any other."""
    return ask_kubernetes("127.0.0.1:9", scheme="https", proxy=f"http://{address}")


CLIENTS = pytest.mark.parametrize(
    "ask", [ask_docker, list_docker, ask_kubernetes, by_proxy(ask_docker), tunnel_to_kubernetes]
)


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)
    monkeypatch.setattr(kubernetes_client, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(kubernetes_client, "_ANSWER_S", STEP_S)
    monkeypatch.setattr(docker_wire, "ANSWER_S", STEP_S)
    monkeypatch.setattr("airflow_provider_launch.schedulers.docker.engine.ANSWER_S", STEP_S)
    monkeypatch.setattr(docker_wire.document_in, "__defaults__", (STEP_S,))


def endless(first: bytes, data: bytes, pause_s: float = 0.0) -> Act:
    """Return an act that sends on until the client has hung up."""

    def act(connection: socket.socket) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(data)
            time.sleep(pause_s)

    return act


DRIPPING = {
    "status line": endless(b"HTTP/1.1 200 ", b"x", 0.2),
    "header": endless(b"HTTP/1.1 200 OK\r\nX: ", b"x", 0.2),
    "continue": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.2),
    "body": endless(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n[", b" ", 0.2),
    "chunks": endless(CHUNKED + b"1\r\n[\r\n", b"1\r\n \r\n", 0.2),
    "size of a chunk": endless(CHUNKED, b"0", 0.2),
    "refusal": endless(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 1000000\r\n\r\n", b"x", 0.2),
}


@CLIENTS
@pytest.mark.parametrize("act", DRIPPING.values(), ids=DRIPPING)
def test_an_answer_that_drips_has_one_limit(serve, ask, act):
    began = time.monotonic()
    with pytest.raises(LaunchError):
        ask(serve(act))
    # Of the time that the server would take, which is days; the machine may be busy.
    assert time.monotonic() - began < 60


ENDLESS = {
    "headers": endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 10_000),
    "header": endless(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65536),
    "size of a chunk": endless(CHUNKED, b"0" * 65536),
    "chunk of size -1": endless(CHUNKED + b"-1\r\n", b"x" * 65536),
    "chunk without a size": endless(CHUNKED + b"zz\r\n", b"x" * 65536),
}


@CLIENTS
@pytest.mark.parametrize("act", ENDLESS.values(), ids=ENDLESS)
def test_an_answer_without_an_end_is_refused(serve, ask, act):
    address, before = serve(act), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SchedulerUnavailableError):
        ask(address)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 200 * MB


@CLIENTS
@pytest.mark.parametrize("status", [b"200 OK", b"403 Forbidden", b"500 Error"])
@pytest.mark.parametrize("coding", [b"gzip", b"gzip, gzip", b"deflate"])
def test_what_inflates_without_an_end_takes_little_memory(serve, ask, status, coding, monkeypatch):
    monkeypatch.setattr(kubernetes_client, "_MAX_ANSWER", 16 * MB)
    head = b"HTTP/1.1 %b\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (status, coding, len(BOMB))
    address, before = serve(lambda c: c.sendall(head + BOMB)), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LaunchError):
        ask(address)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 200 * MB


@CLIENTS
@pytest.mark.parametrize("body", [b"[" * 200_000, b'[{"Id": ' + b"9" * 5000 + b"}]", b"\xff", b"{", b"<html>"])
def test_what_is_no_document_is_an_error_of_the_connection(serve, ask, body):
    head = b"HTTP/1.1 200 OK\r\nDate: Fri, 27 Nov 2026 12:00:00 GMT\r\nContent-Length: %d\r\n\r\n" % len(body)
    with pytest.raises(SchedulerUnavailableError):
        ask(serve(lambda c: c.sendall(head + body)))


def events_of(lines: list[bytes]) -> bytes:
    body = b"".join(line + b"\n" for line in lines)
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


DIED = json.dumps({"Action": "die", "time": 10, "Actor": {"ID": "c1", "Attributes": {"exitCode": "0"}}}).encode()


def stops_at(address: str) -> dict[str, OutsideStop]:
    with contextlib.closing(Engine(DockerConnection(host=f"tcp://{address}", timeout_s=STEP_S))) as engine:
        return engine.stops(["c1", "c3"], 0, 20)


def test_an_event_of_endless_labels_hides_no_other(serve):
    large = json.dumps({"Action": "kill", "Actor": {"ID": "c2", "Attributes": {"a": "x" * 20 * MB}}}).encode()

    assert stops_at(serve(lambda c: c.sendall(events_of([large, DIED]))))["c1"].ended_at == 10


def test_events_that_take_too_long_cost_only_what_they_would_report(serve, monkeypatch, caplog):
    monkeypatch.setattr("airflow_provider_launch.schedulers.docker.engine._EVENTS_S", 1.0)
    first = CHUNKED + b"%x\r\n%b\n\r\n" % (len(DIED) + 1, DIED)

    assert stops_at(serve(endless(first, b"1\r\n \r\n", 0.1)))["c1"].ended_at == 10
    assert "the events take too long" in caplog.text


def test_events_that_are_cut_off_are_an_outage(serve):
    with pytest.raises(SchedulerUnavailableError):
        stops_at(serve(lambda c: c.sendall(events_of([DIED, DIED])[: -len(DIED) - 20])))
