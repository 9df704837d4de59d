"""Defects in ids, in adoption, and in calls of other processes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from airflow_provider_launch.schedulers.api import Capability, LogChunk, spec_hash
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    InvalidAppError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.testing._base import until
from airflow_provider_launch.testing.example_scheduler import AppThread
from tests.contract.broken.defects import Local, Threads, caught_by


@caught_by("test_apps_without_an_id_get_different_ones")
class DerivesTheIdFromTheName(Threads):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        return super()._submit_dryrun(app, cfg, app_id=app_id or f"{app.name}-1")


@caught_by("test_another_process_sees_the_app", "test_another_process_cancels_the_app")
class PutsASlashIntoIds(Threads):
    """Changes ids so that handles cannot be parsed: the id is the part after the last slash."""

    timeout_s = 4

    def schedule(self, dryrun_info: Any) -> str:
        return f"here/{super().schedule(dryrun_info)}"

    def describe_many(self, app_ids: Any) -> Any:
        names = {app_id: app_id.partition("/")[2] for app_id in app_ids}
        found = super().describe_many(names.values())
        return {app_id: found[name] for app_id, name in names.items()}

    def _dir(self, app_id: str) -> Path:
        return super()._dir(app_id.partition("/")[2])


class PrintsWhatItDoes(Threads):
    """Not broken: it prints to stdout, and so do its programs."""

    def schedule(self, dryrun_info: Any) -> str:
        print("about to schedule")  # noqa: T201 - as authors do it
        subprocess.run(["echo", "logged in"], check=True)
        return super().schedule(dryrun_info)


class AdoptsNothing(Threads):
    """Not broken: it promises nothing about an id that is used twice."""

    capabilities = promised = Threads.capabilities - {Capability.ADOPT}


@caught_by("test_id_that_the_engine_cannot_take_is_refused")
class ChangesOddIds(Threads):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        valid = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in app_id or "")
        return super()._submit_dryrun(app, cfg, app_id=valid[:100].strip("-") or None)


@caught_by("test_id_of_the_operator_is_taken")
class TakesShortIdsOnly(Threads):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        if len(app_id or "") > 30:
            raise InvalidAppError(f"app id {app_id!r} is too long; use up to 30 characters")
        return super()._submit_dryrun(app, cfg, app_id=app_id)


@caught_by("test_same_id_with_another_option_is_a_conflict")
class ComparesAppsOnly(Threads):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        info.request["spec_hash"] = spec_hash(app, {})
        return info


class _SeesItDeleted(Threads):
    """Base of defects of a submission during which the app is deleted."""

    timeout_s = 10

    def schedule(self, dryrun_info: Any) -> str:
        app_id = super().schedule(dryrun_info)
        until(lambda: self.describe(app_id) is None, self.timeout_s, "it is deleted")
        return self.resume(dryrun_info)

    def resume(self, dryrun_info: Any) -> str:
        raise NotImplementedError


@caught_by("test_an_app_that_is_deleted_while_it_is_submitted_stays_deleted")
class TakesADeletionForAnOutage(_SeesItDeleted):
    def resume(self, dryrun_info: Any) -> str:
        raise SchedulerUnavailableError(f"{dryrun_info.request['app_id']!r} was deleted; submit it again")


@caught_by("test_an_app_that_is_deleted_while_it_is_submitted_stays_deleted")
class LaunchesAgainWhatWasDeleted(_SeesItDeleted):
    def resume(self, dryrun_info: Any) -> str:
        return Threads.schedule(self, dryrun_info)


class RejectsWhatWasDeleted(_SeesItDeleted):
    """As the interface allows, so this is not a defect."""

    def resume(self, dryrun_info: Any) -> str:
        raise SchedulerRejectedError(f"{dryrun_info.request['app_id']!r} was deleted while it was submitted")


@caught_by("test_an_app_that_is_deleted_while_it_is_submitted_stays_deleted")
class LaunchesNothing(Threads):
    """The launch fails before another user can delete its app."""

    def schedule(self, dryrun_info: Any) -> str:
        raise SchedulerRejectedError("the quota is used up")


class _SecondLife(AppThread):
    """Runs an app a second time without reporting it."""

    def _publish(self, state: str, msg: str) -> None:
        # Two writers of one file could leave a broken document, which is another defect.
        pass


@caught_by(
    "test_schedule_twice_starts_once",
    "test_racing_threads_start_one_app",
    "test_racing_processes_start_one_app",
    "test_schedule_after_the_end_runs_nothing_again",
    "test_schedule_after_cancel_runs_nothing_again",
)
class EachScheduleStarts(Threads):
    timeout_s = 4

    def schedule(self, dryrun_info: Any) -> str:
        app_id = super().schedule(dryrun_info)
        app_dir = self._dir(app_id)
        with (app_dir / "calls").open("a") as calls:
            calls.write("x")
            calls.flush()
            if calls.tell() > 1:
                (app_dir / "cancel").unlink(missing_ok=True)
                again = _SecondLife(app_dir.resolve(), dryrun_info.request, Path(os.devnull).open())  # noqa: SIM115 - closed by the thread
                threading.Thread(target=again.run).start()
                # Otherwise the app may be reported as cancelled before its second run has started.
                starts = app_dir / "started"
                until(lambda: starts.exists() and len(starts.read_text().split()) > 1, 2.0, "it starts again")
        return app_id


@caught_by("test_racing_threads_start_one_app", "test_racing_processes_start_one_app")
class LooksBeforeItStarts(Threads):
    """Starts or adopts by an earlier check, although another process may have started the app since."""

    timeout_s = 8

    def schedule(self, dryrun_info: Any) -> str:
        was_there = self.exists(dryrun_info.request["app_id"])
        time.sleep(0.1)
        app_id = super().schedule(dryrun_info)
        try:
            (self._dir(app_id) / "taken").touch(exist_ok=was_there)
        except FileExistsError:
            again = _SecondLife(self._dir(app_id).resolve(), dryrun_info.request, Path(os.devnull).open())  # noqa: SIM115 - closed by the thread
            threading.Thread(target=again.run).start()
        return app_id


@caught_by("test_same_id_with_another_app_is_a_conflict")
class AdoptsAnyApp(Threads):
    def schedule(self, dryrun_info: Any) -> str:
        try:
            return super().schedule(dryrun_info)
        except AppConflictError:
            return str(dryrun_info.request["app_id"])


@caught_by("test_same_id_with_another_app_is_a_conflict")
class ComparesProgramsOnly(Threads):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        info.request["spec_hash"] = repr([(role.entrypoint, role.args) for role in app.roles])
        return info


@caught_by("test_same_id_with_another_option_is_a_conflict")
class ComparesNoOptions(Local):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        info.request = dataclasses.replace(info.request, spec_hash=hashlib.sha256(repr(app).encode()).hexdigest())
        return info


@caught_by("test_what_the_launcher_injects_is_no_conflict")
class ComparesWhatTheLauncherInjects(Threads):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        info.request["spec_hash"] = hashlib.sha256(json.dumps(info.request["app"]).encode()).hexdigest()
        return info


@caught_by(
    "test_another_process_sees_the_app",
    "test_another_process_follows_the_app_to_its_end",
    "test_another_process_cancels_the_app",
)
class KeepsItsAppsInMemory(Threads):
    timeout_s = 4
    mine: ClassVar[set[str]] = set()

    def schedule(self, dryrun_info: Any) -> str:
        self.mine.add(dryrun_info.request["app_id"])
        return super().schedule(dryrun_info)

    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        return {app_id: found[app_id] if app_id in self.mine else None for app_id in found}


@caught_by("test_an_app_outlives_the_process_that_launched_it")
class EndsItsAppsWithItsProcess(Local):
    def schedule(self, dryrun_info: Any) -> str:
        app_id = super().schedule(dryrun_info)
        script = f"while kill -0 {os.getpid()}; do sleep 0.1; done; touch '{self.root}/apps/{app_id}/cancel'"
        subprocess.Popen(
            ["timeout", "10", "sh", "-c", script],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        return app_id


@caught_by("test_one_scheduler_serves_several_threads")
class IsForOneThread(Threads):
    def read_logs(self, app_id: str, *args: Any, **kwargs: Any) -> LogChunk:
        self.app_id = app_id
        time.sleep(0.01)
        return super().read_logs(self.app_id, *args, **kwargs)
