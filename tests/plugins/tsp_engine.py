"""The queue of task spooler, with a server for each test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.plugins.queue_engine import QueueEngine


class TspEngine(QueueEngine):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.socket = str(folder / "socket")
        # The start of the tests may have installed it after the import of this module.
        self._program = shutil.which("tsp") or "tsp"
        self.counted(self._program)

    def tsp(self, *args: str) -> str:
        done = subprocess.run(
            [self._program, *args],
            env={**os.environ, "TS_SOCKET": self.socket, "TS_MAXFINISHED": "10000", "TS_MAXCONN": "2000"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def listed(self, app_id: str) -> int:
        return self.tsp("-l").count(f"[{app_id}]")
