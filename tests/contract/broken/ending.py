"""Defects in ends of apps and in their clean-up."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_launch.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler
from airflow_provider_launch.specs.errors import InvalidAppError, SchedulerRejectedError, UnknownAppException
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import ReplicaStatus
from airflow_provider_launch.testing._base import until
from airflow_provider_launch.testing.example_scheduler import _APP_ID, AppThread
from tests.contract.broken.defects import Local, Threads, caught_by
from tests.contract.broken.running import ChangesReplicas, ChangesWhatIsTold

# ---- gang ----------------------------------------------------------------------------------------------------


class _Loner(AppThread):
    def _reason_to_end(self) -> tuple[str, str] | None:
        end = super()._reason_to_end()
        ended = all(process.returncode is not None for process in self.processes)
        return end if ended or end is None or self._is_cancelled() else None


@caught_by("test_a_failed_replica_ends_its_peers[obedient]", "test_a_failed_replica_ends_its_peers[deaf]")
class LeavesThePeersAlone(Threads):
    timeout_s = 4
    app_thread = _Loner


@caught_by("test_a_failed_replica_ends_its_peers[obedient]")
class SaysThatStoppedPeersFailed(ChangesReplicas):
    def change_report(self, replica: ReplicaStatus) -> None:
        if replica.state is AppState.CANCELLED:
            replica.state = AppState.FAILED


@caught_by("test_the_first_failed_replica_is_named")
class NamesNobody(ChangesWhatIsTold):
    def reported(self, found: DescribeAppResponse) -> None:
        found.msg = "failed"


@caught_by("test_an_app_succeeds_only_when_all_replicas_have")
class SucceedsWithItsFirstReplica(ChangesWhatIsTold):
    def reported(self, found: DescribeAppResponse) -> None:
        if any(replica.state is AppState.SUCCEEDED for role in found.roles_statuses for replica in role.replicas):
            found.state = AppState.SUCCEEDED


class _Leaky(AppThread):
    def _end_background(self, process: subprocess.Popen[bytes]) -> None:
        pass


@caught_by("test_what_a_replica_left_in_the_background_ends_with_it")
class LeavesTheBackgroundAlone(Threads):
    timeout_s = 4
    app_thread = _Leaky


@caught_by("test_time_limit_ends_the_app")
class IgnoresTheTimeLimit(Local):
    timeout_s = 4

    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        info.request = dataclasses.replace(info.request, time_limit_s=None)
        return info


@caught_by("test_nothing_runs_once_an_end_is_reported[success]")
class LeavesTheBackgroundOfASuccess(Threads):
    app_thread = _Leaky


@caught_by("test_nothing_runs_once_an_end_is_reported[failure]")
class ReportsAFailureBeforeItsPeersEnd(ChangesWhatIsTold):
    def reported(self, found: DescribeAppResponse) -> None:
        if any(replica.state is AppState.FAILED for role in found.roles_statuses for replica in role.replicas):
            found.state = AppState.FAILED


@caught_by("test_nothing_runs_once_an_end_is_reported[cancel]")
class ReportsACancelAtItsRequest(ChangesWhatIsTold):
    def reported(self, found: DescribeAppResponse) -> None:
        if (self.root / found.app_id / "cancel").exists():
            found.state = AppState.CANCELLED


@caught_by("test_nothing_runs_once_an_end_is_reported[time limit]")
class ReportsTheTimeLimitAtItsMoment(Local):
    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        for app_id, response in found.items():
            started = Path(self.root, "apps", app_id, "app.json").stat().st_mtime if response else time.time()
            if response and time.time() - started > 3:
                response.state = AppState.FAILED
        return found


@caught_by("test_nothing_runs_once_an_app_is_given_up")
class ReportsALossBeforeItsProgramsEnd(Local):
    """Reports an app without a supervisor as dead."""

    def describe_many(self, app_ids: Any) -> Any:
        lost = [app_id for app_id in app_ids if self._records.app(app_id) and self._is_given_up(app_id)]
        found = super().describe_many([app_id for app_id in app_ids if app_id not in lost])
        return {**found, **{app_id: DescribeAppResponse(app_id, AppState.FAILED) for app_id in lost}}

    def _is_given_up(self, app_id: str) -> bool:
        return not (self._records.is_supervised(app_id) or self._records.has_ended(app_id))


# ---- cancel --------------------------------------------------------------------------------------------------


@caught_by(
    "test_cancel_ends_a_running_app",
    "test_cancel_right_after_schedule_ends_the_app",
    "test_cancel_after_the_end_changes_nothing",
)
class CancelsInWordsOnly(ChangesWhatIsTold):
    """Its processes continue, and ended apps are also reported as cancelled."""

    timeout_s = 4

    def _cancel_existing(self, app_id: str) -> None:
        (self._dir(app_id) / "reported").touch()

    def reported(self, found: DescribeAppResponse) -> None:
        if (self.root / found.app_id / "reported").exists():
            found.state = AppState.CANCELLED
            for role in found.roles_statuses:
                for replica in role.replicas:
                    replica.state = AppState.CANCELLED


@caught_by("test_cancel_ends_a_running_app", "test_cancel_right_after_schedule_ends_the_app")
class TellsACancelAsAFailure(ChangesWhatIsTold):
    def reported(self, found: DescribeAppResponse) -> None:
        if found.state is AppState.CANCELLED:
            found.state = AppState.FAILED


class _Careless(AppThread):
    def _run(self) -> None:
        time.sleep(0.5)
        (self.dir / "cancel").unlink(missing_ok=True)
        super()._run()


@caught_by("test_cancel_right_after_schedule_ends_the_app")
class LosesACancelBeforeTheStart(Threads):
    """Removes leftovers of a former app at the start, and with them a cancel request of this app."""

    timeout_s = 4
    app_thread = _Careless


@caught_by("test_cancel_before_schedule_does_nothing")
class RemembersTheCancelOfUnknownApps(Threads):
    remembered: ClassVar[set[str]] = set()

    def cancel(self, app_id: str) -> None:
        self.remembered.add(app_id)
        super().cancel(app_id)

    def schedule(self, dryrun_info: Any) -> str:
        app_id = super().schedule(dryrun_info)
        if app_id in self.remembered:
            self._cancel_existing(app_id)
        return app_id


@caught_by("test_cancel_can_be_repeated")
class CancelsOnceOnly(Threads):
    def _cancel_existing(self, app_id: str) -> None:
        (self._dir(app_id) / "cancel").touch(exist_ok=False)


class _KnowsItsApps(Threads):
    """Base of defects that differ between the scheduler that launched an app and the others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mine: set[str] = set()

    def schedule(self, dryrun_info: Any) -> str:
        app_id = super().schedule(dryrun_info)
        self.mine.add(app_id)
        return app_id

    def _has_ended(self, app_id: str) -> bool:
        found = self.describe(app_id)
        return found is None or is_terminal(found.state)


