"""Invalid kubeconfigs and credentials: the error names the problem and never shows the secret."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes.config import kube_config

from airflow_provider_launch.schedulers.kubernetes import access
from airflow_provider_launch.schedulers.kubernetes.scheduler import create_scheduler
from airflow_provider_launch.specs.errors import InvalidAppError, SchedulerUnavailableError


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
