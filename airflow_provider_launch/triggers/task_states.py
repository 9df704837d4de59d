"""States of tasks, asked for many triggers at a time."""

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

# A run that is marked as failed ends its triggers in one go: one request then answers for a whole mapped task.
_GATHER_S = 0.05

_Task = tuple[str, str, str]


class TaskStates:
    """Asks Airflow for states of tasks: one request for all the triggers of a mapped task that ask together.

    Args:
        helpers: where the requests are made.
    """

    def __init__(self, helpers: Helpers) -> None:
        self._helpers = helpers
        self._asking: dict[_Task, list[tuple[int, Future[str | None]]]] = {}
        self._mutex = threading.Lock()

    def ask(self, ti: Any, after_s: float = 0.0) -> Future[str | None]:
        """Return the state of a task instance from now on: None after a clear, `GONE` if its run was deleted.

        `ABSENT`: Airflow knows no such task, though there is its run; that alone proves nothing.

        Args:
            ti: as the triggerer gives it; None: a trigger without a task.
            after_s: seconds until it is asked, together with what else is asked of the same mapped task.

        Raises:
            LookupError: as the result of the future: Airflow did not answer.
        """
        future: Future[str | None] = Future()
        # Nobody can take it back: a trigger that is cancelled leaves it to be answered.
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
            # Before the request: who asks from here on gets the answer of a later one.
            asking = self._asking.pop(key)
        errors: list[str] = []
        states = {}
        try:
            # Each run has existed: its trigger is here.
            states = ask_states(
                {TaskKey(*key, index) for index, _ in asking},
                lambda _dag, _run: True,
                lambda error: errors.append(f"{type(error).__name__}: {error}"),
            )
        except BaseException as error:  # noqa: BLE001 - the waiting caller gets it, also a cancellation
            errors.append(f"{type(error).__name__}: {error}")
        for index, future in asking:
            task = TaskKey(*key, index)
            if task in states:
                future.set_result(states[task])
            else:
                future.set_exception(LookupError("; ".join(errors)))
