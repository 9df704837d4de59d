"""The contract of the plug-in for Grid Engine, on its real queue."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.queue import QueueScheduler
from airflow_provider_launch.specs import AppDef, AppState, Resource, Role
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from tests.plugins.grid_engine import HOME, IS_INSTALLED, REASON, GridEngine
from tests.plugins.queue_engine import QueueEngine, launch
from tests.support.apps import until_state
from tests.support.host_contract import HostContract
from tests.support.repeats import SOAK

pytestmark = [
    pytest.mark.skipif(not SOAK, reason="the contract on a second queue; LAUNCH_SOAK=1 runs it"),
    pytest.mark.skipif(not IS_INSTALLED, reason=REASON),
]


class SgeEngine(QueueEngine):
    def __init__(self, folder: Path, cluster: GridEngine) -> None:
        super().__init__(folder)
        self.cluster = cluster
        for name in ("qsub", "qstat", "qdel"):
            self.counted(str(HOME / name))

    def listed(self, app_id: str) -> int:
        return self.cluster.run("qstat", "-xml").count(f"<JB_name>launch-{app_id}</JB_name>")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GridEngine]:
    cluster = GridEngine(tmp_path_factory.mktemp("sge") / "root")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def engine(
    install: Callable[[str], Path], tmp_path: Path, cluster: GridEngine, monkeypatch: pytest.MonkeyPatch
) -> SgeEngine:
    install("launch_sge")
    engine = SgeEngine(tmp_path, cluster)
    monkeypatch.setenv("PATH", f"{engine.bin}:{os.environ['PATH']}")
    return engine


@pytest.fixture
def params(engine: SgeEngine) -> dict[str, Any]:
    cluster = engine.cluster
    return {"root": str(engine.root), "sge_root": str(cluster.root), "qmaster_port": cluster.port}


@pytest.fixture
def scheduler(params: dict[str, Any]) -> Iterator[QueueScheduler]:
    import launch_sge

    scheduler = launch_sge.create_scheduler("test", **params)
    yield scheduler
    for row in scheduler.list():
        scheduler.delete(row.app_id)


@pytest.fixture
def closed(cluster: GridEngine) -> Iterator[None]:
    """Jobs wait until this ends."""
    cluster.run("qmod", "-d", "all.q")
    yield
    cluster.run("qmod", "-e", "all.q")


def job_of(engine: SgeEngine, app_id: str) -> str:
    return json.loads((engine.root / "apps" / app_id / "job.json").read_text())["id"]


@pytest.mark.usefixtures("closed")
def test_slots_and_memory_reach_the_job(scheduler, engine) -> None:
    role = Role("main", "/", entrypoint="true", num_replicas=2, resource=Resource(cpu=2, gpu=0, memMB=1000))
    info = scheduler.submit_dryrun(AppDef("app", [role]), {"environment": "smp", "memory": "h_vmem"})
    app_id = scheduler.schedule(info)

    found = engine.cluster.run("qstat", "-j", job_of(engine, app_id))
    assert re.search(r"parallel environment: +smp range: 4\n", found)
    assert re.search(r"hard resource_list: +h_vmem=500M\n", found)
    scheduler.cancel(app_id)
    assert scheduler.describe(app_id).state is AppState.CANCELLED
    assert engine.listed(app_id) == 0


def test_a_held_job_is_stuck_until_it_is_released(scheduler, engine, closed) -> None:
    app_id = launch(scheduler, "true")
    engine.cluster.run("qhold", job_of(engine, app_id))

    found = scheduler.describe(app_id)
    assert (found.state, found.is_stuck) == (AppState.PENDING, True)
    assert "held" in found.msg
    engine.cluster.run("qrls", job_of(engine, app_id))
    assert not scheduler.describe(app_id).is_stuck


def test_a_job_that_a_user_deletes_is_a_failure(scheduler, engine) -> None:
    app_id = launch(scheduler, "trap '' TERM; sleep 60 & wait")
    until_state(scheduler, app_id, AppState.RUNNING)
    engine.cluster.run("qdel", job_of(engine, app_id))

    until_state(scheduler, app_id, AppState.FAILED)
    assert engine.alive(app_id) == 0


@pytest.mark.usefixtures("closed")
def test_a_master_that_is_down_is_an_error(scheduler, params) -> None:
    import launch_sge

    app_id = launch(scheduler, "true")
    cut_off = launch_sge.create_scheduler("test", **{**params, "qmaster_port": 1})

    with pytest.raises(SchedulerUnavailableError):
        cut_off.describe(app_id)
    with pytest.raises(SchedulerUnavailableError):
        launch(cut_off, "true")


class TestSge(HostContract):
    factory = "launch_sge:create_scheduler"
    capabilities = QueueScheduler.capabilities
    many = 50

    @pytest.fixture
    def params(self, params: dict[str, Any]) -> dict[str, Any]:
        return params

    @pytest.fixture
    def unreachable_params(self, params: dict[str, Any], root_below_a_file: str) -> dict[str, Any]:
        return {**params, "root": root_below_a_file, "qmaster_port": 1}

    @pytest.fixture
    def engine(self, engine: SgeEngine) -> SgeEngine:
        return engine
