"""The contract of the local scheduler, on real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.schedulers.local import layout
from tests.support.capabilities import EVERYWHERE
from tests.support.host_contract import HostContract, HostEngine
from tests.support.local import lock_holder
from tests.support.repeats import often


class LocalEngine(HostEngine):
    def give_up(self, app_id: str, role: str) -> bool:
        # Supervisor and shim, as by the out-of-memory killer.
        app_dir = self.root / "apps" / app_id
        supervisor = lock_holder(app_dir / layout.LOCK)
        (file,) = app_dir.glob(f"run/0/*-{role}/0/0/pid")
        assert supervisor
        os.kill(supervisor, signal.SIGKILL)
        os.kill(layout.read_json(str(file))["shim"], signal.SIGKILL)
        return True


@pytest.mark.engine("local")
class TestLocal(HostContract):
    factory = "airflow_provider_launch.schedulers.local.scheduler:create_scheduler"
    many = often(50, 200)
    capabilities = EVERYWHERE | {Capability.STREAMS, Capability.WORKSPACE}

    @pytest.fixture
    def params(self, tmp_path: Path) -> dict[str, Any]:
        return {"root": str(tmp_path / "root")}

    @pytest.fixture
    def unreachable_params(self, root_below_a_file: str) -> dict[str, Any]:
        return {"root": root_below_a_file}

    @pytest.fixture
    def engine(self, tmp_path: Path) -> LocalEngine:
        return LocalEngine(tmp_path / "root")
