"""Direct access to the apps of the threads scheduler."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_launch.testing import Engine
from tests.support.processes import processes_of


class ThreadsEngine(Engine):
    """Reads the processes of this host; its root is a link that can be removed."""

    def __init__(self, path: Path) -> None:
        self.root = path / "root"
        self._real = path / "real"
        self._real.mkdir()
        self.root.symlink_to(self._real)

    def alive(self, app_id: str) -> int:
        return len(processes_of(app_id))

    def starts(self, app_id: str) -> int | None:
        record = self._real / app_id / "started"
        return len(record.read_text().splitlines()) if record.exists() else None

    def left(self, app_id: str) -> int:
        return sum(path.name.lstrip(".").startswith(app_id) for path in self._real.iterdir())

    def stop(self, app_id: str, role: str) -> bool:
        (self.root / app_id / "stopped").touch()
        return True

    def lose(self, app_id: str, role: str) -> bool:
        """Lose the whole app, because one file has the state of all roles."""
        (self._real / app_id / "state.json").unlink()
        for pid in processes_of(app_id):
            os.kill(pid, signal.SIGKILL)
        return True

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        self.root.unlink()
        try:
            yield
        finally:
            self.root.symlink_to(self._real)
