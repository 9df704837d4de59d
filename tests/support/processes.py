"""Looks for the processes of an app on this host, also in containers and on nodes that the engine considers lost."""

from __future__ import annotations

import contextlib
from pathlib import Path


def processes_of(app_id: str) -> list[int]:
    """Return the pids of the live processes that have the app in their environment."""
    mark = f"LAUNCH_APP_ID={app_id}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def parent_of(pid: int) -> int:
    """Return the pid of the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
