"""Fixtures around the Slurm cluster; a test that uses them is marked `engine("slurm")`."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.engines.slurm.cluster import Cluster
from tests.engines.slurm.engine import OURS
from tests.faults.pipe import TcpPipe


@pytest.fixture(scope="session")
def slurm_cluster() -> Cluster:
    """The cluster of this session."""
    return OURS


def own_port(first: int) -> int:
    """Return the first port for a cluster of one test; workers of `pytest -n` run such tests side by side."""
    return first + 20 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 20)


class SlurmCommands:
    """A directory with wrappers of the Slurm commands, which record each call and can delay it."""

    NAMES = ("sbatch", "squeue", "scancel", "scontrol", "sacct")

    def __init__(self, dir_: Path) -> None:
        self.dir = dir_
        self._log, self._hang, self._hang_logs = dir_ / "log", dir_ / "hang", dir_ / "hang-logs"
        self._kill = dir_ / "kill"
        dir_.mkdir()
        for name in self.NAMES:
            if real := shutil.which(name):
                file = dir_ / name
                wait = f"while [ -e {self._hang} ]; do sleep 0.1; done"
                kills = f"[ ! -e {self._kill}-{name} ] || {{ rm {self._kill}-{name}; "
                before, after = f"{kills}kill -KILL 0; }}", f'{kills}{real} "$@"; kill -KILL 0; }}'
                after = after.replace(f"{self._kill}-", f"{self._kill}-after-")
                lines = ["#!/bin/sh", f"echo {name} >>{self._log}", wait, before, after, f'exec {real} "$@"', ""]
                file.write_text("\n".join(lines))
                file.chmod(0o755)

        # Files are read with it.
        dd, wait = dir_ / "dd", f"while [ -e {self._hang_logs} ]; do sleep 0.1; done"
        dd.write_text(f'#!/bin/sh\ncase $1 in if=./std*) {wait} ;; esac\nexec {shutil.which("dd")} "$@"\n')
        dd.chmod(0o755)
        self._slow = dir_ / "slow"
        for name in ("find", "stat"):
            file = dir_ / name
            wait = f"[ ! -e {self._slow} ] || sleep $(cat {self._slow})"
            file.write_text(f'#!/bin/sh\n{wait}\nexec {shutil.which(name)} "$@"\n')
            file.chmod(0o755)

    def calls(self, name: str | None = None) -> int:
        """Return how often one or all commands were run."""
        lines = self._log.read_text().split() if self._log.exists() else []
        return len(lines) if name is None else lines.count(name)

    def hanging(self) -> AbstractContextManager[None]:
        """Make each command hang inside the context."""
        return _existing(self._hang)

    @contextlib.contextmanager
    def killed(self, name: str) -> Iterator[None]:
        """Make a command, or its end (`after-sbatch`), kill the process group of its caller."""
        file = self._kill.with_name(f"{self._kill.name}-{name}")
        file.touch()
        yield
        assert not file.exists(), f"no {name} was called"

    @contextlib.contextmanager
    def slow_files(self, seconds: float) -> Iterator[None]:
        """Delay each command that lists files."""
        self._slow.write_text(str(seconds))
        try:
            yield
        finally:
            self._slow.unlink()

    def hanging_logs(self) -> AbstractContextManager[None]:
        """Make each log read hang inside the context."""
        return _existing(self._hang_logs)


@contextlib.contextmanager
def _existing(file: Path) -> Iterator[None]:
    file.touch()
    try:
        yield
    finally:
        file.unlink()


@pytest.fixture
def slurm_pipe(slurm_cluster: Cluster) -> Iterator[TcpPipe]:
    """A pipe in front of the login node."""
    with TcpPipe(slurm_cluster.sshd.port) as pipe:
        yield pipe


@pytest.fixture
def slurm_commands(slurm_root: Path) -> SlurmCommands:
    """The commands of Slurm, counted."""
    return SlurmCommands(slurm_root.parent / "bin")


@pytest.fixture
def slurm_root(slurm_cluster: Cluster) -> Iterator[Path]:
    """A directory that all nodes share, for the apps of one test."""
    root = Path(tempfile.mkdtemp(prefix="apps-", dir=slurm_cluster.dir))
    yield root / "root"
    shutil.rmtree(root, ignore_errors=True)
