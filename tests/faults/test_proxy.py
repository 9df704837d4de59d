"""Unchanged traffic through the proxy, and each fault as seen by requests and docker-py."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.faults import Fault, FaultProxy, cut, delay, drop, drop_answer, error, silence
from tests.faults.proxy import connector


class Server(ThreadingHTTPServer):
    """Counts executed requests, and streams some pieces each time `more` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.done: list[str] = []
        self.more = threading.Event()
        self.left = threading.Event()

    def handle_error(self, *args):
        """Do nothing, because clients often leave early here."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *args):
        pass

    def _reply(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/stream":
            return self._stream()
        return self._reply(json.dumps({"path": self.path, "auth": self.headers["Authorization"]}).encode())

    def do_POST(self):
        length = self.headers["Content-Length"]
        body = self.rfile.read(int(length))
        self.server.done.append(body.decode())
        self._reply(b"done " + body)

    def do_DELETE(self):
        self.send_response(204)
        self.end_headers()

    def _stream(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for n in range(1000):
                self.wfile.write(b"6\r\nline%d\n\r\n" % n)
                self.server.more.wait(20)
                self.server.more.clear()
        except OSError:
            self.server.left.set()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.more.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def proxy(server) -> Iterator[FaultProxy]:
    with FaultProxy("http://{}:{}".format(*server.server_address), "tcp") as proxy:
        yield proxy


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.fixture
def url(proxy) -> str:
    return proxy.url.replace("tcp:", "http:")


def read_into(got: bytearray, answer: requests.Response) -> None:
    for piece in answer.iter_content(1):
        got += piece


def test_requests_pass_and_are_kept(proxy, session, url):
    """Costs are counted from these records, so they must be exact."""
    assert session.get(f"{url}/a%20b?x=1&y=").json()["path"] == "/a%20b?x=1&y="
    assert session.post(f"{url}/things", json={"n": 1}).text == 'done {"n": 1}'
    assert session.delete(f"{url}/things/1").status_code == 204

    first, second, third = proxy.requests
    assert (first.method, first.path, first.query, first.status) == ("GET", "/a b", {"x": "1", "y": ""}, 200)
    assert (second.json, third.status) == ({"n": 1}, 204)
    assert first.time < second.time < third.time
    assert (proxy.count("POST"), proxy.count(path=r"^/things"), proxy.count("GET", "nothing")) == (1, 2, 0)


def test_a_body_in_chunks_reaches_the_server_whole(server, session, url):
    assert session.post(f"{url}/things", data=iter([b"one ", b"two"])).text == "done one two"


def test_added_headers_go_to_the_server(server, session):
    """A token belongs to the proxy's side: the client under test speaks plain HTTP."""
    with FaultProxy(
        "http://{}:{}".format(*server.server_address), "tcp", headers={"Authorization": "Bearer t"}
    ) as proxy:
        assert session.get(proxy.url.replace("tcp:", "http:")).json()["auth"] == "Bearer t"


