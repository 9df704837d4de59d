"""`AppStatusTrigger`: follows an app in the triggerer, for the operator and the sensor."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_launch._task.options import FollowOptions, allowed_conn_id, check_streams
from airflow_provider_launch._task.progress import FollowProgress
from airflow_provider_launch.specs.errors import InvalidAppError, LaunchError
from airflow_provider_launch.specs.handles import ParsedAppHandle, parse_app_handle
from airflow_provider_launch.util.untrusted import clean_json

if TYPE_CHECKING:
    from concurrent.futures import Future

    from airflow_provider_launch.triggers._run import TriggerRun
    from airflow_provider_launch.triggers.connections import Shared

__all__ = ["AppStatusTrigger"]

_LEAVE_S = 28.0
"""How long a trigger waits for the cancel of its app before it ends; Airflow's `on_kill_timeout` is 30 s."""


class AppStatusTrigger(BaseTrigger):
    """Shows states and log lines of an app until it has ended, then fires once.

    All triggers of a process share one status request per connection and interval, and one log pump. The worker that
    goes on asks the scheduler itself how the app ended, and writes the lines which were not shown here.

    The event is plain JSON: `{handle, why, text}` and a `FollowProgress`. `why` is "ended", "deadline", "unreachable"
    or "error", which the worker then meets itself.

    Args:
        handle: `backend://connection/app_id`, or `[task id, XCom key]` of where it stands.
        deadline: epoch seconds after which the waiting ends. None: never.
        timeout_s: the same, counted from the start of the trigger.
        cancels_at_deadline: whether that happens, or the app is left alone.
        scheduled: the task has just launched the app, so nothing that it writes is old, and it is known.
        known: the app has been there, so if the scheduler does not know it, it has vanished.
        secret_places: of values in the app that its worker masks, as `_task.secrets` gives them. None: not known; then
            only names show what is a secret.
        progress: what an earlier follower of the task leaves: `FollowProgress` as JSON.
        fire_after_s: the event comes no earlier than this after the start of the trigger. A task that goes on before
            Airflow's scheduler knows that its worker has left is failed by it.
        options: those of `FollowOptions`, by name.
    """

    def __init__(
        self,
        handle: str | Sequence[str],
        *,
        deadline: float | None = None,
        timeout_s: float | None = None,
        cancels_at_deadline: bool = True,
        scheduled: bool = False,
        known: bool = False,
        secret_places: Sequence[Sequence[Any]] | None = None,
        progress: Mapping[str, Any] | None = None,
        fire_after_s: float = 0,
        **options: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.handle = handle
        self.options = FollowOptions.from_json(options, warn=self.log.warning)
        self.deadline = deadline
        self.timeout_s = timeout_s
        self.cancels_at_deadline = cancels_at_deadline
        self.scheduled = scheduled
        self.known = known
        self.secret_places = secret_places
        self.progress = progress
        self.fire_after_s = fire_after_s
        self._fired = False
        self._resolved = ""
        self._parsed: ParsedAppHandle | None = None
        self._shared: Shared | None = None
        self._ending: Future[None] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer makes this trigger from; plain JSON, no secrets.

        What has its default is left out, so that a triggerer of an older version takes all that it knows.
        """
        own = [each for each in inspect.signature(type(self)).parameters.values() if each.name != "options"]
        kwargs = {each.name: getattr(self, each.name) for each in own}
        changed = {each.name: kwargs[each.name] for each in own if kwargs[each.name] != each.default}
        return f"{type(self).__module__}.{type(self).__qualname__}", clean_json({**changed, **self.options.to_json()})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the one event."""
        from airflow_provider_launch.triggers._run import is_of_user
        from airflow_provider_launch.triggers.hub import hub

        began = time.monotonic()
        if self.task_instance is not None:
            # First: a triggerer that has just started may need long to join the connection.
            hub().reconciler.see_run(self.task_instance.dag_id, self.task_instance.run_id)
        try:
            watch = await self._join()
            try:
                await watch.prepare()
                try:
                    watch.start()
                    while (over := await watch.wait_once()) is None:
                        await watch.news()
                    event = self._event(*over, await watch.finish())
                except asyncio.CancelledError as error:
                    if is_of_user(error):
                        hub().reconciler.check_soon(self._conn_id())
                        # First: a thousand that are ended at once share the threads on which the following stops.
                        self._start_cancel()
                    await watch.abandon(error)
                    if is_of_user(error):
                        # Not only in `on_kill`: the next cancellation ends what waits for that, and the task's log.
                        # Here already: the connection is still joined.
                        await self._cancel_killed()
                    raise
                finally:
                    watch.stop()
            finally:
                watch.leave()
        except asyncio.CancelledError as error:
            if is_of_user(error):
                await self._cancel_killed()
            raise
        except Exception as error:  # noqa: BLE001 - the worker meets it itself; a trigger that raises fails the task without a word
            given = FollowProgress.from_json(self.progress or {})
            progress = FollowProgress(since=given.since, roles=given.roles)
            event = self._event("error", f"{type(error).__name__}: {error}", progress)
            from airflow_provider_launch.triggers.checkpoint import Checkpoint

            with contextlib.suppress(Exception):
                await Checkpoint(self.task_instance).save(FollowProgress(), fired=True)
        await asyncio.sleep(began + self.fire_after_s - time.monotonic())
        # Before the yield: the triggerer may end the trigger as if it were killed right after it.
        self._fired = True
        # The event is stored with those of all tasks: a letter that its database refuses would end the triggerer.
        yield TriggerEvent(clean_json(event))  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Cancel the app when a user has ended the task; called also when nobody has."""
        if not self.options.may_cancel:
            return
        # A trigger may be ended before it has begun.
        await self._resolve()
        await self._cancel_killed()

    async def _cancel_killed(self) -> None:
        """Cancel the app if the task is over, and wait for it however often Airflow cancels this trigger meanwhile.

        Airflow does so each second; with fifty tasks ended at once one second is too short.
        """
        ending = self._start_cancel()
        if ending is None:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LEAVE_S
        ended = asyncio.wrap_future(ending)
        while not ended.done() and (left := deadline - loop.time()) > 0:
            # Each further cancellation is the same end.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({ended}, timeout=left)

    def _conn_id(self) -> str | None:
        """Return the connection; None: it is not known yet."""
        return allowed_conn_id(self.options.launch_conn_id, self._parsed) if self._parsed is not None else None

    def _start_cancel(self) -> Future[None] | None:
        """Have the app cancelled if the task is over; None: nothing is to be ended."""
        if self._fired or self._parsed is None or not self.options.may_cancel:
            return None
        if self._ending is None:
            from airflow_provider_launch.triggers.hub import hub

            self._ending = hub().kills.end(
                self._resolved,
                self._parsed.app_id,
                allowed_conn_id(self.options.launch_conn_id, self._parsed),
                self.task_instance,
                self.log,
                shared=self._shared,
            )
        return self._ending

    # ---- follow ------------------------------------------------------------------------------------------------------

    async def _join(self) -> TriggerRun:
        """Find the app, and what the triggers of its connection share."""
        from airflow_provider_launch.triggers._run import TriggerRun
        from airflow_provider_launch.triggers.hub import hub

        parsed = await self._resolve()
        conn_id = allowed_conn_id(self.options.launch_conn_id, parsed)
        hub().reconciler.use(conn_id)
        # Not asgiref's `sync_to_async`: it loses the message of a cancellation, by which Airflow calls `on_kill`.
        context = contextvars.copy_context()
        joining = asyncio.get_running_loop().run_in_executor(None, context.run, hub().join, conn_id)
        try:
            shared = await asyncio.shield(joining)
        except asyncio.CancelledError:
            # The thread joins all the same.
            joining.add_done_callback(self._leave_joined)
            raise
        try:
            if shared.options.backend != parsed.scheduler_backend:
                raise InvalidAppError(f"{self._resolved!r} is no app of connection {conn_id!r}")
            check_streams(shared.scheduler, self.options.streams)
        except LaunchError:
            await asyncio.to_thread(hub().leave, shared)
            raise
        self._shared = shared
        return TriggerRun(self, shared, self._resolved, parsed.app_id)

    @staticmethod
    def _leave_joined(joining: asyncio.Future[Shared]) -> None:
        from airflow_provider_launch.triggers.hub import hub

        if joining.cancelled() or joining.exception() is not None:
            return
        try:
            # Not here: this is the event loop, and closing may take a moment.
            asyncio.get_running_loop().run_in_executor(None, hub().leave, joining.result())
        except RuntimeError:  # the loop ends
            hub().leave(joining.result())

    async def _resolve(self) -> ParsedAppHandle:
        if self._parsed is None:
            self._resolved = await self._handle()
            self._parsed = parse_app_handle(self._resolved)
        return self._parsed

    async def _handle(self) -> str:
        if isinstance(self.handle, str):
            return self.handle
        from airflow.sdk.bases.xcom import BaseXCom

        from airflow_provider_launch._task.outcome import handle_of

        task_id, key = self.handle
        ti = self.task_instance
        if ti is None:
            raise InvalidAppError(f"the handle of task {task_id!r} can be looked up only in a triggerer")
        value = await BaseXCom.aget_one(key=key, dag_id=ti.dag_id, task_id=task_id, run_id=ti.run_id, map_index=-1)
        handle = handle_of(value)
        if not handle:
            raise InvalidAppError(f"XCom {key!r} of task {task_id!r} holds no handle of an app")
        return handle

    def _event(self, why: str, text: str, progress: FollowProgress | None = None) -> dict[str, Any]:
        return {"handle": self._resolved, "why": why, "text": text, **(progress or FollowProgress()).to_json()}

    # ---- the task ----------------------------------------------------------------------------------------------------

    async def is_awaited(self) -> bool:
        """Return whether the task waits for a trigger; without a task nothing else does."""
        if self.task_instance is None:
            return True
        from airflow_provider_launch.triggers.hub import hub

        return await asyncio.wrap_future(hub().task_states.ask(self.task_instance)) == "deferred"
