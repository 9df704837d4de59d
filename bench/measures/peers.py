"""Environments of peers that need other versions; created once for each set of constraints."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENVS = ROOT / ".build" / "bench-peers"
KUBERNETES = "apache-airflow-providers-cncf-kubernetes"


def kubernetes_python() -> str:
    """Return the interpreter of an environment with Airflow and the Kubernetes provider.

    Its clients are those that the provider asks for: it has upper bounds, and a newer one would get us an old provider.
    """
    text = (ROOT / "constraints.txt").read_text()
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("kubernetes"))
    venv, digest = VENVS / "kubernetes", hashlib.sha256(text.encode()).hexdigest()[:12]
    python, ready = venv / "bin" / "python", venv / f"ready-{digest}"
    if not ready.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(venv)], check=True)
        constraints = venv / "constraints.txt"
        constraints.write_text(text)
        install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
        subprocess.run([*install, "--constraint", str(constraints), "apache-airflow", KUBERNETES], check=True)
        ready.touch()
    return str(python)


def version(python: str, package: str) -> str:
    """Return the package with its version there."""
    code = f"from importlib.metadata import version as v; print('{package}', v('{package}'))"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([python, "-c", code], check=True, stdout=subprocess.PIPE, text=True, env=env)
    return done.stdout.strip()
