"""Fixtures around the Slurm cluster; a test that uses them is marked `engine("slurm")`."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.slurm.cluster import Cluster
from tests.engines.slurm.engine import OURS

__all__ = ["SlurmCommands", "slurm_cluster", "slurm_commands", "slurm_root"]


@pytest.fixture(scope="session")
def slurm_cluster() -> Cluster:
    """The cluster of this session."""
    return OURS


class SlurmCommands:
    """A directory with the commands of Slurm, each of which leaves a line before it runs, and waits if told so."""

    NAMES = ("sbatch", "squeue", "scancel", "scontrol", "sacct")

    def __init__(self, dir_: Path) -> None:
        self.dir = dir_
        self._log, self._hang = dir_ / "log", dir_ / "hang"
        dir_.mkdir()
        for name in self.NAMES:
            if real := shutil.which(name):
                file = dir_ / name
                wait = f"while [ -e {self._hang} ]; do sleep 0.1; done"
                file.write_text(f'#!/bin/sh\necho {name} >>{self._log}\n{wait}\nexec {real} "$@"\n')
                file.chmod(0o755)

    def calls(self, name: str | None = None) -> int:
        """Return how often a command was run, or all of them."""
        lines = self._log.read_text().split() if self._log.exists() else []
        return len(lines) if name is None else lines.count(name)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Let each command hang as long as the context lasts."""
        self._hang.touch()
        try:
            yield
        finally:
            self._hang.unlink()


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
