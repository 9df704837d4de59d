"""The contract of the Slurm scheduler, on a real cluster: with local commands and over SSH."""

from __future__ import annotations

import contextlib
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.testing import Engine, SchedulerContract
from airflow_provider_launch.testing._costs import CostTests
from airflow_provider_launch.testing._following import FollowTests
from airflow_provider_launch.testing._logs import LogTests
from airflow_provider_launch.testing._outages import OutageTests
from airflow_provider_launch.testing._running import RunningTests
from airflow_provider_launch.testing._workspaces import WorkspaceTests
from tests.engines.slurm.cluster import Cluster
from tests.engines.slurm.fixtures import SlurmCommands
from tests.faults.pipe import TcpPipe
from tests.support.repeats import SOAK

CAPABILITIES = frozenset(
    {
        Capability.REPLICA_RETRY,
        Capability.APPLICATION_RETRY,
        Capability.ADOPT,
        Capability.STREAMS,
        Capability.TIME_FILTER,
        Capability.RANK0,
        Capability.PORTS,
        Capability.GPU,
        Capability.RESULT,
        Capability.WORKSPACE,
    }
)


class SlurmEngine(Engine):
    """Reads processes, the files of replicas, and the list of executed commands."""

    def __init__(self, commands: SlurmCommands, root: Path) -> None:
        self.commands = commands
        self.root = root

    def alive(self, app_id: str) -> int:
        mark = f"LAUNCH_APP_ID={app_id}\0".encode()
        found = 0
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                found += mark in (entry / "environ").read_bytes() + b"\0"
        return found

    def starts(self, app_id: str) -> int:
        return len(list((self.root / "apps" / app_id / "run").glob("*/*/*/*/stdout")))

    def left(self, app_id: str) -> int:
        return sum(path.name.startswith(app_id) for path in self.root.glob("*/*"))

    def requests(self) -> int:
        return self.commands.calls()

    @contextlib.contextmanager
    def damaged(self, app_id: str) -> Iterator[None]:
        record = self.root / "apps" / app_id / "app.json"
        text = record.read_bytes()
        record.write_text('[{"request": 1}]')
        try:
            yield
        finally:
            record.write_bytes(text)

    @contextlib.contextmanager
    def inflated(self, app_id: str) -> Iterator[None]:
        record = self.root / "apps" / app_id / "app.json"
        text = record.read_bytes()
        record.write_bytes(re.sub(rb'("num_replicas": ?)[0-9]+', rb"\g<1>1000000000", text))
        try:
            yield
        finally:
            record.write_bytes(text)

    @contextlib.contextmanager
    def forged(self, app_id: str) -> Iterator[None]:
        folder = self.root / "apps" / app_id
        folder.mkdir(mode=0o700)
        for name in ("app.json", "id", "claim", "alive"):
            (folder / name).write_bytes(b"\xff\0{[\n" * 50)
        (folder / "end").symlink_to("SUCCEEDED,never,9\nx")
        try:
            yield
        finally:
            shutil.rmtree(folder)

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        # Replaced by a link to itself, because a missing root would mean that no app was launched yet.
        away = self.root.with_name("away")
        if is_there := self.root.exists():
            self.root.rename(away)
        self.root.symlink_to(self.root)
        try:
            yield
        finally:
            self.root.unlink()
            if is_there:
                away.rename(self.root)


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
    def program_with_a_blank(self, slurm_root: Path) -> str:
        program = slurm_root.parent / "a directory" / "prints its args"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\nprintf '<%s>\\n' \"$@\"\n")
        program.chmod(0o755)
        return str(program)

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
