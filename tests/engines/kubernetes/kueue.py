"""Kueue for our own cluster: its controller runs as a process of this host, without a pod or an image.

It manages only namespaces with the label `MANAGED`, so other tests in the cluster are not affected.
"""

from __future__ import annotations

import base64
import json
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.engines.docker.daemon import EngineError
from tests.engines.kubernetes.cluster import Cluster
from tests.engines.kubernetes.process import Program, until
from tests.engines.kubernetes.programs import KUEUE

MANAGED = "launch.io/kueue"
"""Label of the namespaces whose Jobs and pods Kueue manages."""
_WEBHOOK_PORT, _HEALTH_PORT = 19444, 19445
_GROUP = "kueue.x-k8s.io"
_NAMESPACED = {"mjob", "mpod", "mworkload", "vjob", "vpod", "vworkload"}
_CLUSTERS = {"mclusterqueue", "mresourceflavor", "vclusterqueue", "vcohort", "vresourceflavor"}
# The controller reads its metrics certificate there, even without metrics.
_METRICS = "/etc/kueue/metrics/certs"


class Kueue:
    """The controller of our cluster's queues."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._files = KUEUE.folder
        self._data = cluster.data / "kueue"
        self._certificates = self._data / "tls"
        config = self._data / "config.json"
        lines = (
            # A separate mount namespace with its own /etc, so that the host is not changed.
            "mount -t tmpfs launch-kueue $0",
            "mkdir -p $0/up $0/work",
            "mount -t overlay overlay -o lowerdir=/etc,upperdir=$0/up,workdir=$0/work /etc",
            f"mkdir -p {_METRICS} && cp $1/tls.crt $1/tls.key {_METRICS}",
            'KUBECONFIG=$2 exec "$3" --config="$4" --zap-log-level=2',
        )
        words = [self._data / "etc", self._certificates, cluster.kubeconfig, cluster.programs["kueue"], config]
        command = ["unshare", "--mount", "sh", "-ec", "\n".join(lines), *words]
        self.program = Program(cluster.run, cluster.data, command, name="kueue")

    def start(self) -> None:
        """Start the controller if it does not run, and wait until queues can be made."""
        if self.program.pid is not None and self._why_not() is None:
            return
        for folder in (self._certificates, self._data / "etc"):
            folder.mkdir(parents=True, exist_ok=True)
        self._write_files()
        plurals = [self._apply_definition(file) for file in sorted((self._files / "bases").glob("*.yaml"))]
        until(lambda: self._discovered(plurals), 30, "the API server does not serve Kueue's kinds")
        self.program.start()
        self.program.wait_for(self._why_not)
        # Last, because their objects would be refused before the webhook answers.
        self._apply_webhooks()

    def _write_files(self) -> None:
        config = {
            "apiVersion": f"config.{_GROUP}/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{_HEALTH_PORT}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": _WEBHOOK_PORT, "host": "127.0.0.1", "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "manageJobsWithoutQueueName": False,
            "managedJobsNamespaceSelector": {"matchLabels": {MANAGED: "true"}},
            "clientConnection": {"qps": 200, "burst": 400},
            "featureGates": {"VisibilityOnDemand": False},
            "integrations": {"frameworks": ["batch/job", "pod"]},
        }
        certificate, key = _certificate()
        files = {
            "config.json": json.dumps(config, indent=1).encode(),
            "tls/tls.crt": certificate,
            "tls/tls.key": key,
        }
        for name, data in files.items():
            (self._data / name).write_bytes(data)
            (self._data / name).chmod(0o600)

    def _client(self, path: str) -> dict[str, Any]:
        bundle = base64.b64encode((self._certificates / "tls.crt").read_bytes()).decode()
        return {"url": f"https://127.0.0.1:{_WEBHOOK_PORT}{path}", "caBundle": bundle}

    def _apply_definition(self, file: Path) -> str:
        import yaml

        body = yaml.safe_load(file.read_text())
        name = body["metadata"]["name"]
        plural: str = body["spec"]["names"]["plural"]
        if (self._files / "patches" / f"webhook_in_{plural}.yaml").exists() and plural != "resourceflavors":
            body["spec"]["conversion"] = {
                "strategy": "Webhook",
                "webhook": {"clientConfig": self._client("/convert"), "conversionReviewVersions": ["v1"]},
            }
        self._apply("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", name, body)
        return plural

    def _apply_webhooks(self) -> None:
        import yaml

        path = "/apis/admissionregistration.k8s.io/v1"
        for body in yaml.safe_load_all((self._files / "manifests.yaml").read_text()):
            kept = []
            for webhook in body["webhooks"]:
                name = webhook["name"].partition(".")[0]
                if name in _NAMESPACED:
                    webhook["namespaceSelector"] = {"matchLabels": {MANAGED: "true"}}
                elif name not in _CLUSTERS:
                    continue
                kept.append({**webhook, "clientConfig": self._client(webhook["clientConfig"]["service"]["path"])})
            body["webhooks"] = kept
            kind = body["kind"].lower() + "s"
            body["metadata"]["name"] = f"kueue-{kind.removesuffix('webhookconfigurations')}"
            self._apply(f"{path}/{kind}", body["metadata"]["name"], body)

    def _apply(self, path: str, name: str, body: dict[str, Any]) -> None:
        api = self._cluster.api_server.api
        try:
            api.request("POST", path, body)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise EngineError(f"{path} {name}: {error.read().decode()[:500]}") from error
            # From an earlier controller with another certificate.
            api.request("PATCH", f"{path}/{name}", body)

    def _discovered(self, plurals: list[str]) -> bool:
        served: set[str] = set()
        for version in ("v1beta1", "v1beta2"):
            try:
                found = self._cluster.api_server.api.request("GET", f"/apis/{_GROUP}/{version}")
            except OSError:
                return False
            served |= {item["name"] for item in found["resources"]}
        return served.issuperset(plurals)

    def _why_not(self) -> str | None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            opener.open(f"http://127.0.0.1:{_HEALTH_PORT}/readyz", timeout=2).close()
            # The controller reports ready before it listens.
            socket.create_connection(("127.0.0.1", _WEBHOOK_PORT), timeout=2).close()
        except OSError as error:
            return str(error)
        return None


def _certificate() -> tuple[bytes, bytes]:
    """Return a self-signed certificate for this host, and its key."""
    import datetime as dt
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "launch-kueue")])
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem), private
