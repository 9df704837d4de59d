"""Direct access to the apps of a queue, whose files and processes are on this host."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path

from airflow_provider_launch.testing import Engine
from tests.support import app_folders
from tests.support.local import command_lines_below, lock_holder


class QueueEngine(Engine):
    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self._count = folder / "commands"
        self._count.touch()

    def counted(self, real: str) -> None:
        """Put a program into `bin` that counts its calls."""
        path = self.bin / Path(real).name
        path.write_text(f'#!/bin/sh\nprintf x >> {self._count}\nexec {real} "$@"\n')
        path.chmod(0o755)

    def listed(self, app_id: str) -> int:
        """Return the number of jobs of the app that the queue lists."""
        raise NotImplementedError

    def requests(self) -> int:
        return self._count.stat().st_size

    def alive(self, app_id: str) -> int:
        lines = command_lines_below(self.root / "apps" / app_id).values()
        return sum(b"bare.py" not in line for line in lines)

    def starts(self, app_id: str) -> int:
        return len(list((self.root / "apps" / app_id / "run").rglob("pid")))

    def left(self, app_id: str) -> int:
        return app_folders.left(self.root, app_id) + self.listed(app_id)

    def give_up(self, app_id: str, role: str) -> bool:
        supervisor = lock_holder(self.root / "apps" / app_id / "lock")
        assert supervisor
        os.kill(supervisor, signal.SIGKILL)
        return True

    def damaged(self, app_id: str) -> AbstractContextManager[None]:
        return app_folders.damaged(self.root, app_id)

    def inflated(self, app_id: str) -> AbstractContextManager[None]:
        return app_folders.inflated(self.root, app_id)

    def forged(self, app_id: str) -> AbstractContextManager[None]:
        return app_folders.forged(self.root, app_id, "app.json", "state.json", "lock", "cancel")

    def cut_off(self) -> AbstractContextManager[None]:
        return app_folders.unreadable(self.root)
