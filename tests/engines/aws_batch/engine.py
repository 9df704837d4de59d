"""The AWS Batch of the tests: one server per test process, whose jobs are Docker containers."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.engines.aws_batch.names import CONTROL
from tests.engines.docker.daemon import EngineError

if TYPE_CHECKING:
    from typing_extensions import Self

_CHECKOUT = Path(__file__).resolve().parents[3]
_PYTHON = os.environ.get("LAUNCH_TEST_BATCH_PYTHON")
"""Another Python for the server, which needs newer packages than the tests of a lowest version have."""


def why_missing(docker: str | None) -> str | None:
    """Return the reason why the server cannot run; `docker` is the reason why Docker is missing."""
    if docker:
        return f"jobs run in Docker, and {docker}"
    needed = ["boto3"] if _PYTHON else ["boto3", "flask", "moto"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)} (dependency group `engines`)" if missing else None


class BatchServer:
    """A server for a `with` block."""

    def __init__(self, *, plain: bool = False) -> None:
        flags = ["--plain"] if plain else []
        self._process = subprocess.Popen(
            [_PYTHON or sys.executable, "-W", "ignore", "-m", "tests.engines.aws_batch.server", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_CHECKOUT,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise EngineError(
                f"the server of AWS Batch ended with {self._process.wait(10)}; its stderr shows the reason"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def control(self, **asked: Any) -> dict[str, Any]:
        """Call `Server.control`."""
        request = urllib.request.Request(self.url + CONTROL, json.dumps(asked).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    @contextlib.contextmanager
    def settings(self, **changed: Any) -> Iterator[None]:
        """Change settings of the server inside the context."""
        before = self.control(settings=changed)["before"]
        try:
            yield
        finally:
            self.control(settings=before)
