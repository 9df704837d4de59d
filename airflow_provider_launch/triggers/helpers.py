"""Own threads for requests that must survive the cancellation of a trigger."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Helpers:
    """Runs calls on a few daemon threads for each key, which exist only while there is work.

    Not the executor of the event loop: all triggers of a process share its few threads, and a call that waits there is
    dropped when the trigger is cancelled.

    Args:
        name: name of the threads.
        limit: number of calls of one key that run at a time.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._calls: dict[str, deque[Callable[[], object]]] = {}
        self._running: dict[str, int] = {}
        self._mutex = threading.Lock()

    def submit(self, call: Callable[[], object], key: str = "") -> None:
        """Run the call, which must not raise, as soon as a thread of its key is free.

        Args:
            call: may hang; then only calls of the same key wait for it.
            key: for example a connection.
        """
        with self._mutex:
            self._calls.setdefault(key, deque()).append(call)
            if self._running.get(key, 0) >= self._limit:
                return
            self._running[key] = self._running.get(key, 0) + 1
        # A daemon, so that a request without an answer does not keep the process alive.
        threading.Thread(target=self._work, args=(key,), name=self._name, daemon=True).start()

    async def run(self, call: Callable[[], T], key: str = "") -> T:
        """Return the result of a blocking call, which runs to its end even if the caller is cancelled."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                result = context.run(call)
            except BaseException as error:  # noqa: BLE001 - passed to the caller
                done.set_exception(error)
            else:
                done.set_result(result)

        self.submit(work, key)
        return await asyncio.wrap_future(done)

    def _work(self, key: str) -> None:
        while True:
            with self._mutex:
                if not self._calls[key]:
                    self._running[key] -= 1
                    if not self._running[key]:
                        del self._running[key], self._calls[key]
                    return
                call = self._calls[key].popleft()
            call()
