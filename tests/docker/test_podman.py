"""Podman has a socket like Docker's, and is refused with its name."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.docker.scheduler import create_scheduler
from airflow_provider_launch.specs.errors import InvalidAppError
from tests.support.apps import until

SERVICE = ("system", "service", "--time=30")


@pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed")
def test_podman_is_refused_by_name(tmp_path: Path):
    socket = tmp_path / "podman.sock"
    # Podman needs a short path for its runtime directory.
    with (
        tempfile.TemporaryDirectory(prefix="pod") as run,
        subprocess.Popen(
            [
                "podman",
                "--storage-driver=vfs",
                "--root",
                tmp_path / "root",
                "--runroot",
                run,
                *SERVICE,
                f"unix://{socket}",
            ],
            stderr=subprocess.DEVNULL,
        ) as service,
    ):
        try:
            until(socket.exists)
            with pytest.raises(InvalidAppError, match="is Podman"):
                create_scheduler("tests", host=f"unix://{socket}").describe("any")
        finally:
            service.terminate()
