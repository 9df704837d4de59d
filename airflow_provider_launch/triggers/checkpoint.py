"""The progress of a deferred task, stored in an XCom, the only store that a trigger can reach."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from airflow_provider_launch._airflow import ask, get_xcom, set_xcom, set_xcom_at_shutdown
from airflow_provider_launch._task.progress import MAX_PACKED, FollowProgress, pack, unpack
from airflow_provider_launch.specs.owner import TaskKey

_SHUTDOWN_SAVE_S = 8.0
_STEP_S = 0.02
_FIRED = "fired"
_CLEARED = (None, "scheduled", "queued", "restarting")
"""States of a task that was cleared before its trigger has fired; "restarting" while its process runs."""


def create_checkpoint(ti: Any) -> None:
    """Create an empty checkpoint for a try; without it Airflow logs an error when the trigger reads it."""
    with contextlib.suppress(Exception):
        ti.xcom_push(_key(ti.try_number), "")


def delete_checkpoint(ti: Any) -> None:
    """Delete the checkpoint of a try, because a worker now follows the app."""
    with contextlib.suppress(Exception):
        from airflow.sdk.execution_time.comms import DeleteXCom
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

        # Not `XCom.delete`, which first reads the value, for XCom backends.
        SUPERVISOR_COMMS.send(DeleteXCom(key=_key(ti.try_number), **TaskKey.of(ti)._asdict()))


def _key(try_number: int) -> str:
    # One for each try, because after a clear the old trigger and the new try overlap for a moment.
    return f"launch_cursor_{try_number}"


def was_cleared(ti: Any, state: str | None) -> bool:
    """Return whether a task with this state was cleared during its deferral; may send a request to Airflow.

    A task that is scheduled although its trigger has not fired was cleared. Its next try would replace the app, but
    with a full pool that may take hours. If the checkpoint is gone, the next try has started.
    """
    if state not in _CLEARED:
        return False
    from airflow.sdk.bases.xcom import BaseXCom

    stored = ask(lambda: BaseXCom.get_one(**_where(ti)))
    return isinstance(stored, str) and not unpack(stored).get(_FIRED)


def _where(ti: Any) -> dict[str, Any]:
    return {**TaskKey.of(ti)._asdict(), "key": _key(ti.try_number)}


class Checkpoint:
    """The progress of one try of one task.

    Args:
        task_instance: the task instance of the trigger. None, as in `dag.test()`, stores nothing.
    """

    __slots__ = ("_saved", "_ti")

    def __init__(self, task_instance: Any) -> None:
        self._ti = task_instance
        self._saved = ""

    async def load(self) -> FollowProgress | None:
        """Return the progress that an earlier trigger of this try has stored, or None."""
        if self._ti is None:
            return None
        # Repeated lines are better than a task that fails because its cursor cannot be read.
        with contextlib.suppress(Exception):
            self._saved = str(await get_xcom(**_where(self._ti)) or "")
        stored = unpack(self._saved)
        return FollowProgress.from_json(stored) if stored else None

    @staticmethod
    def fits(progress: FollowProgress) -> bool:
        """Return whether the progress is small enough to be stored."""
        return len(pack(progress.to_json())) <= MAX_PACKED

    async def save(self, progress: FollowProgress, *, fired: bool = False, at_shutdown: bool = False) -> None:
        """Store the progress; a failure only means that lines may be shown twice after a crash.

        Args:
            progress: the progress to store.
            fired: the trigger fires, so that another trigger of the same deferral does not assume a clear.
            at_shutdown: the triggerer ends.
        """
        packed = pack({**progress.to_json(), **({_FIRED: True} if fired else {})})
        if fired and len(packed) > MAX_PACKED:
            packed = pack({_FIRED: True})
        if self._ti is None or packed == self._saved or len(packed) > MAX_PACKED:
            return
        with contextlib.suppress(Exception):
            await (set_xcom_at_shutdown if at_shutdown else set_xcom)(value=packed, **_where(self._ti))
            self._saved = packed

    async def save_on_shutdown(self, progress: FollowProgress) -> None:
        """Store the progress during triggerer shutdown, when requests are still sent but replies no longer arrive."""
        # Imported here, because a worker needs only the functions above.
        from airflow_provider_launch.triggers.pump import comms_bytes_unread

        saving = asyncio.ensure_future(self.save(progress, at_shutdown=True))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _SHUTDOWN_SAVE_S
        while loop.time() < deadline:
            # Ignore a second cancellation, so that the request can be sent.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(_STEP_S)
            if saving.cancelled():
                # Shutdown cancels all asyncio tasks, perhaps before this one has sent anything; saving twice is safe.
                saving = asyncio.ensure_future(self.save(progress, at_shutdown=True))
            elif not comms_bytes_unread():
                break
        saving.cancel()
