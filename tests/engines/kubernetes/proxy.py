"""The fault proxy in front of an API server: plain HTTP in, TLS and the user's credentials out."""

from __future__ import annotations

import contextlib
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kubernetes import config

from tests.engines.kubernetes.config import plain_kubeconfig
from tests.engines.kubernetes.node_clock import NodeClock
from tests.faults import FaultProxy

if TYPE_CHECKING:
    from typing_extensions import Self


class KubernetesProxy(FaultProxy):
    """A proxy for one user of a cluster; `kubeconfig` uses it."""

    clock_type = NodeClock

    def __init__(self, kubeconfig: Path, namespace: str = "default") -> None:
        with config.new_client_from_config(str(kubeconfig)) as client:
            settings = client.configuration
            parts = urlsplit(settings.host)
            tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
            if not settings.verify_ssl:
                tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
            if settings.cert_file:
                tls.load_cert_chain(settings.cert_file, settings.key_file)
            headers = {one["key"]: one["value"] for one in settings.auth_settings().values() if one["in"] == "header"}
        self._namespace = namespace
        self._folder = contextlib.ExitStack()
        port = parts.port or (443 if parts.scheme == "https" else 80)
        super().__init__(
            f"{parts.scheme}://{parts.hostname}:{port}",
            "tcp",
            tls=tls if parts.scheme == "https" else None,
            headers=headers,
        )

    @property
    def server(self) -> str:
        """The address for clients."""
        return self.url.replace("tcp://", "http://")

    def __enter__(self) -> Self:
        super().__enter__()
        folder = self._folder.enter_context(tempfile.TemporaryDirectory(prefix="launch-proxy-"))
        self.kubeconfig = Path(folder, "kubeconfig")
        self.kubeconfig.write_text(plain_kubeconfig(self.server, self._namespace))
        return self

    def __exit__(self, *exc: object) -> None:
        with self._folder:
            super().__exit__(*exc)
