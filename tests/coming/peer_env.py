"""Environments of peers that do not fit next to this package, one for each, below `.build/peers` of the checkout."""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PEERS = {
    "torchx": ("torchx-nightly==2026.10.26", "docker==7.2.0", "kubernetes==36.0.3"),
    "magnus": ("magnus==0.5.1", "setuptools==75.8.0"),  # magnus imports pkg_resources, which newer ones lack
    "runnable": ("runnable==0.50.0",),
}
_UNREACHABLE = re.compile(r"failed to fetch|error sending request|dns error|timed out|connection refused")


def python_of(peer: str, checkout: Path) -> Path:
    """Return the interpreter of a peer's environment, which is made at the first call; skip without an index."""
    packages = PEERS[peer]
    version = hashlib.sha256(repr((packages, sys.version)).encode()).hexdigest()[:10]
    folder = checkout / ".build" / "peers" / f"{peer}-{version}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _make(folder, packages)
            (folder / "complete").touch()
    return folder / "bin" / "python"


def _make(folder: Path, packages: tuple[str, ...]) -> None:
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed; make setup does it")
    python = folder / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True, timeout=120)
    command = [uv, "pip", "install", "--quiet", "--python", python, *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode and _UNREACHABLE.search(done.stderr.lower()):
        pytest.skip(f"the package index does not answer: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
