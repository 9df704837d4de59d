"""The parts for schedulers of plug-ins, where their files are not what they seem."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.parts import claim, lines_after

_LEASE = """
import fcntl, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = open(sys.argv[1], "r+")
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("leased", flush=True)
time.sleep(60)
"""


@contextmanager
def leased(path: Path) -> Iterator[None]:
    path.touch()
    with subprocess.Popen([sys.executable, "-c", _LEASE, str(path)], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"leased\n"
        try:
            yield
        finally:
            program.kill()


@pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason="needs leases of files (Linux)")
def test_a_leased_file_is_claimed_by_its_holder(tmp_path) -> None:
    """An ordinary open waits up to 45 s for the end of a lease, and with it all apps of the scheduler."""
    path = tmp_path / "lock"
    with leased(path):
        started = time.monotonic()
        assert claim(str(path)) is None
        assert time.monotonic() - started < 5


def test_a_claim_is_held_once(tmp_path) -> None:
    path = str(tmp_path / "lock")
    held = claim(path)
    assert held is not None
    assert claim(path) is None
    os.close(held)
    again = claim(path)
    assert again is not None
    os.close(again)


def test_a_fifo_has_no_lines(tmp_path) -> None:
    os.mkfifo(tmp_path / "log")
    assert lines_after(str(tmp_path / "log"), 0, has_ended=True) == ([], 0)
