"""The contract of the plug-in for task spooler, on its real queue."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_provider_launch.schedulers.api import Capability
from tests.plugins.tsp_engine import TspEngine
from tests.support.capabilities import EVERYWHERE
from tests.support.host_contract import HostContract
from tests.support.repeats import SOAK

pytestmark = pytest.mark.engine("task-spooler")


class TestTsp(HostContract):
    factory = "launch_tsp:create_scheduler"
    capabilities = (EVERYWHERE - {Capability.GPU}) | {Capability.STREAMS, Capability.WORKSPACE}
    many = 50
    slots: ClassVar[int] = 60

    @pytest.fixture
    def params(self, engine: TspEngine) -> dict[str, Any]:
        return {"root": str(engine.root), "socket": engine.socket}

    @pytest.fixture
    def unreachable_params(self, root_below_a_file: str, tmp_path: Path) -> dict[str, Any]:
        return {"root": root_below_a_file, "socket": str(tmp_path / "none")}

    @pytest.fixture
    def engine(
        self, install: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[TspEngine]:
        install("launch_tsp")
        engine = TspEngine(tmp_path)
        engine.tsp("-S", str(self.slots))
        monkeypatch.setenv("PATH", f"{engine.bin}:{os.environ['PATH']}")
        yield engine
        engine.tsp("-K")


@pytest.mark.skipif(not SOAK, reason="the contract on a queue of one slot; LAUNCH_SOAK=1 runs it")
class TestTspOneByOne(TestTsp):
    """No test but those of several running apps needs a second slot."""

    slots = 1
    apps_at_once = 1
