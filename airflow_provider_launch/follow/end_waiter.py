"""Hearing of an end from the scheduler itself, where it can report one, so that it need not wait for the next poll."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.util.backoff import backoff

if TYPE_CHECKING:
    from airflow_provider_launch.follow.poller import Poller
    from airflow_provider_launch.schedulers.api import Scheduler

_WAIT_S = 10.0
"""How long the scheduler may be silent; so long a thread may outlive its watch."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.01, 1.0


class EndWaiter:
    """One thread that waits with `Scheduler.await_end` and hurries the poller, whose answer shows what has happened."""

    __slots__ = ("_answered", "_app_id", "_poller", "_scheduler", "_stopped")

    def __init__(self, scheduler: Scheduler[Any], app_id: str, poller: Poller) -> None:
        self._scheduler = scheduler
        self._app_id = app_id
        self._poller = poller
        self._answered = threading.Event()
        self._stopped = False

    def start(self) -> None:
        """Begin to wait."""
        name = f"launch-end-{self._scheduler.backend}-{self._app_id}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def heard(self) -> None:
        """Note that the poller has answered."""
        self._answered.set()

    def stop(self) -> None:
        """Let the thread end as soon as the wait under way returns; may be repeated."""
        self._stopped = True
        self._answered.set()

    def _run(self) -> None:
        pauses = backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        while not self._stopped:
            began = time.monotonic()
            try:
                ended = self._scheduler.await_end(self._app_id, _WAIT_S)
            except NotImplementedError:
                return
            except Exception:  # noqa: BLE001 - the caller that polls the state learns what is wrong
                ended = False
            waited = time.monotonic() - began
            if ended and not self._stopped:
                self._answered.clear()
                self._poller.hurry(self._app_id)
                self._answered.wait(_WAIT_S)
            # Many ends in a row, a list that lags behind the end, or a refusal: not asked for without a pause.
            if waited >= _MAX_PAUSE_S:
                pauses = backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
            if not self._stopped:
                time.sleep(next(pauses))
