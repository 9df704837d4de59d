"""Helpers for the local scheduler: launch apps, wait for them, list their processes."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

from airflow_provider_launch.schedulers.local import layout, processes
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler, create_scheduler
from airflow_provider_launch.specs import Role
from tests.support import apps
from tests.support.apps import until
from tests.support.processes import parent_of


def command_lines_below(root: Path) -> dict[int, bytes]:
    """Return pid and command line of each process with the root in its command line or environment."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            command_line = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if state not in "ZX" and str(root).encode() in command_line + environment:
            found[int(entry.name)] = command_line
    return found


def processes_below(root: Path) -> list[int]:
    """Return every process of the apps of the root: supervisors, shims, commands."""
    return [*command_lines_below(root)]


def lock_holder(lock: Path) -> int | None:
    """Return the process that holds the flock, from the kernel's list."""
    if not lock.exists():
        return None
    inode = lock.stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[3] == "WRITE" and fields[5].endswith(f":{inode}"):
            pid = int(fields[4])
            return pid if pid > 1 and pid != os.getpid() else None
    return None


def sh(script: str, name: str = "main", **fields: object) -> Role:
    """Return a role that runs a shell script."""
    return Role(name, "", entrypoint="sh", args=["-c", script], **fields)  # type: ignore[arg-type]


class Gate:
    """Programs wait here, as one process without children, until the test lets them continue.

    Args:
        path: of the pipe, in a folder of the test's own.
    """

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path
        self.wait = f"read _ < {path}"
        """Return the shell commands that wait here."""
        self._fd: int | None = None

    def reached(self) -> None:
        """Wait until a program waits here."""
        until(self._is_reached, 60)

    def _is_reached(self) -> bool:
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return False
        return True

    def open(self) -> None:
        """Let the current or next waiting program continue."""
        if self._fd is None:
            self.reached()
        assert self._fd is not None
        os.write(self._fd, b"\n")
        os.close(self._fd)
        self._fd = None


class Apps(apps.Apps[LocalScheduler]):
    """Launches apps below a root."""

    timeout_s = 30.0
    pause_s = 0.02

    def __init__(self, scheduler: LocalScheduler, root: Path) -> None:
        super().__init__(lambda: create_scheduler("other", root=str(root)), scheduler)
        self.root = root

    def dir(self, app_id: str) -> Path:
        return self.root / "apps" / app_id


def commands(apps: Apps) -> list[int]:
    """Return the processes of the apps except their supervisors and shims."""
    # Not to be read again here: a supervisor that ends meanwhile has no command line any more.
    return [pid for pid, command_line in command_lines_below(apps.root).items() if b"bare.py" not in command_line]


def kill_supervisor(apps: Apps, app_id: str) -> None:
    os.kill(parent_of(layout.read_json(str(next(apps.dir(app_id).rglob("pid"))))["shim"]), signal.SIGKILL)
    until(lambda: not processes.is_locked(str(apps.dir(app_id) / layout.LOCK)))
