"""The contract of the Slurm scheduler, on a real cluster: with local commands and over SSH."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.schedulers.slurm.scheduler import create_scheduler
from airflow_provider_launch.testing import Engine, SchedulerContract
from airflow_provider_launch.testing._costs import CostTests
from airflow_provider_launch.testing._following import FollowTests
from airflow_provider_launch.testing._logs import LogTests
from airflow_provider_launch.testing._outages import LossTests, OutageTests
from airflow_provider_launch.testing._running import RunningTests
from airflow_provider_launch.testing._workspaces import WorkspaceTests
from tests.engines.slurm import engine as engines
from tests.engines.slurm.cluster import Cluster
from tests.engines.slurm.fixtures import SlurmCommands, own_port
from tests.faults.pipe import TcpPipe
from tests.support import app_folders
from tests.support.capabilities import EVERYWHERE
from tests.support.processes import processes_of
from tests.support.repeats import SOAK

CAPABILITIES = EVERYWHERE | {
    Capability.STREAMS,
    Capability.DISRUPTION_RETRY,
    Capability.WORKSPACE,
}


class SlurmEngine(Engine):
    """Reads processes, the files of replicas, and the list of executed commands."""

    def __init__(self, commands: SlurmCommands, root: Path) -> None:
        self.commands = commands
        self.root = root

    def alive(self, app_id: str) -> int:
        return len(processes_of(app_id))

    def starts(self, app_id: str) -> int:
        return len(list((self.root / "apps" / app_id / "run").glob("*/*/*/*/stdout")))

    def left(self, app_id: str) -> int:
        return app_folders.left(self.root, app_id)

    def requests(self) -> int:
        return self.commands.calls()

    def damaged(self, app_id: str) -> AbstractContextManager[None]:
        return app_folders.damaged(self.root, app_id)

    def inflated(self, app_id: str) -> AbstractContextManager[None]:
        return app_folders.inflated(self.root, app_id)

    def forged(self, app_id: str) -> AbstractContextManager[None]:
        return app_folders.forged(self.root, app_id, "app.json", "id", "claim", "alive")

    def cut_off(self) -> AbstractContextManager[None]:
        return app_folders.unreadable(self.root)


class _OnSlurm:
    """Fixtures of the contract for Slurm."""

    factory = "airflow_provider_launch.schedulers.slurm.scheduler:create_scheduler"
    capabilities = CAPABILITIES
    timeout_s = 180.0
    many = 50

    @pytest.fixture
    def params(self, slurm_cluster: Cluster, slurm_root: Path, slurm_commands: SlurmCommands) -> dict[str, Any]:
        where = {"slurm_conf": str(slurm_cluster.conf), "slurm_bin": str(slurm_commands.dir)}
        return {"root": str(slurm_root), **where, "settle_s": 3.0}

    @pytest.fixture
    def unreachable_params(self, tmp_path: Path) -> dict[str, Any]:
        (tmp_path / "file").touch()
        return {"root": str(tmp_path / "file" / "root"), "slurm_conf": str(tmp_path / "none")}

    @pytest.fixture
    def image(self, slurm_root: Path) -> str:
        return str(slurm_root.parent)

    @pytest.fixture
    def program_with_a_space(self, slurm_root: Path) -> str:
        return app_folders.program_that_prints_its_args(slurm_root.parent)

    @pytest.fixture
    def never_starts(self, slurm_cluster: Cluster) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """The time limit of the job is above that of its partition."""
        partition = f"short{uuid.uuid4().hex[:8]}"
        slurm_cluster.run("scontrol", "create", f"PartitionName={partition}", "Nodes=n1", "MaxTime=1")
        yield {}, {"partition": partition, "time_limit_s": 3600}
        # Its jobs must have ended before the clean-up after the test.
        slurm_cluster.run("scancel", "--partition", partition)
        slurm_cluster.run("scontrol", "delete", f"PartitionName={partition}")

    @pytest.fixture
    def engine(self, slurm_commands: SlurmCommands, slurm_root: Path) -> SlurmEngine:
        return SlurmEngine(slurm_commands, slurm_root)


@pytest.mark.timeout(600)  # 50 jobs take a minute on a busy machine
@pytest.mark.engine("slurm")
class TestSlurm(_OnSlurm, SchedulerContract):
    """The commands of Slurm are on this host."""


class _OfTransport(RunningTests, LogTests, FollowTests, OutageTests, CostTests, WorkspaceTests):
    """The parts of the contract in which SSH can differ."""


class SshEngine(SlurmEngine):
    """The same, with a pipe in front of sshd."""

    def __init__(self, commands: SlurmCommands, root: Path, pipe: TcpPipe) -> None:
        super().__init__(commands, root)
        self.pipe = pipe

    def cut_off(self) -> AbstractContextManager[None]:
        return self.pipe.refused()


@pytest.mark.timeout(600)
@pytest.mark.engine("slurm")
class TestSlurmOverSsh(_OnSlurm, SchedulerContract if SOAK else _OfTransport):
    """The commands of Slurm, and the directory, are on a login node."""

    @pytest.fixture
    def params(
        self, slurm_cluster: Cluster, slurm_root: Path, slurm_commands: SlurmCommands, slurm_pipe: TcpPipe
    ) -> dict[str, Any]:
        return {
            "root": str(slurm_root),
            "slurm_bin": str(slurm_commands.dir),
            "settle_s": 3.0,
            "ssh_host": "127.0.0.1",
            "ssh_port": slurm_pipe.port,
            "ssh_user": "root",
            "ssh_key_file": str(slurm_cluster.sshd.key),
            "ssh_host_key": slurm_cluster.sshd.host_key,
        }

    @pytest.fixture
    def unreachable_params(self) -> dict[str, Any]:
        return {"ssh_host": "127.0.0.1", "ssh_port": 1}

    @pytest.fixture
    def engine(self, slurm_commands: SlurmCommands, slurm_root: Path, slurm_pipe: TcpPipe) -> SshEngine:
        return SshEngine(slurm_commands, slurm_root, slurm_pipe)


class LostNodeEngine(SlurmEngine):
    """The same, of a cluster that the test may break."""

    def __init__(self, commands: SlurmCommands, root: Path, cluster: Cluster, params: dict[str, Any]) -> None:
        super().__init__(commands, root)
        self._cluster = cluster
        self._params = params

    def give_up(self, app_id: str, role: str) -> bool:
        with contextlib.closing(create_scheduler("tests", **self._params)) as scheduler:
            found = scheduler.describe(app_id)
        assert found is not None
        (status,) = (status for status in found.roles_statuses if status.role == role)
        self._cluster.kill_daemon(status.replicas[0].hostname)
        return True


@pytest.mark.timeout(600)
@pytest.mark.engine("slurm")
class TestSlurmLosesANode(_OnSlurm, LossTests):
    """On a cluster of its own, because it kills the daemon of a node and not the programs there."""

    @pytest.fixture
    def slurm_cluster(self) -> Iterator[Cluster]:
        with engines.own_cluster(own_port(28817)) as cluster:
            yield cluster

    @pytest.fixture
    def engine(
        self, slurm_commands: SlurmCommands, slurm_root: Path, slurm_cluster: Cluster, params: dict[str, Any]
    ) -> LostNodeEngine:
        return LostNodeEngine(slurm_commands, slurm_root, slurm_cluster, params)
