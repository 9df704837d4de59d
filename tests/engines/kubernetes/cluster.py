"""A cluster of one node on this host: etcd, the control plane, a kubelet with containerd, and a DNS server.

All its files are below two folders, except the settings of `host.py`. Any process can poll and stop it by its pid
files.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.engines.kubernetes import config
from tests.engines.kubernetes.api import Api
from tests.engines.kubernetes.host import Host, run
from tests.engines.kubernetes.process import Program, alive, until

ADDRESS = "10.99.0.1"
PODS = "10.98.0.0/20"
SERVICES = "10.97.0.0/16"
# Unusual addresses and ports, because another cluster may use the usual ones.
API_PORT, ETCD_PORT, ETCD_PEER_PORT = 16443, 12379, 12380


class ApiServer(Program):
    """An API server of the cluster; several may use one etcd."""

    def __init__(self, cluster: Cluster, folder: Path, port: int) -> None:
        self.certificate = folder / "tls/apiserver.crt"
        self.url = f"https://127.0.0.1:{port}"
        self.kubeconfig = folder / "kubeconfig"
        self._cluster = cluster
        self._folder = folder
        key = cluster.data / "service-accounts.key"
        command = [
            cluster.programs["kube-apiserver"],
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--advertise-address={ADDRESS}",
            f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
            # The server creates its own certificate there.
            f"--cert-dir={folder / 'tls'}",
            f"--token-auth-file={cluster.data / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            f"--service-cluster-ip-range={SERVICES}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--kubelet-preferred-address-types=InternalIP",
            # The service `kubernetes` is not needed here, and two servers would compete for it.
            "--endpoint-reconciler-type=none",
            # Tests create and delete more objects than people.
            "--max-requests-inflight=1000",
            "--max-mutating-requests-inflight=500",
        ]
        super().__init__(folder, folder, command)

    @property
    def token(self) -> str:
        """The token of an administrator."""
        return (self._cluster.data / "tokens.csv").read_text().split(",")[0]

    @property
    def api(self) -> Api:
        return Api(self.url, self.certificate, self.token)

    def start(self, timeout_s: float = 60.0) -> None:
        """Start the server, for the first time or again, and wait until it serves."""
        self._folder.mkdir(parents=True, exist_ok=True)
        super().start()
        self.wait_until_ready(timeout_s)
        self.kubeconfig.write_text(config.kubeconfig(self.url, self.certificate, self.token))

    def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until the server serves."""
        self.wait_for(self._why_not, timeout_s)

    def _why_not(self) -> str | None:
        return self.api.why_not_ready() if self.certificate.exists() else "it has no certificate yet"


