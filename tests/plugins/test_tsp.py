"""The contract of the plug-in for task spooler, on its real queue."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.testing import Engine, SchedulerContract
from tests.support import app_folders
from tests.support.local import command_lines_below, lock_holder

REAL = shutil.which("tsp") or ""
pytestmark = pytest.mark.skipif(not REAL, reason="needs tsp: apt install task-spooler")


class TspEngine(Engine):
    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.socket = str(folder / "socket")
        self.bin = folder / "bin"
        self.bin.mkdir()
        self._count = folder / "commands"
        self._count.touch()
        counted = self.bin / "tsp"
        counted.write_text(f'#!/bin/sh\nprintf x >> {self._count}\nexec {REAL} "$@"\n')
        counted.chmod(0o755)

    def tsp(self, *args: str) -> str:
        done = subprocess.run(
            [REAL, *args],
            env={**os.environ, "TS_SOCKET": self.socket, "TS_MAXFINISHED": "10000", "TS_MAXCONN": "2000"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def requests(self) -> int:
        return self._count.stat().st_size

    def alive(self, app_id: str) -> int:
        lines = command_lines_below(self.root / "apps" / app_id).values()
        return sum(b"bare.py" not in line for line in lines)

    def starts(self, app_id: str) -> int:
        return len(list((self.root / "apps" / app_id / "run").rglob("pid")))

    def left(self, app_id: str) -> int:
        return app_folders.left(self.root, app_id) + self.tsp("-l").count(f"[{app_id}]")

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


class TestTsp(SchedulerContract):
    factory = "launch_tsp:create_scheduler"
    capabilities = frozenset(
        {
            Capability.REPLICA_RETRY,
            Capability.APPLICATION_RETRY,
            Capability.ADOPT,
            Capability.STREAMS,
            Capability.RANK0,
            Capability.PORTS,
            Capability.RESULT,
            Capability.ADDRESSES,
            Capability.SERVICE_ROLES,
            Capability.WORKSPACE,
        }
    )
    many = 50

    @pytest.fixture
    def params(self, engine: TspEngine) -> dict[str, Any]:
        return {"root": str(engine.root), "socket": engine.socket}

    @pytest.fixture
    def unreachable_params(self, tmp_path: Path) -> dict[str, Any]:
        (tmp_path / "file").touch()
        return {"root": str(tmp_path / "file" / "root"), "socket": str(tmp_path / "none")}

    @pytest.fixture
    def image(self, tmp_path: Path) -> str:
        return str(tmp_path)

    @pytest.fixture
    def program_with_a_space(self, tmp_path: Path) -> str:
        return app_folders.program_that_prints_its_args(tmp_path)

    @pytest.fixture
    def engine(
        self, install: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[TspEngine]:
        install("launch_tsp")
        engine = TspEngine(tmp_path)
        engine.tsp("-S", "60")
        monkeypatch.setenv("PATH", f"{engine.bin}:{os.environ['PATH']}")
        yield engine
        engine.tsp("-K")
