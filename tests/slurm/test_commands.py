"""The scripts with stand-ins for the commands of Slurm, for rare answers of a cluster."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.follow.poller import poll_many
from airflow_provider_launch.schedulers.slurm import commands
from airflow_provider_launch.schedulers.slurm.options import SlurmConnection, SlurmOpts
from airflow_provider_launch.schedulers.slurm.request import build_request
from airflow_provider_launch.schedulers.slurm.scheduler import SlurmScheduler
from airflow_provider_launch.schedulers.slurm.script import app_files
from airflow_provider_launch.schedulers.slurm.status import ENDS, LIVE
from airflow_provider_launch.schedulers.slurm.store import Store
from airflow_provider_launch.schedulers.slurm.transport import Answer, LocalTransport
from airflow_provider_launch.schedulers.structured_opts import resolve_options
from airflow_provider_launch.specs import AppDef, AppState, Role, SchedulerRejectedError, SchedulerUnavailableError
from airflow_provider_launch.specs.errors import AppUnavailableError, InvalidRunConfigException
from tests.support.apps import until


class Site:
    """A directory of commands that record their calls."""

    def __init__(self, base: Path) -> None:
        self.bin, self.root = base / "bin", base / "root"
        self.bin.mkdir()
        self.calls = base / "calls"
        connection = SlurmConnection(root=str(self.root), slurm_bin=str(self.bin))
        self.store = Store(connection, LocalTransport())
        self.scheduler = SlurmScheduler("test", connection)

    def launched(self, app_id: str, *, claim: str) -> None:
        """Create the directory of an app whose job has this claim."""
        request = build_request(AppDef("app", [Role("main", "/", entrypoint="true")]), SlurmOpts(), app_id, {})
        directory = self.root / "apps" / app_id
        for each in (self.root, self.root / "apps", self.root / "building", directory):
            each.mkdir(mode=0o700, exist_ok=True)
        for name, text in app_files(request, instance="instance").items():
            (directory / name).write_text(text)
            (directory / name).chmod(0o600)
        (directory / "alive").touch()
        (directory / "claim").symlink_to(claim)

    def before(self, script: str, act: Callable[[], object]) -> None:
        """Let a program act once, just before this script runs."""
        transport = self.scheduler._store._transport
        run = type(transport).run

        def acted(text: str, *args: Any, **kwargs: Any) -> Answer:
            if text.endswith(script):
                del transport.run
                act()
            return run(transport, text, *args, **kwargs)

        transport.run = acted

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


FORGED_ENDS = [
    "garbage",
    "FAILED,exit,1\vby|FAILED,limit,1",
    "FAILED,exit,1\nby|FAILED,limit,1",
    "FAILED,exit,1\x85by|FAILED,limit,1",
    "FAILED,exit,1\u2028by|FAILED,limit,1",
    "FAILED,exit,nan",
    "FAILED,exit," + "9" * 400,
    "UNKNOWN,exit,1",
]


@pytest.mark.parametrize("target", FORGED_ENDS)
def test_an_end_that_a_program_forges_is_an_error_of_its_app_alone(site, target) -> None:
    """A program wins the race for the end of its own app; its text must not decide the state of another one."""
    for app_id in ("bad", "by"):
        site.launched(app_id, claim="nonce")
    site.command("squeue")
    (site.root / "apps" / "bad" / "claim").unlink()
    (site.root / "apps" / "bad" / "claim").symlink_to("lost")
    site.before(commands.MARK_END, lambda: (site.root / "apps" / "bad" / "end").symlink_to(target))

    answers = poll_many(site.scheduler, ["bad", "by"])

    assert isinstance(answers["bad"], AppUnavailableError), answers["bad"]
    assert answers["by"].state is AppState.RUNNING
    (site.root / "apps" / "bad" / "end").unlink()
    site.before(commands.MARK_END, lambda: (site.root / "apps" / "bad" / "end").symlink_to(target))
    rows = {row.app_id: row.state for row in site.scheduler.list()}
    assert rows == {"bad": AppState.UNKNOWN, "by": AppState.RUNNING}


def test_the_removal_of_many_files_delays_no_poll(site, tmp_path) -> None:
    """A deleted app is removed by a poll of all apps, and its program may have left millions of files."""
    site.launched("app", claim="nonce")
    go_on = tmp_path / "go-on"
    site.command("rm", f'while [ ! -e {go_on} ]; do sleep 0.1; done\nexec /bin/rm "$@"')
    removed = threading.Thread(target=site.store.remove, args=(["app"],), daemon=True)
    removed.start()
    removed.join(60)
    try:
        assert not removed.is_alive(), "it waits for the end of the removal"
        assert not (site.root / "apps" / "app").exists()
    finally:
        go_on.touch()
    until(lambda: not [*(site.root / "building").iterdir()], 60, 0.1)


@pytest.mark.parametrize(
    "name", ["start,0,0,0,files", "start,0,0,0,profiles", "start,0,0,0,\nfiles\n", "exit,0,0,0,\nfiles"]
)
def test_a_record_with_the_name_of_a_mark_hides_no_file(site, name) -> None:
    """The names of records and the files are one answer; as an outage it would stop all logs of the connection."""
    site.launched("app", claim="nonce")
    status = site.root / "apps" / "app" / "status"
    status.mkdir(mode=0o700)
    (status / name).touch()
    (status / "start,0,0,0,0,host,1.5").touch()
    log = site.root / "apps" / "app" / "log"
    log.write_text("line\n")

    over, attempts, files = site.store.logs("app", 0, 0, [("log", 0, 100)])

    assert not over
    assert [one.host for one in attempts] == ["host"]
    assert files["log"].data == b"line\n"


@pytest.mark.parametrize("comment", [b"caf\xe9", b"\xff" * 50_000, b"x" * 70_000_000], ids=["latin", "bytes", "long"])
def test_the_comment_of_a_job_hides_no_other_job(site, comment, monkeypatch) -> None:
    """An app whose job is hidden is recorded as lost, so that its job never runs; a long answer is an outage."""
    monkeypatch.setenv("LANG", "C.UTF-8")
    for app_id in ("one", "two"):
        site.launched(app_id, claim="nonce")
        (site.root / "apps" / app_id / "claim").unlink()
        (site.root / "apps" / app_id / "id").write_text(f"h:{app_id}")
    (site.bin / "comment").write_bytes(comment)
    # grep up to 3.4 shows nothing after the first line that is not text.
    job = "|PENDING|Priority|N/A|N/A||launch:h"
    print_jobs = "\n".join(
        [
            f"for app in one two; do printf '%s' \"$((n += 1))|$n{job}:$app:nonce\"",
            f"printf ' '; cat {site.bin / 'comment'}; echo; done",
        ]
    )
    site.command("squeue", print_jobs)

    jobs = site.store.observe(["one", "two"]).jobs

    assert [(job.app, job.nonce) for job in jobs] == [("h:one", "nonce"), ("h:two", "nonce")]


def test_the_accounts_of_any_number_of_apps_are_read(site) -> None:
    """The kernel refuses an argument of more than 128 KB, so that no app of the connection would have a state."""
    site.command("sacct", 'for arg; do case $arg in --name=*) echo "${arg#--name=}|FAILED|x"; esac; done')
    ids = [f"{n:0100}" for n in range(3000)]

    found = site.store.accounts(ids)

    assert [name for one in found for name in one.app_id.split(",")] == ids


def test_any_number_of_jobs_is_discarded(site) -> None:
    """The connection passes a script and its arguments as one text to the login node."""
    site.command("scancel")
    jobs = [str(10**9 + n) for n in range(20_000)]

    site.store.discard(jobs)

    assert " ".join(site.called("scancel")).split() == jobs
    assert max(map(len, site.called("scancel"))) < 100_000


def test_the_comment_of_a_launch_has_a_limit() -> None:
    """The controller keeps it for each job, and each poll reads it."""
    with pytest.raises(InvalidRunConfigException, match="at most 1000 characters") as refused:
        resolve_options(SlurmOpts, {"comment": "x" * 1_000_000}, strict=True)

    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("name", ["a[$(touch ran)]", "x", "9999999999"])
def test_the_name_of_a_folder_that_a_program_has_made_is_no_code(site, name) -> None:
    """bash evaluates a name in arithmetic, and the script of the job runs outside of the containers of its programs."""
    site.launched("app", claim="nonce")
    app = site.root / "apps" / "app"
    for entry in ("0", name):
        (app / "run" / entry).mkdir(parents=True)
    site.command("srun", 'for attempt; do :; done\n: >"status/exit,$attempt,0,0,0,0,0,5.5"')
    site.command("scancel")
    env = {"PATH": f"{site.bin}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}

    subprocess.run(["bash", "launch.sh", "nonce"], cwd=app, env=env, timeout=60, check=True)

    assert not (app / "ran").exists()
    assert (app / "run" / "1" / "env").exists()
    assert str((app / "end").readlink()).startswith("SUCCEEDED,")
