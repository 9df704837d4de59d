"""Invalid kubeconfigs and credentials: the error names the problem and never shows the secret."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kubernetes.config import incluster_config, kube_config

from airflow_provider_launch.schedulers.kubernetes import access
from airflow_provider_launch.schedulers.kubernetes.scheduler import create_scheduler
from airflow_provider_launch.specs.errors import InvalidAppError, SchedulerUnavailableError
from tests.support.certificates import write_pair


def kubeconfig(user: dict[str, Any] | None = None, **cluster: Any) -> str:
    return json.dumps(
        {
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1", **cluster}}],
            "users": [{"name": "u", "user": user or {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )


def ask(**connection: Any) -> None:
    with contextlib.closing(create_scheduler("tests", timeout_s=5, **connection)) as scheduler:
        scheduler.describe("any")


def test_a_line_feed_after_a_token_is_no_part_of_it(tmp_path):
    """Shells write a line feed into each token file."""
    token = tmp_path / "token"
    token.write_text("s3cret\n")

    for user in ({"tokenFile": str(token)}, {"token": "s3cret\r\n"}):
        with pytest.raises(SchedulerUnavailableError, match="does not answer"):
            ask(kubeconfig_secret=kubeconfig(user))


@pytest.mark.parametrize("token", ["s3c\nret", "s3c\0ret", "s3c€ret", "s3c\x85ret"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token):
    with pytest.raises(InvalidAppError, match="header 'authorization'") as caught:
        ask(kubeconfig_secret=kubeconfig({"token": token}))

    assert "s3c" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: [b\n c: s3cret }", "neither YAML nor JSON"),
        ("- s3cret", "cannot be used"),
        (kubeconfig(server=5), "cannot be used"),
        (kubeconfig(server="ftp://x"), "https://"),
        (kubeconfig(server=""), "https://"),
        (kubeconfig(server="https://127.0.0.1:99999"), "99999"),
        (kubeconfig(**{"proxy-url": "nonsense"}), "[Pp]roxy"),
        (kubeconfig({"username": "me", "password": "s3€ret"}), "password"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_reported(tmp_path, text, word):
    path = tmp_path / "kubeconfig"
    path.write_text(text, encoding="utf-8")

    for connection in ({"kubeconfig_path": str(path)}, {"kubeconfig_secret": text}):
        with pytest.raises(InvalidAppError, match=rf"kubeconfig of the connection.*{word}.*correct the conn") as caught:
            ask(**connection)
        assert "s3" not in str(caught.value)


def test_a_missing_kubeconfig_is_named_by_its_path(tmp_path, monkeypatch):
    missing = str(tmp_path / "no" / "config")
    with pytest.raises(InvalidAppError, match=rf"kubeconfig_path='{missing}' does not exist on this host"):
        ask(kubeconfig_path=missing)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", missing)
    with pytest.raises(InvalidAppError, match=rf"no kubeconfig_path is set, and '{missing}' does not exist"):
        ask(kubeconfig_path=None)


def test_a_context_is_not_ignored_where_there_is_a_service_account(tmp_path, monkeypatch):
    """Apps would silently run in the worker's own cluster."""
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("airflow")
    (tmp_path / "kubeconfig").write_text(kubeconfig(server="http://127.0.0.1:2"))
    monkeypatch.setattr(access, "_SERVICE_ACCOUNT", tmp_path)
    # As `KUBECONFIG` was when the package was imported.
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))

    with pytest.raises(SchedulerUnavailableError, match=r"127\.0\.0\.1:2 does not answer"):
        ask(context="x")
    with pytest.raises(InvalidAppError, match="no-such-context"):
        ask(context="no-such-context")
    with pytest.raises(InvalidAppError, match=r"in_cluster.*context"):
        ask(context="x", in_cluster=True)


