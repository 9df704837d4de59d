"""Defects that show when another process dies or acts at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from airflow_provider_launch.schedulers.api import Capability, DescribeAppResponse
from airflow_provider_launch.schedulers.local.records import Records
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.testing.example_scheduler import AppThread
from tests.contract.broken.defects import Local, Threads, caught_by

DEATH_WINDOW_S = 1.0
"""Most of the duration of a start, so that some launchers are killed in it."""


class HoldsALockFile(Local):
    """Locks with a file, which stays when its process dies."""

    timeout_s = 4

    @contextlib.contextmanager
    def _held(self, app_id: str, work_s: float) -> Iterator[None]:
        lock = Path(self.root, "locks", app_id)
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.touch(exist_ok=False)
        except FileExistsError:
            raise SchedulerUnavailableError(f"another process has locked {app_id!r}; try again") from None
        time.sleep(work_s)
        yield
        lock.unlink()


@caught_by(
    "test_a_launcher_killed_while_it_schedules_is_made_up_for",
    "test_what_a_killed_launcher_left_can_be_cancelled",
)
class LocksWhatItSchedules(HoldsALockFile):
    def schedule(self, dryrun_info: Any) -> str:
        with self._held(dryrun_info.request.app_id, DEATH_WINDOW_S):
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


class _RecordsInTheirPlace(Records):
    def commit(self, app_id: str, document: dict[str, Any], fill: Callable[[str], None] | None = None) -> None:
        try:
            Path(self.dir(app_id)).mkdir(parents=True)
        except FileExistsError:
            return
        time.sleep(DEATH_WINDOW_S)
        super().commit(app_id, document, fill)


@caught_by("test_a_launcher_killed_while_it_schedules_is_made_up_for")
class BuildsAnAppInItsPlace(Local):
    """A killed launcher leaves an incomplete app under a used name."""

    timeout_s = 4

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._records = _RecordsInTheirPlace(self.root)


class _Attempt(AppThread):
    def _publish(self, state: str, msg: str) -> None:
        published(self.dir, {"state": state, "msg": msg, "replicas": self.replicas})


def published(app_dir: Path, state: dict[str, Any]) -> None:
    """Write the state of the app atomically, because several processes may write at the same time."""
    part = app_dir / f"state.{uuid.uuid4().hex}"
    replicas = [
        {key: value for key, value in replica.items() if key != "signalled_at"} for replica in state["replicas"]
    ]
    part.write_text(json.dumps({**state, "replicas": replicas}))
    part.replace(app_dir / "state.json")


@caught_by("test_retries_are_exact_with_many_observers[REPLICA]")
class EachObserverRetries(Threads):
    """Each observer of the failure of an app with one replica restarts it. A single observer counts correctly."""

    capabilities = promised = frozenset({*Threads.capabilities, Capability.REPLICA_RETRY})
    app_thread = _Attempt

    def _refuse_unsupported(self, app: AppDef) -> None:
        pass

    def _replica(self, role: Role, k: int, app_id: str) -> dict[str, Any]:
        replica = super()._replica(role, k, app_id)
        # Each attempt truncates the log of the engine, so attempts write their own log.
        log = self.root.resolve() / app_id / "attempts"
        replica["argv"] = ["sh", "-c", f'exec >>"{log}"; exec "$0" "$@"', *replica["argv"]]
        return replica

    def _read(self, path: Path, at: int, ended: bool) -> tuple[str, int]:
        return super()._read(path.with_name("attempts"), at, ended) if path.suffix == ".stdout" else ("", at)

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        found = super().describe_many(app_ids)
        for app_id, response in found.items():
            if response and response.state is AppState.FAILED:
                self._retry(self._dir(app_id).resolve(), response)
        return found

    def _retry(self, app_dir: Path, response: DescribeAppResponse) -> None:
        counter = app_dir / "retries"
        done = int(counter.read_text()) if counter.exists() else 0
        if done == response.roles[0].max_retries:
            return
        time.sleep(0.1)
        published(app_dir, {"state": "RUNNING", "msg": "", "replicas": [{"state": "RUNNING"}]})
        counter.write_text(str(done + 1))
        request = json.loads((app_dir / "request.json").read_text())
        lock = (app_dir / "lock").open("w")
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        threading.Thread(target=_Attempt(app_dir, request, lock).run).start()
        response.state = AppState.RUNNING


@caught_by("test_observers_meet_a_deletion_without_an_error")
class LooksTwice(Threads):
    """Reads twice and fails if an app is deleted in between."""

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        found = super().describe_many(app_ids)
        time.sleep(0.05)
        for app_id, now in super().describe_many(found).items():
            if found[app_id] is not None and now is None:
                raise SchedulerUnavailableError(f"{app_id!r} was deleted in the meantime")
        return found
