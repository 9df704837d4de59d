"""Images for a node without a registry: `docker save` archives, made from files of this machine."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import io
import json
import platform
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.engines.docker.images import Content, busybox_content, python_content
from tests.engines.kubernetes.config import PAUSE

if TYPE_CHECKING:
    from tests.engines.kubernetes.cluster import Cluster

_PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
_REGISTRY = "docker.io/library/"  # containerd's default for names without a registry


def busybox(cluster: Cluster) -> str:
    """Return the name of the busybox image; the node has it afterwards."""
    return load(cluster, busybox_content())


def python(cluster: Cluster) -> str:
    """Return the name of the Python image; the node has it afterwards."""
    return load(cluster, python_content())


def pause() -> Content:
    """Return the image that keeps the network of a pod: a long sleep."""
    name = PAUSE.removeprefix(_REGISTRY)
    return dataclasses.replace(busybox_content(), name=name, command=["sleep", "2147483"])


def load(cluster: Cluster, content: Content) -> str:
    """Make the image and load it into the node, unless it has the same content; return its name."""
    given = cluster.data / "images" / content.name
    key = f"{content.key} {content.env} {content.command}"
    given.parent.mkdir(exist_ok=True)
    # Workers of one run may build at the same time.
    with given.open("a+") as note:
        fcntl.flock(note, fcntl.LOCK_EX)
        note.seek(0)
        if note.read() != key:
            with tempfile.NamedTemporaryFile(suffix=".tar") as file:
                _write(content, Path(file.name))
                cluster.ctr("images", "import", file.name)
            note.truncate(0)
            note.write(key)
    return content.name


def remove(cluster: Cluster, name: str) -> None:
    """Remove a loaded image from the node."""
    cluster.ctr("images", "rm", f"{_REGISTRY}{name}")
    (cluster.data / "images" / name).unlink()


def _write(content: Content, archive: Path) -> None:
    with tempfile.NamedTemporaryFile(suffix=".tar") as layer:
        with tarfile.open(fileobj=layer, mode="w") as tar:
            content.pack(tar)
        layer.flush()
        with Path(layer.name).open("rb") as file:
            digest = hashlib.sha256()
            while piece := file.read(1 << 20):
                digest.update(piece)
        machine = platform.machine()
        config = json.dumps(
            {
                "os": "linux",
                "architecture": _PROCESSORS.get(machine, machine),
                "config": {"Env": content.env, "Cmd": content.command},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest.hexdigest()}"]},
            }
        ).encode()
        name = f"{hashlib.sha256(config).hexdigest()}.json"
        manifest = [{"Config": name, "RepoTags": [content.name], "Layers": ["layer.tar"]}]
        with tarfile.open(archive, "w") as tar:
            tar.add(layer.name, "layer.tar")
            for path, data in ((name, config), ("manifest.json", json.dumps(manifest).encode())):
                info = tarfile.TarInfo(path)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
