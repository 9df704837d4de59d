"""The script of the container that returns a result, in the shells that images have."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.kubernetes.containers import SideContainer
from airflow_provider_launch.schedulers.kubernetes.result_container import (
    LOG_BYTES,
    LOG_LINES,
    result_bytes,
    result_script,
    size_of,
)
from airflow_provider_launch.specs.errors import InvalidAppError
from tests.support.apps import until

PROGRAMS = ("base64", "head", "rm", "sleep", "wc")
Setup = Callable[[Path], object]


def ended(message: str, exit_code: int = 0, reason: str = "Completed") -> SideContainer:
    """Return the container after its end."""
    return SideContainer("launch-result", True, True, False, exit_code, reason, message, started=1.0, finished=2.0)


def output(tmp_path: Path, shell: str, setup: Setup, programs: tuple[str, ...] = PROGRAMS) -> tuple[str, bytes]:
    """Return the report and the log of the script, stopped after `setup` has made the result."""
    program, *args = shell.split()
    if (found := shutil.which(program)) is None:
        pytest.skip(f"this machine has no {program}")
    folder, report, bin_dir = tmp_path / "xcom", tmp_path / "report", tmp_path / "bin"
    for made in (folder, bin_dir):
        made.mkdir()
    for name in programs:
        (bin_dir / name).symlink_to(shutil.which(name) or "")
    command = [found, *args, "-c", result_script(str(folder), str(report))]
    env = {"PATH": str(bin_dir)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        until(lambda: (folder / ".launch-result").exists() or process.poll() is not None, 10)
        setup(folder / "return.json")
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        log = process.communicate(timeout=20)[0]
    return report.read_text(), log


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox sh"])
@pytest.mark.parametrize("size", [0, 1, 60_000, 65_536])
def test_any_bytes_of_a_result_arrive(tmp_path, shell, size):
    data = os.urandom(size)
    report, log = output(tmp_path, shell, lambda path: path.write_bytes(data))

    assert size_of(ended(report), "main/0") == size
    assert result_bytes(log, size) == data
    assert len(log.splitlines()) < LOG_LINES
    assert len(log) < LOG_BYTES


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox sh"])
def test_a_result_that_is_too_large_is_not_printed(tmp_path, shell):
    report, log = output(tmp_path, shell, lambda path: path.write_bytes(bytes(65_537)))

    assert size_of(ended(report), "main/0") == 65_537
    assert log == b""


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox sh"])
@pytest.mark.parametrize(
    "setup", [lambda path: path.symlink_to("/etc/passwd"), os.mkfifo, Path.mkdir], ids=["symlink", "fifo", "folder"]
)
def test_only_a_plain_file_is_a_result(tmp_path, shell, setup):
    report, log = output(tmp_path, shell, setup)

    with pytest.raises(InvalidAppError, match="main/0 is not a plain file"):
        size_of(ended(report), "main/0")
    assert log == b""


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox sh"])
def test_no_file_is_no_result(tmp_path, shell):
    report, log = output(tmp_path, shell, lambda _: None)

    assert size_of(ended(report), "main/0") is None
    assert log == b""


def test_an_image_without_a_program_is_named(tmp_path):
    report, _ = output(tmp_path, "dash", lambda _: None, tuple(set(PROGRAMS) - {"base64"}))

    assert report == "its image has no program 'base64'\n"


# ---- reports and logs that are damaged -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("container", "text"),
    [
        (ended("", 137, "OOMKilled"), "is lost: container 'launch-result' out of memory (exit code 137); run"),
        (ended("", 137, "Error"), "is lost: container 'launch-result' exit code 137; run"),
        (ended("5", 137, "Error"), "is lost: container 'launch-result' exit code 137: 5; run"),
        (ended("failed"), "is lost: container 'launch-result' exit code 0: failed; run"),
        (ended("9" * 30), f"is lost: container 'launch-result' exit code 0: {'9' * 30}; run"),
        (ended("-5"), "is lost: container 'launch-result' exit code 0: -5; run"),
        (ended(""), "is lost: container 'launch-result' exit code 0: no report; run"),
        (ended("unreadable"), "cannot be read by container 'launch-result', which runs as another user"),
    ],
)
def test_a_report_that_cannot_be_used_is_an_error(container, text):
    with pytest.raises(InvalidAppError) as error:
        size_of(container, "main/0")

    assert text in str(error.value)


@pytest.mark.parametrize(
    "log",
    [
        b"",
        b"launch-result begin\nYWJj\n",
        b"YWJj\nlaunch-result end\n",
        b"launch-result begin\nYWI=\nlaunch-result end\n",
        b"launch-result begin\nYW\xff=\nlaunch-result end\n",
        b"launch-result begin\nYWJj\nlaunch-result end\nlaunch-result begin\n",
    ],
)
def test_a_log_without_the_whole_result_is_noticed(log):
    assert result_bytes(log, 3) is None


def test_other_lines_of_the_log_do_not_count():
    log = b"x\nlaunch-result begin\nYQ==\nlaunch-result end\nlaunch-result begin\nYW\nJj\nlaunch-result end\nbye\n"

    assert result_bytes(log, 3) == b"abc"
