"""Defects that show when another process dies, or acts in the same moment."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from tests.contract.broken.defects import Local, Threads, caught_by


class HoldsALockFile(Local):
    """The lock is a file, and a file does not go away with the process that made it."""

    timeout_s = 4

    @contextlib.contextmanager
    def _held(self, app_id: str, work_s: float) -> Iterator[None]:
        lock = Path(self.root, "locks", app_id)
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.touch(exist_ok=False)
        except FileExistsError:
            raise SchedulerUnavailableError(f"somebody else works at {app_id!r}") from None
        time.sleep(work_s)
        yield
        lock.unlink()


@caught_by(
    "test_a_launcher_killed_while_it_schedules_is_made_up_for",
    "test_what_a_killed_launcher_left_can_be_cancelled",
)
class LocksWhatItSchedules(HoldsALockFile):
    def schedule(self, dryrun_info: Any) -> str:
        with self._held(dryrun_info.request.app_id, 0.2):
            return super().schedule(dryrun_info)

    def cancel(self, app_id: str) -> None:
        with self._held(app_id, 0):
            super().cancel(app_id)


@caught_by(
    "test_retries_are_exact_when_observers_are_killed[REPLICA]",
    "test_retries_are_exact_when_observers_are_killed[APPLICATION]",
)
class LocksWhatItLooksAt(HoldsALockFile):
    def describe(self, app_id: str) -> DescribeAppResponse | None:
        with self._held(app_id, 0.05):
            return super().describe(app_id)


@caught_by("test_a_launcher_killed_while_it_schedules_is_made_up_for")
class BuildsAnAppInItsPlace(Local):
    """Whoever dies at it leaves half an app under a name that is taken."""

    timeout_s = 4

    def _commit(self, request: Any, app: Any, app_dir: str) -> None:
        try:
            Path(app_dir).mkdir(parents=True)
        except FileExistsError:
            return
        time.sleep(0.2)
        super()._commit(request, app, app_dir)


@caught_by("test_observers_meet_a_deletion_without_an_error")
class LooksTwice(Threads):
    """Takes what it found first for granted when it looks for more."""

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        found = super().describe_many(app_ids)
        time.sleep(0.05)
        for app_id, now in super().describe_many(found).items():
            if found[app_id] is not None and now is None:
                raise SchedulerUnavailableError(f"{app_id!r} was deleted meanwhile")
        return found
