"""Apps of a queue whose files and processes are on this host, and direct access to them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from airflow_provider_launch.schedulers.queue import QueueScheduler
from airflow_provider_launch.specs import AppDef, Role
from tests.support.host_contract import HostEngine
from tests.support.local import lock_holder


def launch(scheduler: QueueScheduler, script: str, **cfg: object) -> str:
    app = AppDef("app", [Role("main", "/", entrypoint="sh", args=["-c", script])])
    return scheduler.schedule(scheduler.submit_dryrun(app, cfg))


class QueueEngine(HostEngine):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "root")
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

    def left(self, app_id: str) -> int:
        return super().left(app_id) + self.listed(app_id)

    def give_up(self, app_id: str, role: str) -> bool:
        supervisor = lock_holder(self.root / "apps" / app_id / "lock")
        assert supervisor
        os.kill(supervisor, signal.SIGKILL)
        return True
