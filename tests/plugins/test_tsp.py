"""The contract of the plug-in for task spooler, on its real queue."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.testing import SchedulerContract
from tests.plugins.tsp_engine import TspEngine
from tests.support import app_folders

pytestmark = pytest.mark.engine("task-spooler")


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
