"""A server that sends invalid or endless responses: the client of each engine stops in time."""

from __future__ import annotations

import contextlib
import inspect
import json
import resource
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_provider_launch.schedulers.aws_batch.access import make_clients
from airflow_provider_launch.schedulers.aws_batch.client import Aws, LostAnswerError
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchConnection
from airflow_provider_launch.schedulers.docker import wire as docker_wire
from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.schedulers.docker.outside_stops import OutsideStop
from airflow_provider_launch.schedulers.kubernetes import client as kubernetes_client
from airflow_provider_launch.schedulers.kubernetes.client import Cluster
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection
from airflow_provider_launch.specs import AppUnavailableError, LaunchError, SchedulerUnavailableError
from airflow_provider_launch.util.http_answer import HttpTarget, open_answer
from tests.support.bombs import bomb

Act = Callable[..., None]
"""Accepts the connection, and reads the request if its second argument is `request`."""
PING = b"HTTP/1.1 200 OK\r\nApi-Version: 1.43\r\nContent-Length: 2\r\n\r\nOK"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
STEP_S = 2.0
MB = 2**20
BOMB = bomb(400, gzip=True)


class Server:
    """Answers pings, and each other request with an act."""

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
                    takes = "request" in inspect.signature(self._act).parameters
                    self._act(connection, **({"request": data} if takes else {}))
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
    """Return a function that sends a request to an engine behind a proxy, which is the server."""

    def asked(address: str) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("http_proxy", f"http://{address}")
            for name in ("no_proxy", "NO_PROXY"):
                patch.delenv(name, raising=False)
            return ask("127.0.0.1:9")

    asked.__name__ = f"{ask.__name__}_by_proxy"
    return asked


def tunnel_to_kubernetes(address: str) -> object:
    """Send a request to a cluster behind a proxy, whose response to CONNECT comes before any other."""
    return ask_kubernetes("127.0.0.1:9", scheme="https", proxy=f"http://{address}")


CLIENTS = pytest.mark.parametrize(
    "ask", [ask_docker, list_docker, ask_kubernetes, by_proxy(ask_docker), tunnel_to_kubernetes]
)


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)
    monkeypatch.setattr(kubernetes_client, "_BUSY_RETRY_S", 0.5)
    set_limits(monkeypatch, STEP_S)


