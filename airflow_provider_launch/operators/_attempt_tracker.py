"""Tracks the current app of a task: records it for the next try, and cancels it when the task is killed."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_launch._airflow import conf
from airflow_provider_launch._task import metrics
from airflow_provider_launch._task.cancel_on_kill import AppKilledError
from airflow_provider_launch._task.retry_unavailable import retry_while_unavailable
from airflow_provider_launch.operators._attempt import KILLED, Memory, Record, StateStore
from airflow_provider_launch.specs.states import AppState, is_terminal

if TYPE_CHECKING:
    from airflow_provider_launch.hooks.launch import LaunchHook
    from airflow_provider_launch.operators._fields import OperatorFields

T = TypeVar("T")

_KILLED_CANCEL_S = 3.0


class AttemptTracker:
    """Tracks the app of one try.

    Args:
        operator: decides what a kill does to the app.
        hook: reaches the scheduler.
    """

    def __init__(self, operator: OperatorFields, hook: LaunchHook) -> None:
        self._op = operator
        self._log = operator.log
        self._hook = hook
        self._memory = Memory(None)
        self.succeeded = False
        """The app has succeeded, so a kill no longer cancels it."""
        self._record: Record | None = None

    def track(self, record: Record) -> None:
        """Make an app the current one, which a kill cancels."""
        self._record = record
        if (killer := self._op._killer) is not None:  # noqa: SLF001 - see `OperatorRun`
            killer.app_id = record.app_id

    @property
    def app_id(self) -> str:
        """The current app; empty if there is none yet."""
        return "" if self._record is None else self._record.app_id

    @property
    def since(self) -> float | None:
        """Epoch seconds of the first submission of the current app; None: unknown."""
        return (self._record.since or None) if self._record is not None else None

    def load(self, store: StateStore | None) -> Record | None:
        """Return the record of the last try from this store; `save` writes to the same store."""
        self._memory = Memory(store)
        return self._memory.load()

    @property
    def is_persistent(self) -> bool:
        """Whether another try can load what is saved."""
        return self._memory.is_persistent

    def save(self, record: Record) -> None:
        """Save the record for the next try."""
        self._memory.save(record)

    def save_value(self, value: dict[str, Any]) -> None:
        """Save the return value for the next try, in case this worker dies before Airflow records the success."""
        if self._record is not None:
            self._record = dataclasses.replace(self._record, value=value)
            self.save(self._record)

    def close(self, error: Exception) -> None:
        """Save for the next try that the app has ended, and how."""
        record = self._record
        if record is None:
            return
        status = getattr(error, "status", None)
        outcome = str(status.state) if status is not None else type(error).__name__
        # After a kill Airflow may refuse to store anything; the next try then finds an app that has ended.
        with contextlib.suppress(Exception):
            self.save(dataclasses.replace(record, state="closed", outcome=outcome))

    def check(self) -> None:
        """Raise `AppKilledError` if the task was killed."""
        if self._op._killed:  # noqa: SLF001 - set by its `on_kill`
            raise AppKilledError("the task was killed")

    def retry_while_unavailable(self, call: Callable[[], T]) -> T:
        """Return the result of a call of the scheduler, retrying during an outage."""
        return retry_while_unavailable(
            call, self.check, unavailable_for_s=self._op.unavailable_for_s, warn=self._log.warning
        )

    def cancel_not_started(self, error: Exception) -> None:
        """Cancel the app that has not started in time, so that the next try launches again."""
        record = self._record
        if record is None:
            return
        is_asked = False
        try:
            self.retry_while_unavailable(lambda: self._hook.scheduler.cancel(record.app_id))
            is_asked = True
            state = self.await_end(record.app_id)
        except AppKilledError:
            if not is_asked:
                self.cancel_killed()
                return
            self._log.warning("app %s is cancelled; the task was killed before it has ended", record.app_id)
            self._note_kill(record)
            return
        except Exception as problem:  # noqa: BLE001 - the task fails anyway, and the remaining app is logged
            self._log.error("app %s could not be cancelled: %s", record.app_id, problem)
            return
        # It may have started at the last moment: then the next try follows it, or takes its result.
        if state is None:
            self._log.warning("app %s is cancelled but has not ended yet; the next try will check it", record.app_id)
        elif state is AppState.SUCCEEDED:
            self._log.warning("app %s has succeeded before its cancel; the next try takes its result", record.app_id)
        elif state is AppState.CANCELLED:
            metrics.count_cancelled(self._hook.options.backend)
            self._log.warning("app %s has not started, and is cancelled", record.app_id)
            self.close(error)
        else:
            self._log.warning("app %s has started at the last moment, and is %s", record.app_id, state)
            self.close(error)

    def await_end(self, app_id: str) -> AppState | None:
        """Wait for the end of a cancelled app and return its state; CANCELLED if it no longer exists.

        None: it has not ended within `[launch] replace_wait_s`.
        """
        scheduler = self._hook.scheduler
        deadline = time.monotonic() + conf.getfloat("launch", "replace_wait_s", fallback=60.0)
        while time.monotonic() < deadline:
            response = self.retry_while_unavailable(lambda: scheduler.describe(app_id))
            if response is None:
                return AppState.CANCELLED
            if is_terminal(response.state):
                return response.state
            self.check()
            time.sleep(min(0.2, scheduler.poll_interval_s))
        return None

    def cancel_killed(self) -> None:
        """Cancel the app of a killed task, also if it was submitted after the helper thread has run."""
        record, killer = self._record, self._op._killer  # noqa: SLF001 - see `OperatorRun`
        if record is None or self.succeeded:
            return
        if self._op.kill_policy == "leave":
            self._log.warning("the task was killed; app %s is left as it is", record.app_id)
            self._note_kill(record)
            return
        error = killer.error if killer is not None else None
        deadline = time.monotonic() + _KILLED_CANCEL_S
        while True:
            try:
                self._hook.scheduler.cancel(record.app_id)
            except Exception as problem:  # noqa: BLE001 - the task ends anyway, and the remaining app is logged
                error = problem
            else:
                if self._had_succeeded(record):
                    # The record stays open: a retry takes the result.
                    self._log.warning("the task was killed; app %s had succeeded before", record.app_id)
                    self._note_kill(record)
                    return
                self._log.warning("the task was killed; app %s is cancelled", record.app_id)
                metrics.count_cancelled(self._hook.options.backend)
                self.close(AppKilledError("killed"))
                return
            if time.monotonic() >= deadline:
                break
            time.sleep(0.2)
        self._note_kill(record)
        self._log.error("the task was killed, but app %s could not be cancelled: %s", record.app_id, error)

    def _note_kill(self, record: Record) -> None:
        """Keep the record open, and note the kill, because a clear may have been its reason."""
        with contextlib.suppress(Exception):
            self.save(dataclasses.replace(record, outcome=KILLED))

    def _had_succeeded(self, record: Record) -> bool:
        with contextlib.suppress(Exception):
            found = self._hook.scheduler.describe(record.app_id)
            return found is not None and found.state == AppState.SUCCEEDED
        return False
