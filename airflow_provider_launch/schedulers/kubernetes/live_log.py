"""A log that is read while it is written: a thread takes lines from an open answer."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_launch.schedulers.kubernetes.client import chunks
from airflow_provider_launch.schedulers.kubernetes.log_lines import split

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

__all__ = ["LiveLog"]

_HELD_BYTES = 1024 * 1024


class LiveLog:
    """Lines of an answer that ends with the program: an iterator that stops where nothing has come yet, and goes on.

    The server waits while a megabyte is not taken.
    """

    def __init__(self, response: BaseHTTPResponse) -> None:
        self.ended = False
        """Nothing will come any more: the program has ended, or the connection was cut or long silent."""
        self.used = time.monotonic()
        """When it was last looked at."""
        self._response = response
        self._lines: deque[bytes] = deque()
        self._held = 0
        self._closed = False
        self._over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="launch-live-log", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._changed:
            self.used = time.monotonic()
            if not self._lines:
                self.ended = self._over
                raise StopIteration
            line = self._lines.popleft()
            self._held -= len(line)
            self._changed.notify_all()
            return line

    def wait(self, seconds: float) -> None:
        """Wait until there is something to take, but not for ever."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._over, seconds)

    def close(self) -> None:
        """Take nothing more; does not wait for the server."""
        with self._changed:
            self._closed = self._over = True
            self._lines.clear()
            self._changed.notify_all()
        # Without it, as before urllib3 2.3, the thread ends when the server has been silent for long enough.
        with contextlib.suppress(AttributeError, ValueError, RuntimeError, OSError):
            self._response.shutdown()

    def _read(self) -> None:
        from urllib3.exceptions import HTTPError

        try:
            for line in split(chunks(self._response)):
                # What was cut off in the middle is read again, and then whole.
                if not line.endswith(b"\n") or not self._put(line):
                    break
        except (HTTPError, OSError, ValueError):
            pass  # a read from the place of the last line says what is the matter, if anything is
        finally:
            self._response.close()
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _put(self, line: bytes) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._held < _HELD_BYTES or self._closed)
            if self._closed:
                return False
            self._lines.append(line)
            self._held += len(line)
            self._changed.notify_all()
            return True