class _CancelsEnds(_KnowsItsApps):
    """Reports an ended app as cancelled after a late cancel."""

    def _cancel_existing(self, app_id: str) -> None:
        if self.is_careless(app_id) and self._has_ended(app_id):
            (self._dir(app_id) / "reported").touch()
        super()._cancel_existing(app_id)

    def is_careless(self, app_id: str) -> bool:
        raise NotImplementedError

    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        for app_id, response in found.items():
            if response and (self._dir(app_id) / "reported").exists():
                response.state = AppState.CANCELLED
        return found


@caught_by("test_cancel_after_the_end_changes_nothing")
class CancelsTheEndOfItsApps(_CancelsEnds):
    def is_careless(self, app_id: str) -> bool:
        return app_id in self.mine


@caught_by("test_cancel_after_the_end_changes_nothing")
class CancelsTheEndOfAppsOfOthers(_CancelsEnds):
    def is_careless(self, app_id: str) -> bool:
        return app_id not in self.mine


@caught_by("test_cancel_can_be_repeated")
class RaisesAtTheCancelOfAnEndingApp(_KnowsItsApps):
    def _cancel_existing(self, app_id: str) -> None:
        if app_id in self.mine and (self._dir(app_id) / "cancel").exists() and not self._has_ended(app_id):
            raise SchedulerRejectedError(f"{app_id!r} is ending")
        super()._cancel_existing(app_id)


