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


def start(place: Path, program: str) -> subprocess.Popen[bytes]:
    """Start the script as srun does, in the directory of an app."""
    (place / "status").mkdir(parents=True)
    (place / "run/0").mkdir(parents=True)
    (place / "run/0/env").touch()
    (place / "plan").write_text("".join(f"launch_{name}={value}\n" for name, value in PLAN.items()))
    (place / "role-0.sh").write_text(f"set -- sh -c '{program}'\n")
    shutil.copy(str(SCRIPTS / "replica.sh"), place)
    return subprocess.Popen(["bash", "./replica.sh", "0"], cwd=place, start_new_session=True)


def until_written(place: Path, text: str) -> None:
    log = place / "run/0/main/0/0/stdout"
    deadline = time.monotonic() + 60
    while not log.exists() or text not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def processes_of(session: int) -> list[int]:
    """Return the script and its children, of all groups."""
    found = []
    for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]:
        with contextlib.suppress(ProcessLookupError):
            found += [pid] if os.getsid(pid) == session else []
    return found


@pytest.mark.parametrize("moment_ms", often(range(0, 1000, 100), range(0, 2000, 10)))
def test_a_stop_is_never_lost(tmp_path, moment_ms) -> None:
    """Not even a signal that arrives while `read -t` of bash times out."""
    replica = start(tmp_path, "echo up; exec sleep 100")
    until_written(tmp_path, "up")
    time.sleep(moment_ms / 1000)
    replica.send_signal(signal.SIGTERM)

    assert replica.wait(20) == 143
    assert [path.name.split(",")[5:7] for path in (tmp_path / "status").glob("exit,*")] == [["143", "1"]]


def test_a_warning_reaches_the_program_once(tmp_path) -> None:
    program = 'trap "echo warned" USR1; echo up; n=0; while [ $n -lt 30 ]; do sleep 0.1; n=$((n + 1)); done'
    replica = start(tmp_path, program)
    until_written(tmp_path, "up")
    replica.send_signal(signal.SIGURG)

    assert replica.wait(20) == 0
    assert (tmp_path / "run/0/main/0/0/stdout").read_text() == "up\nwarned\n"


def test_a_program_that_ignores_repeated_stops_is_killed_after_its_grace(tmp_path) -> None:
    """Slurm signals all processes of a step, and our script lets it do so every few seconds."""
    replica = start(tmp_path, "trap : TERM; echo up; while :; do sleep 0.1; done")
    until_written(tmp_path, "up")
    began = time.monotonic()
    while replica.poll() is None:
        assert time.monotonic() - began < 20, "the grace of the program has no end"
        for pid in processes_of(replica.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.3)

    assert replica.returncode == 137
    assert time.monotonic() - began > 0.9