@pytest.fixture
def certificate(tmp_path) -> Path:
    """A certificate for `localhost`, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(timezone.utc)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    file = tmp_path / "both.pem"
    file.write_bytes(
        made.public_bytes(encoding)
        + key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return file


def test_tls_is_only_spoken_with_the_server(server, session, certificate):
    """Faults need the plain bytes; the server, as Kubernetes, may insist on TLS."""
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(certificate)
    server.socket = secured.wrap_socket(server.socket, server_side=True)
    trusting = ssl.create_default_context(cafile=str(certificate))

    with FaultProxy(f"https://localhost:{server.server_port}", "tcp", tls=trusting) as proxy:
        url = proxy.url.replace("tcp:", "http:")
        fault = proxy.add(Fault(cut(3), path="/stream", nth=2))
        for n in range(3):
            time.sleep(0.05)  # an idle connection has time for the tickets of TLS
            assert session.post(f"{url}/things", data=str(n)).text == f"done {n}"
        with session.get(f"{url}/stream", stream=True, timeout=10) as answer:
            lines = answer.iter_lines(chunk_size=None)
            assert next(lines) == b"line0"
            server.more.set()
            assert next(lines) == b"line1"
        got = bytearray()
        with (
            session.get(f"{url}/stream", stream=True, timeout=10) as answer,
            pytest.raises(requests.exceptions.ChunkedEncodingError),
        ):
            read_into(got, answer)
        assert (got, fault.hits) == (b"lin", 1)


def test_a_stream_passes_piece_by_piece(server, session, url):
    """A follower must see a line when it is written, without buffering in the proxy."""
    with session.get(f"{url}/stream", stream=True, timeout=10) as answer:
        lines = answer.iter_lines(chunk_size=None)
        assert next(lines) == b"line0"
        server.more.set()
        assert next(lines) == b"line1"


def test_the_server_sees_that_the_client_left(server, session, url):
    """Otherwise each test would leave an unread stream behind."""
    with session.get(f"{url}/stream", stream=True, timeout=10) as answer:
        next(answer.iter_lines(chunk_size=None))
    deadline = time.monotonic() + 10
    while not server.left.wait(0.05):
        server.more.set()
        assert time.monotonic() < deadline


def test_a_fault_has_its_turn_and_then_is_over(proxy, session, url):
    fault = proxy.add(Fault(error(503), "GET", r"^/b$", nth=2, times=2))

    codes = [session.get(f"{url}/{name}").status_code for name in "abbabb"]

    assert codes == [200, 200, 503, 200, 503, 200]
    assert fault.hits == 2
    fault.wait(0)


def test_faults_of_the_same_request_count_together(proxy, session, url):
    proxy.add(Fault(error(409), nth=1))
    proxy.add(Fault(error(500), nth=2, times=None))

    assert [session.get(url).status_code for _ in range(4)] == [409, 500, 500, 500]

    proxy.clear()
    assert session.get(url).ok


def test_an_error_has_a_body_and_shows_when_to_come_back(proxy, server, session, url):
    proxy.add(Fault(error(429, "slow down", retry_after_s=3), "POST"))

    answer = session.post(url, data="x")

    assert (answer.status_code, answer.reason, answer.headers["Retry-After"]) == (429, "Too Many Requests", "3")
    assert answer.json() == {"message": "slow down"}
    assert server.done == []


def test_a_lost_answer_is_a_request_that_was_done(proxy, server, session, url):
    """The reason why schedulers adopt: the client cannot tell this from a request that never arrived."""
    proxy.add(Fault(drop_answer(), "POST"))

    with pytest.raises(requests.ConnectionError, match="Remote end closed connection"):
        session.post(url, data="x")

    assert server.done == ["x"]
    assert proxy.requests[0].status is None


def test_a_dropped_request_is_not_done(proxy, server, session, url):
    proxy.add(Fault(drop(), "POST"))

    with pytest.raises(requests.ConnectionError, match="Remote end closed connection"):
        session.post(url, data="x")

    assert server.done == []


def test_a_delay_only_takes_time(proxy, session, url):
    proxy.add(Fault(delay(0.3)))
    started = time.monotonic()

    assert session.get(url).ok
    assert time.monotonic() - started > 0.3


def test_a_cut_ends_a_body_of_known_length_early(proxy, session, url):
    proxy.add(Fault(cut(5)))

    with pytest.raises(requests.exceptions.ChunkedEncodingError, match="5 bytes read"):
        session.get(url)


def test_a_cut_ends_a_stream_after_its_bytes(proxy, server, session, url):
    proxy.add(Fault(cut(9)))
    got = bytearray()

    with session.get(f"{url}/stream", stream=True, timeout=10) as answer:
        server.more.set()
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            read_into(got, answer)

    assert got == b"line0\nlin"


def test_a_cut_within_the_head_is_no_answer(proxy, session, url):
    proxy.add(Fault(cut(head=False)))

    with pytest.raises(requests.ConnectionError, match=r"HTTP/1\.1 2"):
        session.get(url)


def test_silence_is_a_timeout_and_not_an_end(proxy, server, session, url):
    proxy.add(Fault(silence(), "POST"))

    with pytest.raises(requests.ReadTimeout):
        session.post(url, data="x", timeout=0.3)

    assert server.done == []


def test_a_stream_falls_silent_after_its_bytes(proxy, server, session, url):
    proxy.add(Fault(silence(7)))
    got = bytearray()

    with session.get(f"{url}/stream", stream=True, timeout=0.5) as answer:
        server.more.set()
        with pytest.raises(requests.ConnectionError, match="Read timed out"):
            read_into(got, answer)

    assert got == b"line0\nl"


@pytest.mark.parametrize("listen", ["tcp", "unix"])
def test_refused_connections_are_refused_at_once(server, listen):
    """An engine that is down; afterwards it has the same address."""
    with FaultProxy("http://{}:{}".format(*server.server_address), listen) as proxy:
        connect = connector(proxy.url)
        with proxy.refused(), pytest.raises(ConnectionRefusedError):
            connect()
        with connect() as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert sock.recv(12) == b"HTTP/1.1 200"


def test_refused_ends_streams_that_run(proxy, session, url):
    with session.get(f"{url}/stream", stream=True, timeout=10) as answer:
        lines = answer.iter_lines(chunk_size=None)
        assert next(lines) == b"line0"
        with proxy.refused(), pytest.raises(requests.exceptions.ChunkedEncodingError):
            next(lines)


def test_a_stall_holds_what_matches_and_lets_it_go_afterwards(proxy, server, session, url):
    with session.get(f"{url}/stream", stream=True, timeout=10) as answer, ThreadPoolExecutor(1) as pool:
        lines = answer.iter_lines(chunk_size=None)
        assert next(lines) == b"line0"
        with proxy.stalled("/stream"):
            server.more.set()
            begun = pool.submit(next, lines)
            assert session.get(f"{url}/other").ok
            with pytest.raises(requests.ReadTimeout):
                session.get(f"{url}/stream", timeout=0.3)
            assert not begun.done()
        assert begun.result(10) == b"line1"


def test_a_fault_that_no_request_had_is_reported(proxy, session, url):
    """Also one that was cleared: the fixtures of the engines end such a test in error."""
    proxy.add(Fault(error(500), path="/other"))
    missed = proxy.add(Fault(error(500), path="/other", nth=2))
    proxy.add(Fault(error(500), path="/never", may_miss=True))

    assert session.get(f"{url}/other").status_code == 500
    proxy.clear()
    assert proxy.missed() == [missed]


def test_the_end_of_the_proxy_ends_all_connections(server, session):
    """A test that fails in the middle of a stall must not hang."""
    with FaultProxy("http://{}:{}".format(*server.server_address), "tcp") as proxy:
        url = proxy.url.replace("tcp:", "http:")
        proxy.add(Fault(silence(), path="/never"))
        with session.get(f"{url}/stream", stream=True, timeout=10) as answer:
            next(answer.iter_lines(chunk_size=None))
            with pytest.raises(requests.ReadTimeout):
                session.get(f"{url}/never", timeout=0.2)
            before = time.monotonic()
            proxy.__exit__()
            assert time.monotonic() - before < 5
        proxy.__enter__()