@caught_by("test_cancel_can_be_repeated", "test_cancel_after_the_end_changes_nothing")
class RaisesAtTheCancelOfAnEndedApp(_KnowsItsApps):
    def _cancel_existing(self, app_id: str) -> None:
        if self._has_ended(app_id):
            raise SchedulerRejectedError(f"{app_id!r} has ended")
        super()._cancel_existing(app_id)


@caught_by("test_cancel_of_an_unknown_app_does_nothing")
class RaisesAtTheCancelOfUnknownApps(Threads):
    def cancel(self, app_id: str) -> None:
        if not self.exists(app_id):
            raise UnknownAppException(app_id)
        super().cancel(app_id)


@caught_by("test_cancel_returns_at_once")
class CancelWaitsForTheEnd(Threads):
    def cancel(self, app_id: str) -> None:
        super().cancel(app_id)
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline and (found := self.describe(app_id)) and not is_terminal(found.state):
            time.sleep(0.1)


class _Killer(AppThread):
    def _stop_all(self) -> None:
        self.request["grace_s"] = -1
        super()._stop_all()


@caught_by("test_a_program_that_ignores_the_end_is_killed_after_its_grace", "test_a_cancelled_program_can_clean_up")
class IgnoresTheGraceOption(Threads):
    app_thread = _Killer


# ---- delete and list -----------------------------------------------------------------------------------------


@caught_by("test_delete_removes_an_ended_app", "test_what_was_taken_of_an_app_can_be_removed_at_once")
class DeleteLeavesTheRecord(Threads):
    timeout_s = 4

    def _delete_existing(self, app_id: str) -> None:
        self._cancel_existing(app_id)


@caught_by("test_delete_removes_an_ended_app")
class ListsDeletedApps(Threads):
    deleted: ClassVar[set[str]] = set()

    def _delete_existing(self, app_id: str) -> None:
        self.deleted.add(app_id)
        super()._delete_existing(app_id)

    def list(self, cfg: Any = None) -> list[ListAppResponse]:
        return [*super().list(cfg), *(ListAppResponse(app_id, AppState.UNKNOWN) for app_id in self.deleted)]


@caught_by("test_a_sweep_removes_what_ended_long_ago")
class ListsNoTimeOfLaunch(Threads):
    def list(self, cfg: Any = None) -> list[ListAppResponse]:
        return [dataclasses.replace(row, created_at=None) for row in super().list(cfg)]


@caught_by("test_delete_ends_a_live_app")
class DeletesTheRecordOnly(Threads):
    timeout_s = 4

    def _delete_existing(self, app_id: str) -> None:
        # Keep a copy for the thread, so that it does not fail.
        app_dir = self._dir(app_id)
        (app_dir / "request.json").unlink()


@caught_by("test_delete_leaves_nothing_in_the_engine[ended]", "test_delete_leaves_nothing_in_the_engine[live]")
class DeletesIntoABin(Threads):
    """A trash folder that is never emptied."""

    timeout_s = 4

    def _delete_existing(self, app_id: str) -> None:
        self._cancel_existing(app_id)
        until(lambda: not (self._dir(app_id) / "lock").exists() or self._has_ended(app_id), 4, "it ends")
        with contextlib.suppress(FileNotFoundError):
            self._dir(app_id).rename(self.root / f".{app_id}.deleted")

    def _has_ended(self, app_id: str) -> bool:
        found = self.describe(app_id)
        return found is None or is_terminal(found.state)


