"""Cancelling an app from a signal handler.

Airflow calls `on_kill` in the handler of SIGTERM, which interrupts the task at any point. Taking a lock there could
deadlock with the interrupted code, so the handler only sets a flag and writes one byte. A helper thread, started
before and with its own client, does the rest.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.errors import LaunchError

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import Scheduler

# A worker sends SIGKILL 5 s after SIGTERM when a task was marked failed or cleared.
JOIN_S = 4.0


class AppKilledError(LaunchError):
    """The task was killed; the app was cancelled, or left as the operator is configured."""


class CancelThread:
    """Knows whether the task was killed, and runs a thread that then cancels its app."""

    def __init__(self) -> None:
        self.is_killed = False
        self.app_id = ""
        """The app to cancel, set as soon as its id is known."""
        self.error: Exception | None = None
        """Why the thread could not cancel it."""
        self._make_scheduler: Callable[[], Scheduler[Any]] | None = None
        self._thread: threading.Thread | None = None
        self._write_fd = -1

    def start(self, make_scheduler: Callable[[], Scheduler[Any]] | None) -> None:
        """Start the thread.

        Args:
            make_scheduler: returns a client for the thread. None: nothing is cancelled, and there is no thread.
        """
        self._make_scheduler = make_scheduler
        if make_scheduler is not None:
            read_fd, write_fd = os.pipe()
            thread = threading.Thread(target=self._wait, args=(read_fd,), name="launch-killer", daemon=True)
            thread.start()
            # Only now, because a kill may come at any point, and a thread that has not started cannot be joined.
            self._thread, self._write_fd = thread, write_fd

    def check(self) -> None:
        """Raise `AppKilledError` if the task was killed."""
        if self.is_killed:
            raise AppKilledError("the task was killed")

    def fire(self) -> None:
        """Note the kill, and give the thread some seconds to cancel; safe in a signal handler, may be repeated."""
        self.is_killed = True
        if self._write_fd >= 0 and self._thread is not None:
            with contextlib.suppress(OSError):
                os.write(self._write_fd, b"!")
            self._thread.join(JOIN_S)

    def close(self) -> None:
        """End the thread."""
        fd, self._write_fd = self._write_fd, -1
        if fd >= 0:
            os.close(fd)

    def _wait(self, read_fd: int) -> None:
        try:
            request = os.read(read_fd, 1)
        finally:
            os.close(read_fd)
        # Without an app id there is nothing to cancel yet: the loop sees the flag right after the submit.
        if not request or not self.app_id or self._make_scheduler is None:
            return
        # No logging here: the interrupted code may hold the lock of a log handler. The loop logs the error.
        try:
            scheduler = self._make_scheduler()
            try:
                scheduler.cancel(self.app_id)
            finally:
                scheduler.close()
        except Exception as error:  # noqa: BLE001 - the loop reports any error of the client
            self.error = error
