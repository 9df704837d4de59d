"""Parts of the plug-in for Ray that need no cluster: the guard of a program, and its log files."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.apps import until

_PATIENCE_S = 60.0


@pytest.fixture
def driver(install: Callable[[str], Path]) -> Path:
    return install("launch_ray") / "launch_ray_driver.py"


def start(
    driver: Path, folder: Path, *argv: str, grace_s: float = 30.0, gives_result: bool = True
) -> subprocess.Popen[bytes]:
    replica = {"argv": argv, "env": {"LAUNCH_ROLE": "main"}, "cwd": str(folder), "log": f"{folder}/log"}
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", driver.read_text(), "guard"],
        env={**os.environ, "LAUNCH_REQUEST": "secret"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    send(guard, json.dumps({**replica, "grace_s": grace_s, "gives_result": gives_result}).encode() + b"\n")
    return guard


def send(guard: subprocess.Popen[bytes], data: bytes) -> None:
    assert guard.stdin
    guard.stdin.write(data)
    guard.stdin.flush()


def ended(guard: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return the report of a guard, without closing its input, which would end its program."""
    assert guard.stdout
    assert guard.stdin
    report = guard.stdout.read()
    guard.wait(_PATIENCE_S)
    guard.stdin.close()
    guard.stdout.close()
    found: dict[str, Any] = json.loads(report)
    return found


def until_written(path: Path) -> str:
    until(lambda: path.exists() and path.read_text().endswith("\n"), _PATIENCE_S, 0.05)
    return path.read_text()


def is_alive(pid: str) -> bool:
    return Path("/proc", pid.strip()).exists()


def test_the_exit_code_the_output_and_the_result_are_reported(driver, tmp_path) -> None:
    script = 'echo out; echo err >&2; printf "[1]" > $LAUNCH_RESULT_PATH; test -z "$LAUNCH_REQUEST" && exit 3'
    found = ended(start(driver, tmp_path, "sh", "-c", script))

    assert found == {"exit_code": 3, "result": base64.b64encode(b"[1]").decode(), "result_size": 3}
    assert (tmp_path / "log.stdout.0").read_text() == "out\n"
    assert (tmp_path / "log.stderr.0").read_text() == "err\n"


@pytest.mark.parametrize("make", ["mkfifo $P", "mkdir $P", "ln -s /dev/zero $P", "ln -s /etc/passwd $P"])
def test_a_result_that_is_not_a_regular_file_is_no_document(driver, tmp_path, make) -> None:
    """A pipe would keep the guard, and with it the app, for ever."""
    found = ended(start(driver, tmp_path, "sh", "-c", f"P=$LAUNCH_RESULT_PATH; {make}"))

    assert base64.b64decode(found["result"]) == b"not a regular file"


def test_only_a_replica_of_the_first_role_finds_where_to_write_a_result(driver, tmp_path) -> None:
    found = ended(start(driver, tmp_path, "sh", "-c", 'test -z "$LAUNCH_RESULT_PATH"', gives_result=False))

    assert found == {"exit_code": 0}


def test_a_program_that_does_not_exist_has_exit_code_127(driver, tmp_path) -> None:
    found = ended(start(driver, tmp_path, "no-such-program"))

    assert found["exit_code"] == 127
    assert "no-such-program" in found["reason"]
    assert "no-such-program" in (tmp_path / "log.stderr.0").read_text()


def test_the_signal_that_ended_a_program_is_reported(driver, tmp_path) -> None:
    found = ended(start(driver, tmp_path, "sh", "-c", "kill -USR1 $$"))

    assert found == {"exit_code": 128 + signal.SIGUSR1, "reason": "SIGUSR1"}


def test_a_program_can_clean_up_at_its_end(driver, tmp_path) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    guard = start(driver, tmp_path, "sh", "-c", script)
    until_written(tmp_path / "log.stdout.0")
    send(guard, b"t")

    assert ended(guard)["exit_code"] == 0
    assert (tmp_path / "log.stdout.0").read_text() == "up\nbye\n"


def test_a_program_that_ignores_term_is_killed_after_its_grace(driver, tmp_path) -> None:
    guard = start(driver, tmp_path, "sh", "-c", "trap '' TERM; echo up; sleep 300", grace_s=1.0)
    until_written(tmp_path / "log.stdout.0")
    stopped_at = time.monotonic()
    send(guard, b"t")

    assert ended(guard) == {"exit_code": 137, "reason": "SIGKILL"}
    assert time.monotonic() > stopped_at + 1.0


def test_processes_that_a_program_leaves_end_with_it(driver, tmp_path) -> None:
    """Also one that has left the session of the program, and has no pipes of it."""
    script = (
        "sleep 300 & setsid sh -c 'echo $$ > left; exec sleep 300' >/dev/null 2>&1 & while ! test -s left; do :; done"
    )
    found = ended(start(driver, tmp_path, "sh", "-c", script))

    assert found["exit_code"] == 0
    assert not is_alive((tmp_path / "left").read_text())


def test_the_program_ends_with_the_actor(driver, tmp_path) -> None:
    """The actor was killed: its end of the pipe is closed."""
    guard = start(driver, tmp_path, "sh", "-c", "trap '' TERM; echo $$; sleep 300")
    pid = until_written(tmp_path / "log.stdout.0")
    assert is_alive(pid)
    assert guard.stdin
    guard.stdin.close()
    assert guard.stdout
    guard.stdout.read()
    guard.wait(_PATIENCE_S)
    guard.stdout.close()

    assert not is_alive(pid)


@pytest.mark.parametrize("seed", range(5))
def test_reads_in_pieces_give_each_line_once(driver, tmp_path, monkeypatch, seed) -> None:
    """Lines are shorter and longer than a file, and a reader may meet a file that grows."""
    import launch_ray
    import launch_ray_driver

    chance = random.Random(seed)
    monkeypatch.setattr(launch_ray, "SEGMENT", 64)
    monkeypatch.setattr(launch_ray_driver, "SEGMENT", 64)
    scheduler = launch_ray.create_scheduler("test")

    def file(_node: str, name: str) -> bytes:
        path = tmp_path / name
        return path.read_bytes() if path.exists() else b""

    monkeypatch.setattr(scheduler, "_file", file)
    written = b"".join(b"x" * chance.choice([0, 1, 62, 63, 64, 65, 200]) + b"\n" for _ in range(30)) + b"end"
    log = launch_ray_driver.Log(str(tmp_path / "log"))
    read: list[bytes] = []
    rest = 0
    while rest < len(written):
        step = chance.choice([1, 40, 64, 128])
        log.write(written[rest : rest + step])
        rest += step
        for _ in range(chance.choice([0, 1, 3])):
            read.append(scheduler._lines_after("node", "log", sum(map(len, read)), has_ended=False))
    while data := scheduler._lines_after("node", "log", sum(map(len, read)), has_ended=True):
        read.append(data)

    assert b"".join(read) == written
    assert all(data.endswith(b"\n") for data in filter(None, read[:-1])), "only complete lines"
