"""The scripts with stand-ins for the commands of Slurm, for rare answers of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.slurm import commands
from airflow_provider_launch.schedulers.slurm.options import SlurmConnection, SlurmOpts
from airflow_provider_launch.schedulers.slurm.request import build_request
from airflow_provider_launch.schedulers.slurm.status import ENDS, LIVE
from airflow_provider_launch.schedulers.slurm.store import Store
from airflow_provider_launch.schedulers.slurm.transport import LocalTransport
from airflow_provider_launch.specs import AppDef, Role, SchedulerRejectedError, SchedulerUnavailableError


class Site:
    """A directory of commands that record their calls."""

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
    """A waiting job is cancelled; the script of a running job stops its replicas with their grace."""
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


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ("7", SchedulerUnavailableError, "squeue does not list job 7, which"),
        ("*** quota: 80 % of 12 TB ***\n7", SchedulerUnavailableError, "squeue does not list job 7, which"),
        ("7\nsee https://hpc.example/news", SchedulerUnavailableError, "squeue does not list job 7, which"),
        ("Submitted batch job 7", SchedulerUnavailableError, "squeue does not list job 7, which"),
        ("7;b", SchedulerRejectedError, "held on another cluster"),
        ("welcome\n7;b", SchedulerRejectedError, "held on another cluster"),
        ("slurm-wlm 22.05.8", SchedulerRejectedError, "held on another cluster"),
        ("", SchedulerRejectedError, "held on another cluster"),
    ],
)
def test_a_banner_of_a_wrapper_hides_no_number(site, answer, error, text) -> None:
    """A final refusal is not retried; if squeue was only late, the job stays held."""
    site.root.mkdir(mode=0o700)
    site.command("squeue")
    (site.bin / "answer").write_text(answer + "\n")
    site.command("sbatch", f"cat {site.bin / 'answer'}")
    app = AppDef("app", [Role("main", "/", entrypoint="true")])

    with pytest.raises(error, match=text):
        site.store.submit(build_request(app, SlurmOpts(), "app-1", {}))
    assert len(site.called("sbatch")) == 1