def set_limits(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let clients wait this long for a part of an answer, and for all of it."""
    monkeypatch.setitem(globals(), "STEP_S", seconds)
    monkeypatch.setattr(kubernetes_client, "_ANSWER_S", seconds)
    monkeypatch.setattr(docker_wire, "ANSWER_S", seconds)
    monkeypatch.setattr("airflow_provider_launch.schedulers.docker.engine.ANSWER_S", seconds)
    monkeypatch.setattr(docker_wire.document_in, "__defaults__", (seconds,))


def endless(first: bytes, data: bytes, pause_s: float = 0.0) -> Act:
    """Return an act that sends until the client has closed the connection."""

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
def test_an_answer_that_drips_has_one_limit(serve, ask, act, monkeypatch):
    # More than two pauses of the server: a limit for each part alone would never end the wait.
    set_limits(monkeypatch, 0.5)
    began = time.monotonic()
    with pytest.raises(LaunchError):
        ask(serve(act))
    # Compared with the server, which would take days; the machine may be busy.
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
def test_an_invalid_document_is_an_error_of_the_connection(serve, ask, body):
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


def with_body(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\nDate: Fri, 27 Nov 2026 12:00:00 GMT\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


@CLIENTS
def test_a_refusal_that_is_nested_deeply_is_text(serve, ask):
    with pytest.raises(LaunchError):
        ask(serve(lambda c: c.sendall(with_body(b"[" * 60_000, b"403 Forbidden"))))


def test_a_list_of_kubernetes_without_an_end_is_given_up(serve, monkeypatch):
    page = json.dumps({"items": [{"metadata": {"name": "x" * 1000}}], "metadata": {"continue": "more"}}).encode()
    address = serve(endless_pages(page))
    monkeypatch.setattr(kubernetes_client, "_MAX_LIST", MB // 8)
    with pytest.raises(SchedulerUnavailableError, match="has more than 131072 bytes"):
        ask_kubernetes(address)

    monkeypatch.setattr(kubernetes_client, "_MAX_LIST", 2**40)
    began = time.monotonic()
    with pytest.raises(SchedulerUnavailableError):
        ask_kubernetes(serve(endless_pages(b'{"items": [], "metadata": {"continue": "more"}}')))
    assert time.monotonic() - began < 60


def endless_pages(page: bytes) -> Act:
    def act(connection: socket.socket) -> None:
        connection.sendall(with_body(page))

    return act


def test_objects_that_fill_a_page_are_listed_by_smaller_ones(serve, monkeypatch):
    """A server accepts objects of a megabyte, and one of them must not block all programs of a namespace."""
    monkeypatch.setattr(kubernetes_client, "_MAX_ANSWER", 100_000)
    items = [{"metadata": {"name": f"{number}-{'x' * 10_000}"}} for number in range(30)]
    asked: list[int] = []

    def act(connection: socket.socket, request: bytes) -> None:
        query = parse_qs(urlsplit(request.split()[1].decode()).query)
        limit, begin = int(query["limit"][0]), int(query.get("continue", ["0"])[0])
        asked.append(limit)
        more = {"continue": str(begin + limit)} if begin + limit < len(items) else {}
        connection.sendall(with_body(json.dumps({"items": items[begin : begin + limit], "metadata": more}).encode()))

    found, _ = ask_kubernetes(serve(act))
    assert found == items
    assert asked[:4] == [1000, 125, 15, 1]


@pytest.mark.parametrize("page", [b'{"items": {"a": 1}}', b'{"items": [], "metadata": [1]}', b'{"items": 3}'])
def test_an_invalid_list_is_an_error_of_the_connection(serve, page):
    with pytest.raises(SchedulerUnavailableError):
        ask_kubernetes(serve(endless_pages(page)))


def test_a_list_of_docker_has_a_limit_as_a_whole(serve, monkeypatch):
    monkeypatch.setattr("airflow_provider_launch.schedulers.docker.engine._MAX_LIST", MB)
    row = json.dumps(
        {"Id": "c", "State": "running", "Created": 1, "ImageID": "i", "Labels": {"a": "x" * 1000}}
    ).encode()
    with pytest.raises(SchedulerUnavailableError, match="more than 1048576 bytes"):
        list_docker(serve(lambda c: c.sendall(with_body(b"[" + b",".join([row] * 2000) + b"]"))))


def read_docker(address: str) -> object:
    with contextlib.closing(Engine(DockerConnection(host=f"tcp://{address}", timeout_s=STEP_S))) as engine:
        return engine.read_file("container", "/result", 4096)


def header(kind: bytes, size: int) -> bytes:
    made = tarfile.TarInfo("x")
    made.type, made.size = kind, size
    return made.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (header(tarfile.XHDTYPE, 8 * 2**30), b"x" * 65536),
        (header(tarfile.GNUTYPE_LONGNAME, 8 * 2**30), b"x" * 65536),
        (b"", header(tarfile.XHDTYPE, 0) * 100),
        (b"", header(tarfile.GNUTYPE_LONGNAME, 0) * 100),
        (b"", header(tarfile.GNUTYPE_LONGNAME, 1) * 100),
    ],
    ids=["large", "long name", "chain", "chain of names", "chain of odd names"],
)
def test_headers_of_an_archive_without_an_end_are_an_error_of_the_app(serve, first, more):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AppUnavailableError, match="sends a damaged archive of /result of container container"):
        read_docker(serve(endless(head + first, more)))
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 50 * MB


def test_a_file_of_an_archive_is_read_up_to_its_limit(serve):
    data = header(tarfile.REGTYPE, 10 * MB) + b"x" * 10 * MB
    assert read_docker(serve(lambda c: c.sendall(with_body(data)))) == (b"x" * 4096, 10 * MB)


def follow_by_proxy(address: str) -> object:
    """Open a log behind a proxy, with the sockets that one thread reads."""
    host, _, port = address.partition(":")
    return open_answer(HttpTarget("engine", 2375, proxy=(host, int(port))), "/log", {}, STEP_S)


ENDLESS_PROXIES = {
    "headers": endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 10_000),
    "header": endless(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65536),
    "dripping headers": endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.2),
    "dripping status": endless(b"HTTP/1.1 2", b"0", 0.2),
    "refusal": lambda c: c.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n"),
    "no proxy": lambda c: c.sendall(b"SSH-2.0-x\r\n\r\n\r\n"),
    "words before a question": lambda c: c.sendall(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
}


@pytest.mark.parametrize("act", ENDLESS_PROXIES.values(), ids=ENDLESS_PROXIES)
def test_the_answer_of_a_proxy_has_one_limit(serve, act):
    address, before, began = serve(act), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(OSError, match=r"the proxy 127\.0\.0\.1|takes too long|timed out"):
        follow_by_proxy(address)
    assert time.monotonic() - began < 60
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 50 * MB


def test_an_empty_header_is_refused_before_the_time_limit(serve):
    def act(connection: socket.socket) -> None:
        connection.sendall(b"\r\n\r\n")
        connection.recv(1)

    with pytest.raises(OSError, match="not an HTTP response"):
        follow_by_proxy(serve(act))


def test_a_log_is_opened_through_a_proxy(serve):
    asked: list[bytes] = []

    def act(connection: socket.socket, request: bytes) -> None:
        asked.append(request)
        connection.sendall(b"HTTP/1.1 200 Connection established\r\nX: y\r\n\r\n")
        asked.append(connection.recv(65536))
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nline\n")
        connection.recv(1)

    answer = follow_by_proxy(serve(act))
    with answer.sock:
        assert answer.first in {b"", b"line\n"}
    assert asked[0] == b"CONNECT engine:2375 HTTP/1.1\r\nHost: engine:2375\r\n\r\n"
    assert asked[1].startswith(b"GET /log HTTP/1.1\r\nHost: engine\r\n")


@pytest.mark.parametrize(
    "ask",
    [
        lambda aws: aws.describe(["j"]),
        lambda aws: aws.active("d"),
        lambda aws: [*aws.jobs_named("q", "n")],
        lambda aws: aws.queue("q"),
        lambda aws: aws.register({"jobDefinitionName": "d", "type": "container"}),
        lambda aws: aws.submit({"jobName": "n", "jobQueue": "q", "jobDefinition": "d"}),
    ],
    ids=["jobs", "definitions", "list", "queue", "revision", "submission"],
)
def test_an_answer_of_aws_without_its_fields_is_an_outage(serve, ask):
    """botocore returns it like a complete one, and an error about one app would not be tried again."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    address = serve(lambda c: c.sendall(answer))
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    where = AwsBatchConnection(region_name="us-east-1", endpoint_url=f"http://{address}", **keys)
    with contextlib.closing(Aws(where, make_clients)) as aws, pytest.raises(LostAnswerError, match="the answer of AWS"):
        ask(aws)
