"""Writes the index of times of an attempt, `schedulers/_kit/file_log.py`, while its program writes the logs.

The kernel reports one write into the directory of the attempt, and no further one until it is asked again. While the
logs grow the index is written at intervals instead. So neither a silent program nor a single line costs anything. Where
the kernel has no such reports, as on macOS, the sizes of the logs are checked at the same intervals.

Runs in the shim, so it imports only modules that need the standard library alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time

from airflow_provider_launch.schedulers.local import safe_files

NAME = "times"
REPORT = signal.SIGIO
"""The signal of the kernel's report, for which the process needs a handler."""
_PAUSE_S, _LONG_PAUSE_S = 0.02, 0.5
"""First and longest interval: lines of a short app need times that differ, and an index of days should stay small."""
_GROWTH = 0.01
"""How the interval grows with the age of the attempt."""


class LogTimes:
    """The index of the attempt in `directory`; does nothing if the file cannot be written."""

    def __init__(self, directory: str) -> None:
        self._paths = (f"{directory}/stdout", f"{directory}/stderr")
        self._sizes = (0, 0)
        self._since = time.monotonic()
        self._file = self._folder = -1
        self._due: float | None = None
        """When the logs are checked; None while the kernel will report the next write, or if there is no index."""
        with contextlib.suppress(OSError):
            self._folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._file = safe_files.regular_fd(f"{directory}/{NAME}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            if not self._ask():
                self._wait()

    def pause_s(self) -> float | None:
        """Return the seconds until the next check is due. None: not before the kernel reports a write."""
        return None if self._due is None else max(0.0, self._due - time.monotonic())

    def on_report(self) -> None:
        """Write the index after a report of the kernel."""
        if self._file >= 0:
            self.write()
            self._wait()

    def check(self) -> None:
        """Write the index if a check is due; if no log has grown, the next one waits for the kernel's report."""
        if self._due is None or time.monotonic() < self._due:
            return
        if not self.write() and self._ask():
            self._due = None
            # A write between the two is reported only by this one.
            if not self.write():
                return
        self._wait()

    def write(self) -> bool:
        """Write the sizes of the logs, and return whether one has grown."""
        found = [self._status(path) for path in self._paths]
        sizes = found[0][0], found[1][0]
        if self._file < 0 or sizes == self._sizes:
            return False
        changed = [when for (size, when), last in zip(found, self._sizes, strict=True) if size != last]
        self._sizes = sizes
        # The time of the write, because a busy host reports it late. A full disk only costs the lines their times.
        with contextlib.suppress(OSError):
            os.write(self._file, f"{max(changed):.4f} {sizes[0]} {sizes[1]}\n".encode())
        return True

    def _wait(self) -> None:
        now = time.monotonic()
        self._due = now + min(_PAUSE_S + _GROWTH * (now - self._since), _LONG_PAUSE_S)

    def _ask(self) -> bool:
        """Ask the kernel for a report of the next write; return False if it has no reports."""
        if not sys.platform.startswith("linux"):
            return False
        try:
            fcntl.fcntl(self._folder, fcntl.F_NOTIFY, fcntl.DN_MODIFY)
        except OSError:
            return False
        return True

    @staticmethod
    def _status(path: str) -> tuple[int, float]:
        """Return size and time of the last write; zeros if the file does not exist."""
        try:
            found = os.lstat(path)
        except OSError:
            return 0, 0.0
        return found.st_size, found.st_mtime