@caught_by("test_delete_can_be_repeated_and_ignores_unknown_apps")
class OnlyCancels(Threads):
    timeout_s = 4
    _delete_existing = Scheduler._delete_existing


@caught_by("test_delete_can_be_repeated_and_ignores_unknown_apps")
class RaisesAtTheDeleteOfUnknownApps(Threads):
    def delete(self, app_id: str) -> None:
        if not self.exists(app_id):
            raise UnknownAppException(app_id)
        super().delete(app_id)


class _DeletesLate(Threads):
    """An engine that needs a moment to remove an app."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.deleted: set[str] = set()

    def _delete_existing(self, app_id: str) -> None:
        self.deleted.add(app_id)
        threading.Timer(0.5, super()._delete_existing, [app_id]).start()


@caught_by("test_delete_can_be_repeated_and_ignores_unknown_apps")
class RaisesAtTheDeleteOfAnAppThatIsRemoved(_DeletesLate):
    def _delete_existing(self, app_id: str) -> None:
        if app_id in self.deleted:
            raise SchedulerRejectedError(f"{app_id!r} is being removed")
        super()._delete_existing(app_id)


@caught_by("test_delete_can_be_repeated_and_ignores_unknown_apps")
class RaisesAtTheDeleteOfARemovedApp(_DeletesLate):
    def delete(self, app_id: str) -> None:
        if app_id in self.deleted and not self.exists(app_id):
            raise UnknownAppException(app_id)
        super().delete(app_id)


@caught_by("test_delete_can_be_repeated_and_ignores_unknown_apps")
class RaisesAtTheDeleteOfAnAppThatNeverWas(_DeletesLate):
    def delete(self, app_id: str) -> None:
        if app_id not in self.deleted and not self.exists(app_id):
            raise UnknownAppException(app_id)
        super().delete(app_id)


@caught_by("test_id_of_a_deleted_app_can_be_used_again")
class RemembersTheEndOfDeletedApps(Threads):
    ends: ClassVar[dict[str, Any]] = {}

    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        for app_id, response in found.items():
            if response and is_terminal(response.state):
                found[app_id] = self.ends.setdefault(app_id, response)
        return found


@caught_by("test_list_shows_each_app_once")
class ListsEachReplica(Threads):
    def list(self, cfg: Any = None) -> list[ListAppResponse]:
        rows = super().list(cfg)
        found = self.describe_many([row.app_id for row in rows])
        return [row for row in rows for role in found[row.app_id].roles_statuses for _ in role.replicas]  # type: ignore[union-attr]


@caught_by("test_list_shows_each_app_once")
class ListsLiveAppsOnly(Threads):
    def list(self, cfg: Any = None) -> list[ListAppResponse]:
        return [row for row in super().list(cfg) if not is_terminal(row.state)]


@caught_by("test_the_list_names_the_task_of_an_app")
class ListsAppsWithoutTheirTasks(Threads):
    def list(self, cfg: Any = None) -> list[ListAppResponse]:
        return [dataclasses.replace(row, owner={}) for row in super().list(cfg)]


# ---- state ---------------------------------------------------------------------------------------------------


@caught_by(
    "test_describe_of_an_unknown_app_is_none[contract-never-launched]",
    "test_describe_many_separates_known_and_unknown_apps",
    "test_describe_many_gives_each_app_its_own_answer",
)
class TellsUnknownAppsAsUnknown(Threads):
    timeout_s = 4

    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        return {app_id: found[app_id] or DescribeAppResponse(app_id, AppState.UNKNOWN) for app_id in found}


@caught_by("test_describe_of_an_unknown_app_raises_nothing")
class RaisesForUnknownApps(Threads):
    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        for app_id, response in found.items():
            if response is None:
                raise UnknownAppException(app_id)
        return found


@caught_by("test_describe_of_an_unknown_app_is_none[../../etc]")
class RefusesOddIds(Threads):
    def describe_many(self, app_ids: Any) -> Any:
        ids = [*app_ids]
        if not all(_APP_ID.fullmatch(app_id) for app_id in ids):
            raise InvalidAppError("no such id")
        return super().describe_many(ids)


@caught_by("test_a_path_that_leads_to_an_app_is_not_its_name")
class TakesIdsForPaths(Threads):
    def describe_many(self, app_ids: Any) -> Any:
        names = {app_id: Path(app_id).name for app_id in app_ids}
        found = super().describe_many(names.values())
        return {app_id: found[name] for app_id, name in names.items()}


@caught_by("test_describe_many_separates_known_and_unknown_apps", "test_describe_many_gives_each_app_its_own_answer")
class OneUnknownAppHidesAll(Threads):
    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        return dict.fromkeys(found) if None in found.values() else found


@caught_by("test_a_terminal_state_is_final[exit 0]", "test_a_terminal_state_is_final[exit 3]")
class GoesBackFromTheEnd(ChangesWhatIsTold):
    """Reads the process list and the record one after the other."""

    polls: ClassVar[int] = 0

    def reported(self, found: DescribeAppResponse) -> None:
        if is_terminal(found.state):
            GoesBackFromTheEnd.polls += 1
            if self.polls % 10 == 9:
                found.state = AppState.RUNNING


@caught_by("test_a_terminal_state_is_final[exit 3]", "test_a_terminal_state_is_final[exec sleep 300]")
class TellsEveryObserverAnotherEnd(ChangesWhatIsTold):
    observers: ClassVar[int] = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        TellsEveryObserverAnotherEnd.observers += 1
        self.end = [AppState.FAILED, AppState.CANCELLED][self.observers % 2]

    def reported(self, found: DescribeAppResponse) -> None:
        if is_terminal(found.state):
            found.state = self.end


class _Trusting(AppThread):
    def _note_stop(self, replica: Any) -> None:
        pass


@caught_by("test_an_app_stopped_from_outside_is_not_a_success")
class TakesAStopForSuccess(Threads):
    app_thread = _Trusting


class _WithAHelper(AppThread):
    has_helper = False

    def _publish(self, state: str, msg: str) -> None:
        if not self.has_helper:
            self.has_helper = True
            env = self.request["replicas"][0]["env"]
            subprocess.Popen(["sleep", "15"], env=env, stdin=subprocess.DEVNULL, start_new_session=True)
        super()._publish(state, msg)


@caught_by(
    "test_a_failed_replica_ends_its_peers[obedient]",
    "test_cancel_ends_a_running_app",
    "test_cancel_right_after_schedule_ends_the_app",
    "test_a_program_that_ignores_the_end_is_killed_after_its_grace",
    "test_delete_ends_a_live_app",
    "test_delete_leaves_nothing_in_the_engine[live]",
    "test_schedule_after_cancel_runs_nothing_again",
    "test_another_process_cancels_the_app",
    "test_an_app_that_has_not_started_in_time_is_cancelled",
)
class LeavesItsHelperAlone(Threads):
    """Starts a program of its own for each app, and reports correct ends, but does not end that program."""

    timeout_s = 4
    app_thread = _WithAHelper


@caught_by("test_closing_a_scheduler_leaves_its_apps_alone", "test_another_process_follows_the_app_to_its_end")
class CloseCancelsItsApps(Threads):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mine: list[str] = []

    def schedule(self, dryrun_info: Any) -> str:
        self.mine.append(super().schedule(dryrun_info))
        return self.mine[-1]

    def close(self) -> None:
        for app_id in self.mine:
            self.cancel(app_id)


@caught_by("test_closing_a_scheduler_leaves_its_apps_alone")
class ClosesOnceOnly(Threads):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


@caught_by("test_an_end_that_is_reported_need_not_be_asked_for")
class TellsOfNoEnd(Threads):
    timeout_s = 4

    def await_end(self, app_id: str, timeout_s: float) -> bool:
        time.sleep(timeout_s)
        return False
