"""Wait for the end of an app at schedulers that report it, instead of waiting for the next poll."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.util.backoff import backoff

if TYPE_CHECKING:
    from airflow_provider_launch.follow.poller import Poller
    from airflow_provider_launch.schedulers.api import Scheduler

_WAIT_S = 10.0
"""Longest wait of one call; a thread may outlive its watch by this many seconds."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.01, 1.0


class EndWaiter:
    """One thread that waits with `Scheduler.await_end`, and then has the poller read the state now."""

    __slots__ = ("_answered", "_app_id", "_poller", "_scheduler", "_stopped")

    def __init__(self, scheduler: Scheduler[Any], app_id: str, poller: Poller) -> None:
        self._scheduler = scheduler
        self._app_id = app_id
        self._poller = poller
        self._answered = threading.Event()
        self._stopped = False

    def start(self) -> None:
        """Start the thread."""
        name = f"launch-end-{self._scheduler.backend}-{self._app_id}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def on_answer(self) -> None:
        """Note that the poller has answered."""
        self._answered.set()

    def stop(self) -> None:
        """End the thread after its current wait; may be repeated."""
        self._stopped = True
        self._answered.set()

    def _run(self) -> None:
        pauses = backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        while not self._stopped:
            started_at = time.monotonic()
            try:
                ended = self._scheduler.await_end(self._app_id, _WAIT_S)
            except NotImplementedError:
                return
            except Exception:  # noqa: BLE001 - the poller gets the same error and reports it
                ended = False
            waited = time.monotonic() - started_at
            if ended and not self._stopped:
                self._answered.clear()
                self._poller.poll_now(self._app_id)
                self._answered.wait(_WAIT_S)
            # Pause when calls return at once: many ends in a row, a list that lags behind, or a refusal.
            if waited >= _MAX_PAUSE_S:
                pauses = backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
            if not self._stopped:
                time.sleep(next(pauses))
