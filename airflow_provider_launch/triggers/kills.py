"""Cancels the apps of tasks that a user has ended, on threads that Airflow's cancellations do not reach."""

from __future__ import annotations

import contextlib
import contextvars
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._task import metrics
from airflow_provider_launch.runner.orphans import GONE, OVER
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.triggers.checkpoint import was_cleared

if TYPE_CHECKING:
    from airflow_provider_launch.triggers.connections import Connections, Shared
    from airflow_provider_launch.triggers.helpers import Helpers
    from airflow_provider_launch.triggers.task_states import TaskStates

KILL_S = 60.0
"""Seconds for which a cancel is repeated while Airflow or the scheduler does not answer."""
_PAUSE_S = 0.5


@dataclass
class _Kill:
    handle: str
    app_id: str
    conn_id: str
    ti: Any
    log: Any
    context: contextvars.Context
    deadline: float
    shared: Shared | None
    done: Future[None] = field(default_factory=Future)


class Kills:
    """Cancels the apps of tasks that are really over.

    Airflow cancels a trigger again about each second, also while its `on_kill` runs, and ends many at the same time.
    So a kill must not depend on the trigger that requested it.

    Args:
        connections: the connections in use.
        states: finds out which tasks are over, because a trigger that moves to another triggerer ends in the same way.
        helpers: threads for the cancels; a connection that hangs delays only its own cancels.
        writers: threads that log the outcomes: Airflow may read them late, and no cancel waits for that.
    """

    def __init__(self, connections: Connections, states: TaskStates, helpers: Helpers, writers: Helpers) -> None:
        self._connections = connections
        self._states = states
        self._helpers = helpers
        self._writers = writers

    def end(
        self, handle: str, app_id: str, conn_id: str, ti: Any, log: Any, *, shared: Shared | None = None
    ) -> Future[None]:
        """Cancel the app if its task is over; the future is done when the kill is complete, and never raises.

        An app that could not be cancelled is logged as an error.

        Args:
            handle: the handle of the app, for the log.
            app_id: the app id in the handle.
            conn_id: the connection.
            ti: the task instance from the triggerer.
            log: logger for the outcome, used in the context of the caller.
            shared: the trigger's shared connection, so that it is not read again.
        """
        kept = shared if shared is not None and self._connections.keep(shared) else None
        kill = _Kill(handle, app_id, conn_id, ti, log, contextvars.copy_context(), time.monotonic() + KILL_S, kept)
        kill.done.set_running_or_notify_cancel()
        self._ask(kill)
        return kill.done

    def _ask(self, kill: _Kill, after_s: float = 0.0) -> None:
        self._states.ask(kill.ti, after_s).add_done_callback(
            lambda found: self._helpers.submit(lambda: self._continue(kill, found), kill.conn_id)
        )

    def _continue(self, kill: _Kill, found: Future[str | None]) -> None:
        try:
            ended = self._why_ended(kill, found.result())
        except Exception as error:  # noqa: BLE001 - any error means that Airflow has not answered
            if time.monotonic() + _PAUSE_S < kill.deadline:
                self._ask(kill, _PAUSE_S)
                return
            self._report(kill, f"Airflow did not return the state of the task: {error}")
        else:
            if ended:
                why_not = self._cancel(kill)
                if why_not is None and kill.shared is not None:
                    metrics.count_cancelled(kill.shared.options.backend)
                self._report(kill, why_not, ended)
            else:
                kill.done.set_result(None)
        self._leave(kill)

    @staticmethod
    def _why_ended(kill: _Kill, state: str | None) -> str:
        """Return "ended" or "cleared"; empty if the task may still need its app.

        After another triggerer has fired for the same deferral, the task has the same states as a cleared one.
        """
        if state in OVER or state == GONE:
            return "ended"
        return "cleared" if kill.ti is not None and was_cleared(kill.ti, state) else ""

    def _cancel(self, kill: _Kill) -> str | None:
        """Cancel the app; return why it could not be cancelled, or None."""
        while True:
            try:
                if kill.shared is None:
                    kill.shared = self._connections.join(kill.conn_id)
                kill.shared.for_kills().cancel(kill.app_id)
            except SchedulerUnavailableError as error:
                if time.monotonic() + _PAUSE_S >= kill.deadline:
                    return str(error)
                time.sleep(_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - reported in the log
                return str(error)
            else:
                return None

    def _report(self, kill: _Kill, why_not: str | None, ended: str = "ended") -> None:
        """Log the outcome on a writer thread, then complete the kill."""

        def write() -> None:
            with contextlib.suppress(Exception):
                # The supervisor finds the task's log by the context.
                kill.context.run(self._write, kill, why_not, ended)
            kill.done.set_result(None)

        with contextlib.suppress(Exception):
            metrics.count("kills", outcome="cancelled" if why_not is None else "failed")
        self._writers.submit(write)

    def _leave(self, kill: _Kill) -> None:
        # Here and not on a writer thread, because closing clients may take a moment.
        if kill.shared is not None:
            with contextlib.suppress(Exception):
                self._connections.leave(kill.shared)

    @staticmethod
    def _write(kill: _Kill, why_not: str | None, ended: str) -> None:
        if why_not is None:
            kill.log.warning("the task was %s; app %s is cancelled", ended, kill.app_id)
        else:
            text = "the task was %s, but its app %s could not be cancelled: %s; cancel it, or it runs to its end"
            kill.log.error(text, ended, kill.handle, why_not)
