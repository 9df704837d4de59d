"""Threads of our own for requests that no cancellation of a trigger may cut off."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Helpers"]


class Helpers:
    """A few daemon threads, started when there is work and gone when there is none.

    Not the executor of the event loop: it has few threads, which all triggers of a process share, and a call that
    waits there for its turn is dropped when the trigger is cancelled.

    Args:
        name: of the threads.
        limit: how many calls run at a time.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._calls: deque[Callable[[], object]] = deque()
        self._running = 0
        self._mutex = threading.Lock()

    def submit(self, call: Callable[[], object]) -> None:
        """Run the call, which must not raise, as soon as a thread is free."""
        with self._mutex:
            self._calls.append(call)
            if self._running >= self._limit:
                return
            self._running += 1
        # A daemon: a request that is never answered must not keep the process alive.
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._mutex:
                if not self._calls:
                    self._running -= 1
                    return
                call = self._calls.popleft()
            call()
