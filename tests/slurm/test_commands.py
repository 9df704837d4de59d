"""The scripts, with stand-ins for the commands of Slurm: answers that a cluster gives rarely."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.slurm import commands
from airflow_provider_launch.schedulers.slurm.options import SlurmConnection
from airflow_provider_launch.schedulers.slurm.status import ENDS, LIVE
from airflow_provider_launch.schedulers.slurm.store import Store
from airflow_provider_launch.schedulers.slurm.transport import LocalTransport


class Site:
    """A directory with commands, each of which notes how it was called."""

    def __init__(self, base: Path) -> None:
        self.bin, self.root = base / "bin", base / "root"
        self.bin.mkdir()
        self.calls = base / "calls"
        self.store = Store(SlurmConnection(root=str(self.root), slurm_bin=str(self.bin)), LocalTransport())

    def command(self, name: str, body: str = "") -> None:
        file = self.bin / name
        file.write_text(f'#!/bin/sh\necho {name} "$@" >>{self.calls}\n{body}\n')
        file.chmod(0o755)

    def called(self, name: str) -> list[str]:
        """Return the arguments of each call."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == name]


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("state", [*LIVE, *ENDS, "A_NEW_WORD"])
def test_a_cancel_reaches_a_job_in_each_state(site, state) -> None:
    """One that waits is cancelled, the script of one that runs ends its replicas with their grace."""
    app = site.root / "apps" / "a"
    app.mkdir(parents=True)
    for directory in (site.root, site.root / "apps", app):
        directory.chmod(0o700)
    (app / "id").write_text("hash:instance")
    site.command("squeue", f"echo '7|{state}|launch:hash:instance:nonce'")
    site.command("scancel")

    assert site.store.cancel("a", "cancel")
    if state in {"RUNNING", "RESIZING", "SIGNALING"}:
        expected = ["--batch --signal=TERM 7"]
    else:
        expected = [] if state in {*ENDS, "COMPLETING", "STAGE_OUT"} else ["7"]
    assert site.called("scancel") == expected


def test_the_scripts_know_each_end() -> None:
    assert set(commands._ENDED.split("|")) == set(ENDS)
