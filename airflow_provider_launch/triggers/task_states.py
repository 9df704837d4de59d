"""Requests states of tasks for many triggers at a time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.hooks.task_states import ask_states
from airflow_provider_launch.runner.orphans import GONE
from airflow_provider_launch.specs.owner import TaskKey

if TYPE_CHECKING:
    from airflow_provider_launch.triggers.helpers import Helpers

# A run that is marked as failed ends all its triggers at once, so one request can answer for a whole mapped task.
_GATHER_S = 0.05

_Task = tuple[str, str, str]


class TaskStates:
    """Asks Airflow for states of tasks, with one request for all triggers of a mapped task that ask together.

    Args:
        helpers: threads for the requests.
    """

    def __init__(self, helpers: Helpers) -> None:
        self._helpers = helpers
        self._asking: dict[_Task, list[tuple[int, Future[str | None]]]] = {}
        self._mutex = threading.Lock()

    def ask(self, ti: Any, after_s: float = 0.0) -> Future[str | None]:
        """Return the current state of a task instance: None after a clear, `GONE` if its run was deleted.

        `ABSENT`: Airflow knows the run but not the task, which alone proves nothing.

        Args:
            ti: the task instance of the trigger, None if it has none.
            after_s: seconds until the request, which also answers other requests for the same mapped task.

        Raises:
            LookupError: as the result of the future: Airflow did not answer.
        """
        future: Future[str | None] = Future()
        # It cannot be cancelled: it is answered even if its trigger is cancelled.
        future.set_running_or_notify_cancel()
        if ti is None:
            future.set_result(GONE)
            return future
        key = (ti.dag_id, ti.run_id, ti.task_id)
        with self._mutex:
            asking = self._asking.get(key)
            if asking is not None:
                asking.append((ti.map_index, future))
                return future
            self._asking[key] = [(ti.map_index, future)]
        self._helpers.submit(lambda: self._answer(key, after_s))
        return future

    def _answer(self, key: _Task, after_s: float) -> None:
        time.sleep(max(_GATHER_S, after_s))
        with self._mutex:
            # Before the request, so that later callers get the answer of a later request.
            asking = self._asking.pop(key)
        errors: list[str] = []
        states = {}
        try:
            # Each run existed, because its trigger is here.
            states = ask_states(
                {TaskKey(*key, index) for index, _ in asking},
                lambda _dag, _run: True,
                lambda error: errors.append(f"{type(error).__name__}: {error}"),
            )
        except BaseException as error:  # noqa: BLE001 - the waiting caller gets any error, even a cancellation
            errors.append(f"{type(error).__name__}: {error}")
        for index, future in asking:
            task = TaskKey(*key, index)
            if task in states:
                future.set_result(states[task])
            else:
                future.set_exception(LookupError("; ".join(errors)))
