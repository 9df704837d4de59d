"""Processes of the cluster, by their pid files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.engines.docker.daemon import EngineError

PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def pid_in(file: Path, program: str) -> int | None:
    """Return the pid in the file if that process is still this program."""
    try:
        pid = int(file.read_text())
    except (OSError, ValueError):
        return None
    return pid if name_of(pid) == program and not is_gone(pid) else None


def name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def is_gone(pid: int) -> bool:
    try:
        # The state follows the name, which may contain anything. A zombie may be reaped late.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def children_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def wait(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise EngineError(f"timed out after {timeout_s:g} s: {what}")
        time.sleep(0.1)
