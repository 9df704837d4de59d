"""Ending the apps of many tasks at once: states in few requests, cancels side by side, out of reach of cancellations.

Airflow cancels a trigger whose task was ended about once a second, also while its `on_kill` runs, and calls `on_kill`
of all triggers of a run in the same moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_launch.hooks.launch import LaunchHook

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import Scheduler

__all__ = ["Kills"]

T = TypeVar("T")

_GONE = "gone"
"""State of a task that Airflow does not know: its run was deleted."""
_THREADS = 16
_GATHER_S = 0.1
"""Questions about one task that come within this time are one request; mapped, it may have a thousand triggers."""

_Question = tuple[asyncio.AbstractEventLoop, str, str, str]
_States = dict[str, Any]


class Kills:
    """What triggers do when their tasks are ended; one for each process."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._questions: dict[_Question, asyncio.Future[_States]] = {}
        self._hooks: dict[str, tuple[LaunchHook, int]] = {}
        self._mutex = threading.Lock()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns; whoever waits here may be cancelled, the work is not, and is waited for."""
        task = asyncio.get_running_loop().create_task(work)
        # The event loop keeps no reference of its own.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(task)
        return task.result()

    async def run(self, call: Callable[[], T]) -> T:
        """Return what a blocking call returns. Its threads are its own: those of the event loop may all be busy."""
        with self._mutex:
            if self._pool is None:
                # No daemons: a process that ends waits for the cancels that it has begun.
                self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="launch-kills")
            pool = self._pool
        # The context names the task into whose log is written.
        return await asyncio.get_running_loop().run_in_executor(pool, contextvars.copy_context().run, call)

    async def task_state(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
        """Return the state of the task, which may be None; "gone" if there is no such task."""
        loop = asyncio.get_running_loop()
        question = (loop, dag_id, run_id, task_id)
        asked = self._questions.get(question)
        if asked is None:
            asked = self._questions[question] = asyncio.ensure_future(self._ask(question))
        # Others wait for the same answer.
        states = await asyncio.shield(asked)
        state: str | None = states.get(task_id if map_index < 0 else f"{task_id}_{map_index}", _GONE)
        return state

    async def _ask(self, question: _Question) -> _States:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        _, dag_id, run_id, task_id = question
        try:
            await asyncio.sleep(_GATHER_S)
        finally:
            # Who comes later wants a later answer.
            del self._questions[question]
        answer = await self.run(
            lambda: RuntimeTaskInstance.get_task_states(dag_id=dag_id, run_ids=[run_id], task_ids=[task_id])
        )
        states: _States = answer.get(run_id, {})
        return states

    @contextlib.contextmanager
    def scheduler(self, conn_id: str) -> Iterator[Scheduler[Any]]:
        """Give the scheduler of a connection, which those who need it at the same time share.

        It is not that of the pollers, which a request that hangs may keep busy.
        """
        with self._mutex:
            kept = self._hooks.get(conn_id)
            if kept is not None:
                self._hooks[conn_id] = (kept[0], kept[1] + 1)
        hook = kept[0] if kept is not None else self._opened(conn_id)
        try:
            yield hook.scheduler
        finally:
            self._leave(conn_id, hook)

    def _opened(self, conn_id: str) -> LaunchHook:
        hook = LaunchHook.for_connection(conn_id)
        # Here, once: its first use is not for sixteen threads at the same time.
        _ = hook.scheduler
        with self._mutex:
            kept, users = self._hooks.get(conn_id, (hook, 0))
            self._hooks[conn_id] = (kept, users + 1)
        if kept is not hook:
            hook.close()
        return kept

    def _leave(self, conn_id: str, hook: LaunchHook) -> None:
        with self._mutex:
            users = self._hooks[conn_id][1] - 1
            if users:
                self._hooks[conn_id] = (hook, users)
                return
            del self._hooks[conn_id]
        hook.close()
