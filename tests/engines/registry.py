"""An image registry on this host (Debian's `docker-registry`) for workspaces that are built and pushed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.docker.daemon import EngineError
from tests.engines.docker.packages import install

_PROGRAM = "docker-registry"
_START_S = 20.0


def install_registry() -> None:
    """Install the program; root only."""
    install(**{_PROGRAM: _PROGRAM})


def missing_registry() -> str | None:
    """Return the reason why a registry cannot be started, or None."""
    return None if shutil.which(_PROGRAM) else f"{_PROGRAM} is not installed"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`127.0.0.1:<port>` of an empty registry without logins; a test that uses it is marked `engine("registry")`."""
    if reason := missing_registry():
        pytest.skip(reason)
    yield from serve_registry(tmp_path_factory.mktemp("registry"))


def serve_registry(folder: Path, auth: str = "") -> Iterator[str]:
    """Yield the address of a registry that keeps its images in a folder, and end it.

    Args:
        folder: empty.
        auth: lines of its configuration that ask for a login.
    """
    port = _free_port()
    config = folder / "config.yml"
    config.write_text(
        f"version: 0.1\nlog:\n  level: warn\nstorage:\n  filesystem:\n    rootdirectory: {folder / 'images'}\n"
        f"http:\n  addr: 127.0.0.1:{port}\n{auth}"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([_PROGRAM, "serve", str(config)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise EngineError(f"{_PROGRAM} does not answer:\n{(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=2):
            return True
    except urllib.error.HTTPError:
        return True  # it requires a login
    except OSError:
        return False
