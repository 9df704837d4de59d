"""The contract of schedulers whose apps run on this host, below a root: local processes, and queues of one host."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from airflow_provider_launch.testing import Engine, SchedulerContract
from tests.support import app_folders
from tests.support.local import command_lines_below


class HostEngine(Engine):
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

    def damaged(self, app_id: str) -> AbstractContextManager[None]:
        return app_folders.damaged(self.root, app_id)

    def inflated(self, app_id: str) -> AbstractContextManager[None]:
        return app_folders.inflated(self.root, app_id)

    def forged(self, app_id: str) -> AbstractContextManager[None]:
        return app_folders.forged(self.root, app_id, "app.json", "state.json", "lock", "cancel")

    def cut_off(self) -> AbstractContextManager[None]:
        return app_folders.unreadable(self.root)


class HostContract(SchedulerContract):
    """The contract, with programs of this host."""

    @pytest.fixture
    def image(self, tmp_path: Path) -> str:
        return str(tmp_path)

    @pytest.fixture
    def program_with_a_space(self, tmp_path: Path) -> str:
        return app_folders.program_that_prints_its_args(tmp_path)

    @pytest.fixture
    def root_below_a_file(self, tmp_path: Path) -> str:
        """Return a root that cannot exist."""
        (tmp_path / "file").touch()
        return str(tmp_path / "file" / "root")
