"""Configuration files of the programs of the cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAUSE = "docker.io/library/launch-pause:local"
"""Image that keeps the network of a pod; it only sleeps."""


def service_account_key() -> str:
    """Return a new key to sign tokens of service accounts."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    ).decode()


def kubeconfig(server: str, certificate: Path, token: str, namespace: str = "default") -> str:
    """Return a kubeconfig for one user."""
    return _kubeconfig({"server": server, "certificate-authority": str(certificate)}, {"token": token}, namespace)


def plain_kubeconfig(server: str, namespace: str) -> str:
    """Return a kubeconfig for a server without TLS and credentials."""
    return _kubeconfig({"server": server}, {}, namespace)


def with_token(kubeconfig: Path, token: str, namespace: str) -> str:
    """Return a kubeconfig for the current cluster of another kubeconfig, with a user token."""
    import yaml

    found = yaml.safe_load(kubeconfig.read_text())
    context = _named(found["contexts"], found["current-context"])["context"]
    cluster = dict(_named(found["clusters"], context["cluster"])["cluster"])
    if file := cluster.get("certificate-authority"):
        cluster["certificate-authority"] = str(kubeconfig.parent / file)  # relative to its folder
    return _kubeconfig(cluster, {"token": token}, namespace)


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(one for one in items if one["name"] == name)


def _kubeconfig(cluster: dict[str, str], user: dict[str, str], namespace: str) -> str:
    context = {"cluster": "launch", "user": "launch", "namespace": namespace}
    found = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "launch",
        "clusters": [{"name": "launch", "cluster": cluster}],
        "users": [{"name": "launch", "user": user}],
        "contexts": [{"name": "launch", "context": context}],
    }
    return json.dumps(found, indent=1)  # JSON is YAML, too


def containerd_toml(data: Path, run: Path) -> str:
    """Return containerd's configuration, for 1.6 and 1.7."""
    return f"""\
version = 2
root = "{data}/containerd"
state = "{run}/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "{run}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
Root = "{run}/runc"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{data}/cni"
"""


def network(name: str, bridge: str, pods: str, data: Path) -> str:
    """Return the CNI network: one bridge on one host, without a way out."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(data / "addresses"),
    }
    plugin = {"type": "bridge", "bridge": bridge, "isGateway": True, "ipMasq": False, "ipam": addresses}
    return json.dumps({"cniVersion": "1.0.0", "name": name, "plugins": [plugin]}, indent=1)


def kubelet_config(data: Path, run: Path, address: str, cgroup: str) -> dict[str, Any]:
    """Return the kubelet's configuration."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        # Our own root, so that other clusters on this host are not touched and leftovers can be found.
        "cgroupRoot": f"/{cgroup}",
        "clusterDNS": [address],
        "clusterDomain": "cluster.local",
        "containerLogMonitorInterval": "3s",
        # More than most tests write, so that logs are rotated only in tests of rotation.
        "containerLogMaxSize": "32Mi",
        "containerRuntimeEndpoint": f"unix://{run}/containerd.sock",
        "enforceNodeAllocatable": ["pods"],
        # Disks of developers are often almost full.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "eventRecordQPS": 0,
        # Before 1.36 a warning, now an error.
        "failCgroupV1": False,
        "failSwapOn": False,
        "healthzPort": 0,
        "imageGCHighThresholdPercent": 100,
        "kubeAPIBurst": 400,
        "kubeAPIQPS": 200,
        "makeIPTablesUtilChains": False,
        "maxPods": 600,
        "podLogsDir": str(data / "pods"),
        # Pods must not use the DNS servers of the host.
        "resolvConf": "/dev/null",
        "volumePluginDir": str(data / "plugins"),
    }


def corefile(address: str, kubeconfig: Path) -> str:
    """Return the configuration of the DNS server."""
    return f"""\
.:53 {{
    bind {address}
    errors
    ready {address}:8181
    kubernetes cluster.local {{
        kubeconfig {kubeconfig} launch
        ttl 1
    }}
}}
"""