class Empty(BaseHTTPRequestHandler):
    """Answers like a cluster without objects."""

    def do_GET(self) -> None:
        data = json.dumps({"items": [], "metadata": {}}).encode()
        self.send_response(200 if self.path.partition("?")[0].endswith("s") else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_cluster_that_has_moved_is_found_again(tmp_path, address):
    """The file is rewritten while a triggerer runs for months."""
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig())
    with contextlib.closing(create_scheduler("tests", timeout_s=5, kubeconfig_path=str(path))) as scheduler:
        # While it is written it cannot be read, and the author did not cause that.
        for text in (kubeconfig(), "{", kubeconfig(server=address)):
            path.write_text(text)
            with pytest.raises(SchedulerUnavailableError):
                scheduler.describe("any")

        assert scheduler.describe("any") is None


def test_a_kubeconfig_may_be_base64():
    """The form of a connection has one line."""
    secret = base64.b64encode(kubeconfig().encode()).decode()
    with pytest.raises(SchedulerUnavailableError):  # the kubeconfig is valid, but no server listens at its address
        ask(kubeconfig_secret=secret)


def test_yaml_that_has_lost_its_lines_names_the_cure():
    with pytest.raises(InvalidAppError, match=r"neither YAML nor JSON; the form has one line.*base64"):
        ask(kubeconfig_secret="apiVersion: v1 kind: Config clusters: - name: c   cluster:     server: http://x")


class Authorized(Empty):
    """Also notes the credentials."""

    seen: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers["Authorization"])
        super().do_GET()


@pytest.fixture
def service_account(tmp_path, monkeypatch) -> Iterator[Path]:
    """The files and variables of a pod, and an API server behind TLS; yields the folder of the files."""
    files = write_pair(tmp_path, "cluster")
    for name, text in {"token": "t0ken\n", "namespace": "airflow", "ca.crt": Path(files["cert"]).read_text()}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(access, "_SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(Authorized, "seen", [])
    for name in ("http", "https", "all"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["cert"], files["key"])
    with ThreadingHTTPServer(("127.0.0.1", 0), Authorized) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield tmp_path
        server.shutdown()
        thread.join()


def test_a_pod_uses_its_service_account_without_the_package(service_account, monkeypatch):
    """The package costs each worker process 0.2 s and 20 MB."""
    monkeypatch.setitem(sys.modules, "kubernetes", None)  # an import fails
    with contextlib.closing(create_scheduler("tests", timeout_s=5)) as scheduler:
        assert scheduler.describe("any") is None
        assert scheduler.cluster.namespace == "airflow"
    assert set(Authorized.seen) == {"bearer t0ken"}


@pytest.mark.parametrize("proxy", [None, "http://127.0.0.1:1"])
def test_the_token_of_a_pod_is_read_again_when_it_was_renewed(service_account, monkeypatch, proxy):
    """With the proxy of a company the package reads it, and skips the proxy for this host."""
    if proxy:
        monkeypatch.setenv("https_proxy", proxy)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(access, "_TOKEN_S", 0.0)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(service_account / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(service_account / "ca.crt"))
    with contextlib.closing(create_scheduler("tests", timeout_s=5)) as scheduler:
        scheduler.describe("any")
        (service_account / "token").write_text("renewed")
        scheduler.describe("any")
    assert "bearer t0ken" in Authorized.seen
    assert proxy or Authorized.seen[-1] == "bearer renewed"


def test_another_certificate_than_that_of_the_cluster_is_refused(service_account):
    (service_account / "ca.crt").write_text(Path(write_pair(service_account, "other")["cert"]).read_text())
    with pytest.raises(SchedulerUnavailableError, match="certificate"):
        ask()
    assert Authorized.seen == []


@pytest.mark.parametrize(
    ("file", "text", "word"),
    [("token", "", "token is empty"), ("token", None, "No such file"), ("ca.crt", "no certificate", "does not answer")],
)
def test_files_of_a_pod_that_cannot_be_used_are_reported(service_account, file, text, word):
    if text is None:
        (service_account / file).unlink()
    else:
        (service_account / file).write_text(text)
    with pytest.raises((InvalidAppError, SchedulerUnavailableError), match=word):
        ask(in_cluster=True)


def test_a_process_outside_of_pods_gets_an_error_that_states_it(service_account, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(InvalidAppError, match="KUBERNETES_SERVICE_HOST"):
        ask(in_cluster=True)
