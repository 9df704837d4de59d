"""Where the log of a deferred task has got to, kept in an XCom: the only store that a trigger can reach."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from airflow_provider_launch._task.progress import MAX_PACKED, FollowProgress, pack, unpack
from airflow_provider_launch.triggers.pump import comms_bytes_unread

_SHUTDOWN_SAVE_S = 8.0
_STEP_S = 0.02
_FIRED = "fired"


def begin_checkpoint(ti: Any) -> None:
    """Make room for the checkpoint of a try; without it Airflow logs an error when the trigger reads one."""
    with contextlib.suppress(Exception):
        ti.xcom_push(_key(ti.try_number), "")


def end_checkpoint(ti: Any) -> None:
    """Remove the checkpoint of a try that is followed by a worker now."""
    with contextlib.suppress(Exception):
        from airflow.sdk.execution_time.comms import DeleteXCom
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

        # Not `XCom.delete`, which reads the value first for the sake of backends that keep it elsewhere.
        SUPERVISOR_COMMS.send(
            DeleteXCom(
                key=_key(ti.try_number),
                dag_id=ti.dag_id,
                run_id=ti.run_id,
                task_id=ti.task_id,
                map_index=-1 if ti.map_index is None else ti.map_index,
            )
        )


def _key(try_number: int) -> str:
    # One for each try: after a clear the old trigger and the new try overlap for a moment.
    return f"launch_cursor_{try_number}"


def waits_for_trigger(ti: Any) -> bool:
    """Return whether the checkpoint of a try is there, and no trigger of it has fired; may take a request to Airflow.

    A task that is scheduled while its trigger has not fired was cleared. Without a checkpoint a new try has started.
    """
    from airflow.sdk.bases.xcom import BaseXCom

    stored = BaseXCom.get_one(**_where(ti))
    return isinstance(stored, str) and not unpack(stored).get(_FIRED)


def _where(ti: Any) -> dict[str, Any]:
    names = ("dag_id", "task_id", "run_id", "map_index")
    return {**{name: getattr(ti, name) for name in names}, "key": _key(ti.try_number)}


class Checkpoint:
    """The progress of one try of one task.

    Args:
        task_instance: as the triggerer gives it; None (in `dag.test()`): nothing is kept.
    """

    __slots__ = ("_saved", "_ti")

    def __init__(self, task_instance: Any) -> None:
        self._ti = task_instance
        self._saved = ""

    async def load(self) -> FollowProgress | None:
        """Return what an earlier trigger of this try has stored; None: nothing."""
        if self._ti is None:
            return None
        from airflow.sdk.bases.xcom import BaseXCom

        # Lines shown twice are better than a task that fails for want of a cursor.
        with contextlib.suppress(Exception):
            self._saved = str(await BaseXCom.aget_one(**_where(self._ti)) or "")
        stored = unpack(self._saved)
        return FollowProgress.from_json(stored) if stored else None

    @staticmethod
    def fits(progress: FollowProgress) -> bool:
        """Whether the progress is small enough to be stored."""
        return len(pack(progress.to_json())) <= MAX_PACKED

    async def save(self, progress: FollowProgress, *, fired: bool = False) -> None:
        """Store the progress; a failure only means that lines may be shown twice after a crash.

        Args:
            progress: what was shown.
            fired: the trigger has done its work: another one of the same deferral must not take its end for a clear.
        """
        packed = pack({**progress.to_json(), **({_FIRED: True} if fired else {})})
        if fired and len(packed) > MAX_PACKED:
            packed = pack({_FIRED: True})
        if self._ti is None or packed == self._saved or len(packed) > MAX_PACKED:
            return
        from airflow.sdk.bases.xcom import BaseXCom

        with contextlib.suppress(Exception):
            await BaseXCom.aset(value=packed, **_where(self._ti))
            self._saved = packed

    async def save_on_shutdown(self, progress: FollowProgress) -> None:
        """Store the progress during triggerer shutdown: replies are not delivered any more, requests are processed."""
        saving = asyncio.ensure_future(self.save(progress))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _SHUTDOWN_SAVE_S
        while loop.time() < deadline:
            # The second cancellation is the same end; what is being sent is worth the moment.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(_STEP_S)
            if saving.cancelled():
                # The end takes all tasks, this one too, perhaps before it has sent anything; twice is no harm.
                saving = asyncio.ensure_future(self.save(progress))
            elif saving.done() or not comms_bytes_unread():
                break
        saving.cancel()
