"""The signals of a replica's script: no signal is lost, and the grace ends. No cluster is needed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from importlib.resources import files
from pathlib import Path

import pytest

from tests.support.apps import until
from tests.support.repeats import often

SCRIPTS = files("airflow_provider_launch.schedulers.slurm") / "scripts"
PLAN = {
    "grace_ms": "1000",
    "signal": "USR1",
    "login": "",
    "order": "0",
    "folder_0": "main",
    "count_0": "1",
    "policy_0": "REPLICA",
    "retries_0": "0",
}

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def start(place: Path, program: str, **plan: str) -> subprocess.Popen[bytes]:
    """Start the script as srun does, in the directory of an app."""
    (place / "status").mkdir(parents=True)
    (place / "run/0").mkdir(parents=True)
    (place / "run/0/env").touch()
    (place / "plan").write_text("".join(f"launch_{name}={value}\n" for name, value in {**PLAN, **plan}.items()))
    (place / "role-0.sh").write_text(f"set -- sh -c '{program}'\n")
    shutil.copy(str(SCRIPTS / "replica.sh"), place)
    return subprocess.Popen(["bash", "./replica.sh", "0"], cwd=place, start_new_session=True)


def until_written(place: Path, text: str) -> None:
    log = place / "run/0/main/0/0/stdout"
    until(lambda: log.exists() and text in log.read_text(), 60, 0.01)


def processes_of(session: int) -> list[int]:
    """Return the script and its children, of all groups."""
    found = []
    for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]:
        with contextlib.suppress(ProcessLookupError):
            found += [pid] if os.getsid(pid) == session else []
    return found


def signal_all(replica: subprocess.Popen[bytes], number: int) -> None:
    """Signal all its processes, as Slurm does."""
    for pid in processes_of(replica.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def ends(place: Path) -> list[list[str]]:
    """Return the exit code of each attempt, and whether it was stopped."""
    return [path.name.split(",")[5:7] for path in (place / "status").glob("exit,*")]


@pytest.mark.parametrize("moment_ms", often(range(0, 1000, 100), range(0, 2000, 10)))
def test_a_stop_is_never_lost(tmp_path, moment_ms) -> None:
    """Not even a signal that arrives while `read -t` of bash times out."""
    replica = start(tmp_path, "echo up; exec sleep 100")
    until_written(tmp_path, "up")
    time.sleep(moment_ms / 1000)
    replica.send_signal(signal.SIGTERM)

    assert replica.wait(20) == 0
    assert ends(tmp_path) == [["143", "1"]]


@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGWINCH, 9), (signal.SIGTERM, 1)], ids=["by our script", "by Slurm"]
)
def test_a_program_gets_term_once(tmp_path, number, times) -> None:
    """Slurm signals all processes of a step; our script lets it do so every few seconds with another signal."""
    count = r'trap "n=\$((n + 1)); echo term \$n" TERM; echo up; for i in $(seq 40); do sleep 0.1; done'
    replica = start(tmp_path, count, grace_ms="60000")
    until_written(tmp_path, "up")
    for _ in range(times):
        signal_all(replica, number)
        time.sleep(0.3)

    assert replica.wait(120) == 0
    assert (tmp_path / "run/0/main/0/0/stdout").read_text() == "up\nterm 1\n"


def test_a_warning_reaches_the_program_once(tmp_path) -> None:
    program = 'trap "echo warned" USR1; echo up; n=0; while [ $n -lt 30 ]; do sleep 0.1; n=$((n + 1)); done'
    replica = start(tmp_path, program)
    until_written(tmp_path, "up")
    replica.send_signal(signal.SIGURG)

    assert replica.wait(20) == 0
    assert (tmp_path / "run/0/main/0/0/stdout").read_text() == "up\nwarned\n"


def test_a_program_that_ignores_repeated_stops_is_killed_after_its_grace(tmp_path) -> None:
    """Slurm signals all processes of a step when it ends the job."""
    replica = start(tmp_path, "trap : TERM; echo up; while :; do sleep 0.1; done")
    until_written(tmp_path, "up")
    began = time.monotonic()
    while replica.poll() is None:
        assert time.monotonic() - began < 20, "the grace of the program has no end"
        signal_all(replica, signal.SIGTERM)
        time.sleep(0.3)

    assert ends(tmp_path) == [["137", "1"]]
    assert time.monotonic() - began > 0.9
