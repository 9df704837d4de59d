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

from airflow_provider_launch._airflow import enter_triggerer, get_xcom, is_ended_by_user
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

_CANCEL_WAIT_S = 28.0
"""Seconds that a trigger waits for the cancel of its app before it ends; Airflow's `on_kill_timeout` is 30 s."""


class AppStatusTrigger(BaseTrigger):
    """Shows states and log lines of an app until it has ended, then fires once.

    All triggers of a process share one status request per connection and interval, and one log pump. The worker that
    resumes asks the scheduler itself how the app ended, and writes the lines that were not shown here.

    The event is plain JSON: `{handle, reason, text}` and a `FollowProgress`. `reason` is "ended", "deadline",
    "unreachable", "not_started" or "error"; after an error the worker follows the app itself.

    Args:
        handle: `backend://connection/app_id`, or `[task id, XCom key]` of the XCom with the handle.
        deadline: epoch seconds after which the wait ends. None: never.
        timeout_s: like `deadline`, in seconds from the start of the trigger.
        cancels_at_deadline: whether the deadline cancels the app.
        scheduled: whether the task has just launched the app, so that the app exists and all its lines are new.
        known: whether the app was seen before; if the scheduler no longer finds it, it has vanished.
        secret_places: locations of the values in the app that its worker masks, from `_task.places`. None if unknown;
            then only values with secret-like names are masked.
        progress: `FollowProgress` of an earlier follower of the task, as JSON.
        fire_after_s: earliest time of the event, in seconds from the start of the trigger. Before that, Airflow's
            scheduler may not have noticed that the worker has exited, and would fail the task.
        options: fields of `FollowOptions` by name.
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
        """Return class path and keyword arguments of this trigger, as plain JSON without secrets.

        Defaults are left out, so that a triggerer with an older version accepts the arguments.
        """
        own = [each for each in inspect.signature(type(self)).parameters.values() if each.name != "options"]
        kwargs = {each.name: getattr(self, each.name) for each in own}
        changed = {each.name: kwargs[each.name] for each in own if kwargs[each.name] != each.default}
        return f"{type(self).__module__}.{type(self).__qualname__}", clean_json({**changed, **self.options.to_json()})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, when the wait is over."""
        from airflow_provider_launch.triggers.hub import hub

        enter_triggerer()
        started_at = time.monotonic()
        if self.task_instance is not None:
            # Before `_join`, which may be slow in a triggerer that has just started. The reconciler then compares the
            # apps of this run with their tasks, even if the trigger is cancelled meanwhile.
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
                    if is_ended_by_user(error):
                        hub().reconciler.check_soon(self._conn_id())
                        # Before `abandon`, which waits for shared threads: this takes long if many triggers end at
                        # once.
                        self._start_cancel()
                    await watch.abandon(error)
                    if is_ended_by_user(error):
                        # Wait here, while the connection is still joined, and not only in `on_kill`: there the next
                        # cancellation would interrupt the wait and close the task's log.
                        await self._cancel_killed()
                    raise
                finally:
                    watch.stop()
            finally:
                watch.leave()
        except asyncio.CancelledError as error:
            if is_ended_by_user(error):
                await self._cancel_killed()
            raise
        except Exception as error:  # noqa: BLE001 - the worker handles it; a trigger that raises fails the task without a message
            given = FollowProgress.from_json(self.progress or {})
            progress = FollowProgress(since=given.since, roles=given.roles)
            event = self._event("error", f"{type(error).__name__}: {error}", progress)
            from airflow_provider_launch.triggers.checkpoint import Checkpoint

            with contextlib.suppress(Exception):
                await Checkpoint(self.task_instance).save(FollowProgress(), fired=True)
        await asyncio.sleep(started_at + self.fire_after_s - time.monotonic())
        # Set before the yield: after it the triggerer may cancel this trigger, which must not look like a kill.
        self._fired = True
        # Cleaned, because a character that the database refuses would end the whole triggerer.
        yield TriggerEvent(clean_json(event))  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Cancel the app if a user has ended the task.

        Airflow also calls this in other cases, so the state of the task is checked first.
        """
        if not self.options.may_cancel:
            return
        # A trigger may be cancelled before it has started.
        await self._resolve()
        await self._cancel_killed()

    async def _cancel_killed(self) -> None:
        """Cancel the app if the task is over, and wait for it even if Airflow cancels this trigger again.

        Airflow repeats its cancellation every second, but cancelling fifty apps takes longer.
        """
        ending = self._start_cancel()
        if ending is None:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CANCEL_WAIT_S
        ended = asyncio.wrap_future(ending)
        while not ended.done() and (left := deadline - loop.time()) > 0:
            # Ignore further cancellations.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({ended}, timeout=left)

    def _conn_id(self) -> str | None:
        """Return the connection; None until the handle is resolved."""
        return allowed_conn_id(self.options.launch_conn_id, self._parsed) if self._parsed is not None else None

    def _start_cancel(self) -> Future[None] | None:
        """Start to cancel the app if the task is over; None if there is nothing to cancel."""
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
        """Find the app, and join its connection."""
        from airflow_provider_launch.triggers._run import TriggerRun
        from airflow_provider_launch.triggers.hub import hub

        parsed = await self._resolve()
        conn_id = allowed_conn_id(self.options.launch_conn_id, parsed)
        hub().reconciler.use(conn_id)
        # Not asgiref's `sync_to_async`: it drops the message of the `CancelledError`, which decides whether Airflow
        # calls `on_kill`.
        context = contextvars.copy_context()
        joining = asyncio.get_running_loop().run_in_executor(None, context.run, hub().join, conn_id)
        try:
            shared = await asyncio.shield(joining)
        except asyncio.CancelledError:
            # The thread joins anyway.
            joining.add_done_callback(self._leave_joined)
            raise
        try:
            if shared.options.backend != parsed.scheduler_backend:
                raise InvalidAppError(
                    f"{self._resolved!r} is not an app of connection {conn_id!r}, which is for scheduler "
                    f"{shared.options.backend!r}; set launch_conn_id to a connection of scheduler "
                    f"{parsed.scheduler_backend!r}"
                )
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
            # Not on the event loop, because closing may take a moment.
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
        from airflow_provider_launch._task.outcome import handle_of

        task_id, key = self.handle
        ti = self.task_instance
        if ti is None:
            raise InvalidAppError(
                f"the handle of task {task_id!r} can be looked up only in a triggerer; pass the handle itself"
            )
        value = await get_xcom(key=key, dag_id=ti.dag_id, task_id=task_id, run_id=ti.run_id, map_index=-1)
        handle = handle_of(value)
        if not handle:
            raise InvalidAppError(
                f"XCom {key!r} of task {task_id!r} does not contain the handle of an app; pass the output of a "
                f"LaunchAppOperator, or a handle"
            )
        return handle

    def _event(self, reason: str, text: str, progress: FollowProgress | None = None) -> dict[str, Any]:
        # The worker that resumes has not fetched the secrets, either.
        places = {"secret_places": self.secret_places} if self.secret_places else {}
        state = (progress or FollowProgress()).to_json()
        return {"handle": self._resolved, "reason": reason, "text": text, **places, **state}

    # ---- the task ----------------------------------------------------------------------------------------------------

    async def is_awaited(self) -> bool:
        """Return whether the task is still deferred; True without a task."""
        if self.task_instance is None:
            return True
        from airflow_provider_launch.triggers.hub import hub

        return await asyncio.wrap_future(hub().task_states.ask(self.task_instance)) == "deferred"
