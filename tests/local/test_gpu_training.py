"""The script that trains on the GPUs of a machine; all but CUDA and NCCL is tested without a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "gpu_training.py"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *args], capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine may have a GPU")
def test_without_a_gpu_it_reports_that_nothing_was_tested() -> None:
    done = run()

    assert done.returncode == 0, done.stderr
    assert done.stdout == "skipped, nothing was tested: the NVIDIA driver lists no GPU on this machine\n"


@pytest.mark.timeout(400)
@pytest.mark.engine("torch")
@pytest.mark.engine("local")
def test_its_checks_pass_on_cpus_with_pretended_devices() -> None:
    """Leases and visible devices are those of the scheduler; only the training itself is on CPUs."""
    done = run("--cpu")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 replicas, gloo, loss " in done.stdout
    assert "wants 1 GPUs, 0 of 2 are free" in done.stdout
    assert "torchrun with 2 processes, gloo" in done.stdout
