"""Defects in outages and losses of apps, and costs that grow with the number of apps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_launch.schedulers.api import DescribeAppResponse, ListAppResponse, LogChunk
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.testing.example_scheduler import AppThread
from tests.contract.broken.defects import Local, Threads, caught_by

UNREACHABLE = "test_unreachable_is_an_error_and_never_an_answer"


class _AnswersForItself(Threads):
    """Base of schedulers that invent an answer if the engine does not answer."""

    def answer(self, app_id: str) -> DescribeAppResponse | None:
        raise NotImplementedError

    def describe_many(self, app_ids: Any) -> Any:
        ids = [*app_ids]
        try:
            return super().describe_many(ids)
        except SchedulerUnavailableError:
            return {app_id: self.answer(app_id) for app_id in ids}


@caught_by(f"{UNREACHABLE}[describe]", f"{UNREACHABLE}[describe_many]", f"{UNREACHABLE}[exists]")
class SaysRunningWhenUnreachable(_AnswersForItself):
    def answer(self, app_id: str) -> DescribeAppResponse:
        return DescribeAppResponse(app_id, AppState.RUNNING)


@caught_by(
    f"{UNREACHABLE}[describe]",
    f"{UNREACHABLE}[exists]",
    f"{UNREACHABLE}[cancel]",
    f"{UNREACHABLE}[delete]",
)
class SaysNoSuchAppWhenUnreachable(_AnswersForItself):
    def answer(self, app_id: str) -> None:
        return None


@caught_by(f"{UNREACHABLE}[describe]", "test_a_follower_bridges_an_outage")
class SaysFailedWhenUnreachable(_AnswersForItself):
    def answer(self, app_id: str) -> DescribeAppResponse:
        return DescribeAppResponse(app_id, AppState.FAILED)


@caught_by(f"{UNREACHABLE}[describe]")
class SaysUnknownWhenUnreachable(_AnswersForItself):
    def answer(self, app_id: str) -> DescribeAppResponse:
        return DescribeAppResponse(app_id, AppState.UNKNOWN)


@caught_by(f"{UNREACHABLE}[list]", f"{UNREACHABLE}[read_logs]", f"{UNREACHABLE}[log_iter]")
class SaysNothingWhenUnreachable(Threads):
    def list(self, cfg: Any = None) -> list[ListAppResponse]:
        try:
            return super().list(cfg)
        except SchedulerUnavailableError:
            return []

    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        try:
            return super().read_logs(*args, **kwargs)
        except SchedulerUnavailableError:
            return LogChunk([], None)


@caught_by(f"{UNREACHABLE}[describe_native]", f"{UNREACHABLE}[result]")
class HasNothingWhenUnreachable(Local):
    def describe_native(self, app_id: str) -> Any:
        try:
            return super().describe_native(app_id)
        except SchedulerUnavailableError:
            return None

    def result(self, app_id: str) -> Any:
        try:
            return super().result(app_id)
        except SchedulerUnavailableError:
            return None


@caught_by(f"{UNREACHABLE}[describe]")
class RaisesTheErrorOfTheSystemWhenUnreachable(Threads):
    def _reached(self) -> Path:
        # Rename the whole root, because a root without apps is not an outage.
        list(self.root.iterdir())
        return self.root


@caught_by("test_an_app_that_could_not_be_launched_is_launched_by_the_same_call")
class TakesAFailedLaunchForALaunch(Threads):
    launched: ClassVar[set[str]] = set()

    def schedule(self, dryrun_info: Any) -> str:
        app_id = str(dryrun_info.request["app_id"])
        if app_id in self.launched:
            return app_id
        self.launched.add(app_id)
        return super().schedule(dryrun_info)


class _Nervous(AppThread):
    def _is_cancelled(self) -> bool:
        return super()._is_cancelled() or not (self.dir.parents[1] / "root").exists()


class _Forgetful(AppThread):
    def _check_programs(self) -> bool:
        before = [dict(replica) for replica in self.replicas]
        news = super()._check_programs()
        if not (self.dir.parents[1] / "root").exists():
            for replica, was in zip(self.replicas, before, strict=True):
                if "exit_code" in replica and "exit_code" not in was:
                    replica |= {"state": "FAILED", "exit_code": 137, "reason": "SIGKILL"}
        return news


@caught_by("test_what_happened_meanwhile_is_reported_afterwards")
class TakesWhatEndedMeanwhileForKilled(Threads):
    """Loses the cause of the end: it is missing in the next answer."""

    app_thread = _Forgetful


@caught_by("test_what_happened_meanwhile_is_reported_afterwards", "test_a_follower_bridges_an_outage")
class EndsItsAppsWhenUnreachable(Threads):
    app_thread = _Nervous


@caught_by(f"{UNREACHABLE}[describe]")
class NeverConnectsAgain(Threads):
    lost = False

    def _reached(self) -> Path:
        if self.lost:
            raise SchedulerUnavailableError("the connection is lost")
        try:
            return super()._reached()
        except SchedulerUnavailableError:
            self.lost = True
            raise


# ---- losses --------------------------------------------------------------------------------------------------

LOST = "test_an_app_that_was_lost_is_unknown"


class _TellsOfTheLost(Threads):
    """Base of schedulers that invent the state of a lost app."""

    timeout_s = 5

    def reported(self, app_id: str) -> DescribeAppResponse | None:
        raise NotImplementedError

    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        lost = [app_id for app_id, response in found.items() if response and response.state is AppState.UNKNOWN]
        return found | {app_id: self.reported(app_id) for app_id in lost}


@caught_by(LOST)
class SaysFailedWhenLost(_TellsOfTheLost):
    def reported(self, app_id: str) -> DescribeAppResponse:
        return DescribeAppResponse(app_id, AppState.FAILED)


@caught_by(LOST)
class SaysRunningWhenLost(_TellsOfTheLost):
    def reported(self, app_id: str) -> DescribeAppResponse:
        return DescribeAppResponse(app_id, AppState.RUNNING)


@caught_by(LOST)
class SaysNoSuchAppWhenLost(_TellsOfTheLost):
    def reported(self, app_id: str) -> None:
        return None


@caught_by(LOST)
class SaysFailedFirstWhenLost(_TellsOfTheLost):
    """Reports a missing program as failed, and corrects that at the next poll."""

    polls = 0

    def reported(self, app_id: str) -> DescribeAppResponse:
        self.polls += 1
        return DescribeAppResponse(app_id, AppState.FAILED if self.polls == 1 else AppState.UNKNOWN)


@caught_by(LOST)
class LaunchesTheLostAgain(Threads):
    def schedule(self, dryrun_info: Any) -> str:
        app_id = str(dryrun_info.request["app_id"])
        if not (self.root / app_id / "state.json").exists():
            self._delete_existing(app_id)
            while self.exists(app_id):
                time.sleep(0.02)
        return super().schedule(dryrun_info)


# ---- costs ---------------------------------------------------------------------------------------------------


@caught_by("test_many_apps_cost_what_one_costs")
class AsksOncePerApp(Threads):
    def describe_many(self, app_ids: Any) -> Any:
        return {app_id: super(AsksOncePerApp, self).describe_many([app_id])[app_id] for app_id in app_ids}


@caught_by("test_running_apps_cost_what_one_costs")
class AsksOncePerLiveApp(Threads):
    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        live = [app_id for app_id, response in found.items() if response and not is_terminal(response.state)]
        return found | {app_id: super(AsksOncePerLiveApp, self).describe_many([app_id])[app_id] for app_id in live}


@caught_by("test_many_apps_cost_what_one_costs")
class ListsOnePage(Threads):
    def list(self, cfg: Any = None) -> list[ListAppResponse]:
        return super().list(cfg)[:10]


@caught_by("test_describe_many_of_nothing_is_nothing")
class TakesNoneForAll(Threads):
    def describe_many(self, app_ids: Any) -> Any:
        return super().describe_many([*app_ids] or ["all"])


@caught_by("test_describe_many_gives_each_app_its_own_answer")
class GivesEachAppTheFirstAnswer(Threads):
    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        return dict.fromkeys(found, next(iter(found.values()), None))