class Cluster:
    """A cluster with a name, running or not; needs root."""

    def __init__(self, name: str, programs: Mapping[str, Path]) -> None:
        self.name = name
        self.programs = dict(programs)
        self.data = Path("/var/tmp", name)
        # Short, because paths of Unix sockets, such as containerd's, are limited to 107 bytes.
        self.run = Path("/run", name)
        self.socket = self.run / "containerd.sock"
        self.host = Host(self.run / "host.json", name, "launch-k8s0", ADDRESS)
        self.api_server = ApiServer(self, self.data / "api", API_PORT)
        self.kubeconfig = self.api_server.kubeconfig
        self.etcd = self._program(
            "etcd",
            f"--data-dir={self.data / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{ETCD_PORT}",
            f"--advertise-client-urls=http://127.0.0.1:{ETCD_PORT}",
            f"--listen-peer-urls=http://127.0.0.1:{ETCD_PEER_PORT}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{ETCD_PEER_PORT}",
            f"--initial-cluster=default=http://127.0.0.1:{ETCD_PEER_PORT}",
            # No data must survive a crash of the machine.
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self.containerd = self._program("containerd", "--config", self.data / "containerd.toml")
        self.controller_manager = self._program(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            "--secure-port=0",
            "--leader-elect=false",
            "--use-service-account-credentials=false",
            f"--service-account-private-key-file={self.data / 'service-accounts.key'}",
            f"--root-ca-file={self.api_server.certificate}",
            "--controllers=*,-nodeipam,-route,-service-lb-controller",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        )
        self.scheduler = self._program(
            "kube-scheduler", f"--kubeconfig={self.kubeconfig}", "--secure-port=0", "--leader-elect=false"
        )
        self.kubelet = self._program(
            "kubelet",
            f"--config={self.data / 'kubelet.json'}",
            f"--kubeconfig={self.kubeconfig}",
            f"--root-dir={self.data / 'kubelet'}",
            f"--node-ip={ADDRESS}",
            "--hostname-override=launch-node",
        )
        self.coredns = self._program("coredns", "-conf", self.data / "Corefile")
        # Started if a test needs queues, see `kueue.py`.
        self.kueue = Program(self.run, self.data, ["kueue"])

    @property
    def running(self) -> list[Program]:
        """The running programs, in the order in which to stop them."""
        order = [
            *(self.kueue, self.coredns, self.kubelet, self.scheduler, self.controller_manager),
            *(self.api_server, self.containerd, self.etcd),
        ]
        return [one for one in order if one.pid is not None]

    def start(self) -> None:
        """Start all programs, and wait until pods can run and use DNS."""
        self.stop()
        try:
            self._write_files()
            self.host.prepare()
            self.etcd.start()
            self.containerd.start()
            self.api_server.start()
            for program in (self.controller_manager, self.scheduler):
                program.start()
            self.containerd.wait_for(lambda: None if self.socket.exists() else "no socket")
            self._load_pause()
            for program in (self.kubelet, self.coredns):
                program.start()
            self.kubelet.wait_for(self.api_server.api.why_no_node)
            self.coredns.wait_for(_why_no_dns)
        except BaseException:
            # Keep their logs, which show the reason; a later start may overwrite them.
            kept = Path(f"{self.data}-failed")
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.data, kept, ignore=_no_logs)
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all programs and pods, restore the settings of the host, and remove all data."""
        if self.kubelet.pid is not None:
            self.kubelet.stop()  # before it can restart the pods
        for program in self.running:
            if program is not self.containerd:
                program.stop()
        for folder in self.data.glob("api-*"):
            Program(folder, folder, [self.programs["kube-apiserver"]]).stop()
        self.host.restore()
        self.containerd.stop()
        self._end_shims()
        self.host.forget(self.name, self.data, self.run)
        for folder in (self.run, self.data):
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def another_api_server(self) -> Iterator[ApiServer]:
        """Start a second API server for a test that stops it; only this test uses it.

        It has the same data, users and rights, as in a control plane with several servers.
        """
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        folder = self.data / f"api-{secrets.token_hex(4)}"
        server = ApiServer(self, folder, port)
        try:
            server.start()
            yield server
        finally:
            server.kill()
            shutil.rmtree(folder)

    def ctr(self, *words: str) -> str:
        """Run containerd's own client."""
        return run("ctr", "--address", str(self.socket), "--namespace", "k8s.io", *words)

    def _program(self, name: str, *flags: str | Path) -> Program:
        found = self.programs.get(name) or shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/bin") or name
        return Program(self.run, self.data, [found, *flags])

    def _write_files(self) -> None:
        for folder in (self.run, self.data, self.data / "cni", self.data / "api"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o711)
        files = {
            "service-accounts.key": config.service_account_key(),
            "tokens.csv": f"{secrets.token_hex(16)},launch-admin,1,system:masters\n",
            "containerd.toml": config.containerd_toml(self.data, self.run),
            "cni/launch.conflist": config.network(self.name, self.host.bridge, PODS, self.data),
            "kubelet.json": json.dumps(config.kubelet_config(self.data, self.run, ADDRESS, self.host.cgroup), indent=1),
            "Corefile": config.corefile(ADDRESS, self.kubeconfig),
        }
        for name, text in files.items():
            (self.data / name).write_text(text)
            (self.data / name).chmod(0o600)

    def _load_pause(self) -> None:
        from tests.engines.kubernetes import images  # only needed with our own cluster

        images.load(self, images.pause())

    def _end_shims(self) -> None:
        # The network and output of each pod belong to a process that outlives containerd.
        def gone() -> bool:
            left = [pid for pid in _shims(str(self.socket)) if alive(pid)]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        until(gone, 20, "containerd's shims do not end")


def _shims(address: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "containerd-shim" in words[0] and address in words:
                found.append(int(folder.name))
    return found


def _why_no_dns() -> str | None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(f"http://{ADDRESS}:8181/ready", timeout=2).close()
    except (OSError, http.client.HTTPException) as error:
        return str(error)
    return None


def _no_logs(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith(".log")]
