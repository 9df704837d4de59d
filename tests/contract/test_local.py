"""The contract of the local scheduler, on real processes."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.schedulers.local import layout
from airflow_provider_launch.testing import Engine, SchedulerContract
from tests.support import app_folders
from tests.support.local import command_lines_below, lock_holder
from tests.support.repeats import often


class LocalEngine(Engine):
    """Reads `/proc` and the files of shims."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def alive(self, app_id: str) -> int:
        # Supervisor and shims, which are the same program, exit shortly after they have recorded the end.
        lines = command_lines_below(self.root / "apps" / app_id).values()
        return sum(b"bare.py" not in line for line in lines)

    def starts(self, app_id: str) -> int:
        # A shim writes `pid` when its command runs.
        return len(list((self.root / "apps" / app_id / "run").rglob("pid")))

    def left(self, app_id: str) -> int:
        return app_folders.left(self.root, app_id)

    def give_up(self, app_id: str, role: str) -> bool:
        # Supervisor and shim, as by the out-of-memory killer.
        app_dir = self.root / "apps" / app_id
        supervisor = lock_holder(app_dir / layout.LOCK)
        (file,) = app_dir.glob(f"run/0/*-{role}/0/0/pid")
        assert supervisor
        os.kill(supervisor, signal.SIGKILL)
        os.kill(layout.read_json(str(file))["shim"], signal.SIGKILL)
        return True

    def damaged(self, app_id: str) -> AbstractContextManager[None]:
        return app_folders.damaged(self.root, app_id)

    def inflated(self, app_id: str) -> AbstractContextManager[None]:
        return app_folders.inflated(self.root, app_id)

    def forged(self, app_id: str) -> AbstractContextManager[None]:
        return app_folders.forged(self.root, app_id, "app.json", "state.json", "lock", "cancel")

    def cut_off(self) -> AbstractContextManager[None]:
        return app_folders.unreadable(self.root)


@pytest.mark.engine("local")
class TestLocal(SchedulerContract):
    factory = "airflow_provider_launch.schedulers.local.scheduler:create_scheduler"
    many = often(50, 200)
    capabilities = frozenset(
        {
            Capability.REPLICA_RETRY,
            Capability.APPLICATION_RETRY,
            Capability.ADOPT,
            Capability.STREAMS,
            Capability.RANK0,
            Capability.PORTS,
            Capability.GPU,
            Capability.RESULT,
            Capability.ADDRESSES,
            Capability.SERVICE_ROLES,
            Capability.WORKSPACE,
        }
    )

    @pytest.fixture
    def params(self, tmp_path: Path) -> dict[str, Any]:
        return {"root": str(tmp_path / "root")}

    @pytest.fixture
    def unreachable_params(self, tmp_path: Path) -> dict[str, Any]:
        (tmp_path / "file").touch()
        return {"root": str(tmp_path / "file" / "root")}

    @pytest.fixture
    def image(self, tmp_path: Path) -> str:
        return str(tmp_path)

    @pytest.fixture
    def program_with_a_space(self, tmp_path: Path) -> str:
        return app_folders.program_that_prints_its_args(tmp_path)

    @pytest.fixture
    def engine(self, tmp_path: Path) -> LocalEngine:
        return LocalEngine(tmp_path / "root")
