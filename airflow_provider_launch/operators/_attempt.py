"""The app of one try: adopted from an earlier try or launched, recorded for the next one, and cancelled on a kill."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._airflow import conf
from airflow_provider_launch._task import metrics
from airflow_provider_launch._task.cancel_on_kill import AppKilledError
from airflow_provider_launch._task.places import copied_variables
from airflow_provider_launch._task.secrets import shown_request
from airflow_provider_launch.hooks.task_states import deployment_id
from airflow_provider_launch.links.launch import show_request
from airflow_provider_launch.operators._earlier import EarlierApps, with_counts
from airflow_provider_launch.operators._record import KILLED, NextStep, Record, RecordStore, app_id_for, next_step
from airflow_provider_launch.schedulers.api import Capability, spec_hash
from airflow_provider_launch.specs.errors import AppConflictError, AppUnavailableError, LaunchError
from airflow_provider_launch.specs.handles import make_app_handle, parse_app_handle
from airflow_provider_launch.specs.owner import DEPLOYMENT, TaskKey, owner_of, task_of
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.util.strings import folded
from airflow_provider_launch.util.untrusted import clean_text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_launch._task.cancel_on_kill import CancelThread
    from airflow_provider_launch._task.places import Place
    from airflow_provider_launch._task.task_run import OutageRetry
    from airflow_provider_launch.hooks.launch import LaunchHook
    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler
    from airflow_provider_launch.specs.dryrun import AppDryRunInfo
    from airflow_provider_launch.specs.roles import AppDef

# A log line must stay below 64 KB; Airflow cuts stored rendered fields far earlier.
_SHOWN_CHARS = 16_000
_KILLED_CANCEL_S = 3.0


class Attempt:
    """The app of one try.

    Args:
        operator: the task of the DAG, rendered.
        context: the context of the task.
        hook: connects to the scheduler.
        killer: cancels the current app when the task is killed.
        retry: calls the scheduler, retrying during an outage.
    """

    def __init__(
        self, operator: LaunchAppOperator, context: Context, hook: LaunchHook, killer: CancelThread, retry: OutageRetry
    ) -> None:
        self._op = operator
        self._context = context
        self._ti: Any = context["ti"]
        self._hook = hook
        self._killer = killer
        self._retry = retry
        self._log = operator.log
        self._records = RecordStore(context.get("task_state_store"))
        self._record: Record | None = None
        self.copied: dict[str, dict[str, str]] = {}
        """The variables of the worker that the replicas of each role get, if this try has made the request."""
        self.adopted: DescribeAppResponse | None = None
        """Status of the app when this try adopted it. None if this try has launched it."""
        self.is_of_earlier_try = False
        """Whether an earlier try has launched the app; its values may differ from those of this try."""
        self.value: dict[str, Any] | None = None
        """Return value of the last try, if its app has succeeded and was removed."""
        self.has_succeeded = False
        """Whether the app has succeeded; then a kill does not cancel it."""

    @property
    def app_id(self) -> str:
        """The current app; empty if there is none yet."""
        return "" if self._record is None else self._record.app_id

    @property
    def handle(self) -> str:
        """The handle of the current app; empty if there is none yet."""
        return "" if self._record is None else self._handle_of(self._record)

    @property
    def since(self) -> float | None:
        """Epoch seconds of the first submission of the current app; None if unknown."""
        return (self._record.since or None) if self._record is not None else None

    @property
    def places(self) -> list[Place] | None:
        """The locations of secrets in the current app; None if unknown."""
        return self._record.places if self._record is not None else None

    @property
    def is_persistent(self) -> bool:
        """Whether another try can load what is saved."""
        return self._records.is_persistent

    @property
    def _backend(self) -> str:
        return self._hook.options.backend

    @property
    def _scheduler(self) -> Scheduler[Any]:
        return self._hook.scheduler

    # ---- acquire ---------------------------------------------------------------------------------------------

    def acquire(self, app: AppDef, cfg: Mapping[str, Any], places: list[Place]) -> str:
        """Adopt the app of an earlier try or launch one, and return its handle.

        Args:
            app: the app to launch.
            cfg: options for a launch.
            places: the locations of its secrets.
        """
        app = with_counts(app, self._context, self._op.retries, time.time())
        # An app that was launched before an upgrade to Airflow 3.3 has no record either.
        last = self._records.load() or self._without_record()
        run, ti = self._context["dag_run"], self._ti
        clear_number = int(getattr(run, "clear_number", 0) or 0)
        max_tries = int(getattr(ti, "max_tries", -1))
        retries = int(self._op.retries or 0)
        digest = spec_hash(app, cfg)
        step = next_step(last, clear_number, max_tries, retries)
        # The app of a killed try was asked to end, and may still have its grace time and its checkpoint directory.
        is_ending = last is not None and step is NextStep.LAUNCH and last.outcome == AppKilledError.__name__
        replaces = NextStep.REPLACE if is_ending else step
        if last is not None and replaces is NextStep.REPLACE and self._may_use(last, replaces):
            self._cancel_replaced(last)
        if last is not None and step is NextStep.RESUME and self._may_use(last, step):
            # If there was a clear since then, it was a clear of another task of the run.
            last = dataclasses.replace(
                last, clear_number=clear_number, max_tries=max_tries, retries=retries, outcome=""
            )
            if (handle := self._resume(last, app, cfg, digest, places)) is not None:
                return handle
        # Without a store the ids follow the number of the try, so that the next try finds them.
        number = last.attempt + 1 if last is not None and self.is_persistent else max(0, int(ti.try_number) - 1)
        record = Record(
            number, self._own_id(number), digest, self._hook.options.identity, clear_number, "intent",
            max_tries=max_tries, retries=retries, places=places,
        )  # fmt: skip
        return self._launch(app, cfg, record)

    def _without_record(self) -> Record | None:
        """Return the record of the last try as a store would have it, and cancel older apps of the task."""
        last, replaced = self._earlier_apps().find()
        for each in replaced:
            self._cancel_replaced(each)
        return last

    def _earlier_apps(self) -> EarlierApps:
        return EarlierApps(self._op, self._context, self._hook, self._retry, self._own_id, self._await_end_of)

    def _own_id(self, number: int) -> str:
        """Return the id of the app of this launch."""
        start = str(self._context["dag_run"].start_date or "")
        return app_id_for(**TaskKey.of(self._ti)._asdict(), run_start=start, attempt=number)

    def _may_use(self, record: Record, step: NextStep) -> bool:
        """Return whether the recorded app is on this scheduler and belongs to the task."""
        if not self._is_here(record, step):
            return False
        if is_own := self._is_own(record):
            return True
        text = f"the record of an earlier try names app {record.app_id!r}, which does not belong to this task"
        if is_own is None or step is NextStep.REPLACE:
            self._log.warning("%s; it is ignored", text)
            return False
        raise LaunchError(f"{text}; clear the task to launch again")

    def _is_own(self, record: Record) -> bool | None:
        """Return whether the recorded app belongs to the task, because users can edit the record.

        None if its id is not the id of the recorded launch, and no such app exists.
        """
        if record.app_id == self._own_id(record.attempt):
            return True
        # A clear may have changed the start of the run, which is part of the id; other schedulers choose the id.
        response = self._retry(self._scheduler.describe, record.app_id)
        return None if response is None else self._is_labelled(response)

    def _is_labelled(self, response: DescribeAppResponse | None) -> bool:
        """Return whether the labels of an app name the task."""
        owner = owner_of(response.metadata) if response is not None else {}
        return task_of(owner) == TaskKey.of(self._ti) and owner.get(DEPLOYMENT, "") in {"", deployment_id()}

    def _is_here(self, record: Record, step: NextStep) -> bool:
        """Return whether the connection still leads to the scheduler of the recorded app."""
        identity = self._hook.options.identity
        if record.identity == identity:
            return True
        if not record.is_open:
            return False
        text = (
            f"app {record.app_id} was launched on {record.identity!r}, "
            f"but connection {self._op.launch_conn_id!r} now means {identity!r}"
        )
        if step is NextStep.REPLACE:
            self._log.warning("%s; it cannot be cancelled from here and may be running", text)
            return False
        raise LaunchError(f"{text}; restore the connection, or clear the task to launch again")

    def _cancel_replaced(self, record: Record) -> None:
        """Cancel the app from before a clear or a kill, and wait for its end for a limited time."""
        # From here on a kill cancels this app.
        self._track(record)
        response = self._retry(self._scheduler.describe, record.app_id)
        if response is None or is_terminal(response.state):
            return
        cause = "cleared" if record.outcome != AppKilledError.__name__ else "killed"
        self._log.info("the task was %s: cancelling app %s, which is %s", cause, record.app_id, response.state)
        self._retry(self._scheduler.cancel, record.app_id)
        if self._op.kill_policy == "leave":
            # With other policies it was counted when the clear killed the task.
            metrics.count_cancelled(self._backend)
        if self._await_end(record.app_id) is None:
            self._log.warning(
                "app %s did not end within `[launch] replace_wait_s` after it was cancelled", record.app_id
            )

    def _resume(
        self, record: Record, app: AppDef, cfg: Mapping[str, Any], digest: str, places: list[Place]
    ) -> str | None:
        """Return the handle of the app of the last try; None if that app has ended and a new launch is due."""
        if record.value is not None:
            self._log.info("app %s of the last try has succeeded and was removed; its result was kept", record.app_id)
            self.value = record.value
            return self._handle_of(record)
        # From here on a kill cancels this app.
        self._track(record)
        adopts = Capability.ADOPT in self._scheduler.capabilities
        response = self._retry(self._scheduler.describe, record.app_id)
        if response is None and record.state != "intent":
            self._log.warning("app %s of the last try vanished: unknown outcome; launching again", record.app_id)
            return None
        if response is None and not adopts:
            self._warn_no_adopt("the last try may have launched an app that cannot be found")
        if response is not None and response.state in (AppState.FAILED, AppState.CANCELLED):
            self._log.info("app %s of the last try ended as %s; launching again", record.app_id, response.state)
            return None
        if response is None or (record.state == "intent" and not is_terminal(response.state) and adopts):
            # The submission did not happen, or may have been interrupted: submit again under the same id.
            again = dataclasses.replace(record, spec_hash=digest, places=places)
            return self._launch(app, cfg, again, intended=record)
        self._log.info("continuing with app %s of the last try, which is %s", record.app_id, response.state)
        # Empty: found without a record.
        if record.spec_hash not in ("", digest):
            self._log.warning("the DAG has changed since app %s was launched; it runs as it was then", record.app_id)
        handle = self._handle_of(record)
        self._op.request = f"adopted from an earlier try: {handle}"
        show_request(self._op, self._ti)
        self.adopted, self.is_of_earlier_try = response, True
        adopted = dataclasses.replace(record, state="scheduled", handle=handle)
        self._track(adopted)
        self._records.save(adopted)
        return handle

    def _launch(self, app: AppDef, cfg: Mapping[str, Any], record: Record, *, intended: Record | None = None) -> str:
        """Submit the app under the id of the record and return its handle.

        Args:
            app: the app.
            cfg: its options.
            record: of this launch.
            intended: the record of an earlier try, which may have submitted the app.
        """
        # The dry run starts nothing, so an invalid app leaves no trace; only a workspace needs an engine here.
        key, dryrun = TaskKey.of(self._ti), self._hook.runner.dryrun
        info = self._retry(dryrun, app, self._backend, cfg, parent_run_id=_run_of(key), app_id=record.app_id)
        # A build may have taken minutes.
        self._killer.check()
        self.is_of_earlier_try = intended is not None
        with contextlib.suppress(AppUnavailableError):  # roles of a plug-in may have another field of this name
            self.copied = copied_variables(info)
        self._show(info)
        adopts = Capability.ADOPT in self._scheduler.capabilities
        if not adopts:
            self._warn_no_adopt("a worker that dies during the launch may cause a second app")
        if intended is None:
            # The build of an image does not count as waiting for a start.
            record = dataclasses.replace(record, since=time.time())
        self._records.save(record)
        self._track(record)
        started_at = time.monotonic()
        try:
            # Do not retry an outage if a second submit may start a second app.
            schedule = self._hook.runner.schedule
            handle = self._retry(schedule, info) if adopts else schedule(info)
        except AppConflictError:
            # An earlier try has submitted the app under this id, and the DAG has changed since.
            if intended is None or not self._is_labelled(self._retry(self._scheduler.describe, record.app_id)):
                # It belongs to another task, so that no kill or error may cancel it.
                self._record, self._killer.app_id = None, ""
                raise
            handle = self._handle_of(record)
            record = dataclasses.replace(record, places=intended.places)
            self._log.warning("an earlier try launched %s from another version of the DAG; following it", handle)
        metrics.seconds("submit", time.monotonic() - started_at, backend=self._backend)
        metrics.count("apps_launched", backend=self._backend)
        app_id = parse_app_handle(handle).app_id
        launched = dataclasses.replace(record, app_id=app_id, state="scheduled", handle=handle)
        self._track(launched)
        self._killer.check()
        self._records.save(launched)
        # After the launch, so that the app does not wait for it and a kill finds the app recorded.
        show_request(self._op, self._ti)
        self._log.info("launched %s", handle)
        return handle

    def _handle_of(self, record: Record) -> str:
        # Not the recorded handle, which users can edit.
        return make_app_handle(self._backend, self._op.launch_conn_id, record.app_id)

    def _show(self, info: AppDryRunInfo[Any]) -> None:
        """Log the request, and its warnings, such as macros that are probably misspelled."""
        text = shown_request(info)
        self._op.request = clean_text(text)
        more = len(text) - _SHOWN_CHARS
        shown = f"{text[:_SHOWN_CHARS]}\n... and {more} more characters" if more > 0 else text
        for line in folded(f"Request to scheduler {self._backend}", shown):
            self._log.info("%s", line)
        for warning in info.warnings:
            self._log.warning("%s", warning)

    def _warn_no_adopt(self, consequence: str) -> None:
        self._log.warning("scheduler %s cannot adopt a running app: %s", self._backend, consequence)

    def rejoin(self, handle: str) -> str:
        """Continue with the app that the trigger has followed, and return its handle; empty if there is none.

        Args:
            handle: the handle in the event of the trigger. Empty if the trigger failed before it found the app, which
                may still be running.
        """
        record = self._records.load()
        if not handle and record is None:
            record = self._earlier_apps().newest()
        if not handle and record is not None and self._is_own(record):
            handle = self._handle_of(record)
        if handle:
            app_id = parse_app_handle(handle).app_id
            if record is None or record.app_id != app_id:
                record = Record(0, app_id, "", self._hook.options.identity, 0, "scheduled", handle)
            self._track(record)
        return handle

    # ---- record ----------------------------------------------------------------------------------------------

    def _track(self, record: Record) -> None:
        """Make an app the current one, so that a kill cancels it."""
        self._record, self._killer.app_id = record, record.app_id

    def save_value(self, value: dict[str, Any]) -> None:
        """Save the return value for the next try, in case this worker dies before Airflow records the success."""
        if self._record is not None:
            self._record = dataclasses.replace(self._record, value=value)
            self._records.save(self._record)

    def close(self, error: Exception) -> None:
        """Save for the next try that the app has ended, and how."""
        record = self._record
        if record is None:
            return
        status = getattr(error, "status", None)
        outcome = str(status.state) if status is not None else type(error).__name__
        # After a kill Airflow may refuse to store anything; the next try then finds an app that has ended.
        with contextlib.suppress(Exception):
            self._records.save(dataclasses.replace(record, state="closed", outcome=outcome))

    def _note_kill(self, record: Record) -> None:
        """Store the kill and keep the record open: if a clear caused the kill, the next try must replace the app."""
        with contextlib.suppress(Exception):
            self._records.save(dataclasses.replace(record, outcome=KILLED))

    # ---- cancel ----------------------------------------------------------------------------------------------

    def cancel_not_started(self, error: Exception) -> None:
        """Cancel the app that has not started in time, so that the next try launches again."""
        record = self._record
        if record is None:
            return
        is_asked = False
        try:
            self._retry(self._scheduler.cancel, record.app_id)
            is_asked = True
            state = self._await_end(record.app_id)
        except AppKilledError:
            if not is_asked:
                self.cancel_killed()
                return
            self._log.warning(
                "the task was killed while app %s was being cancelled; it may run for its grace time", record.app_id
            )
            self._note_kill(record)
            return
        except Exception as problem:  # noqa: BLE001 - the task fails anyway, and the remaining app is logged
            self._log.error(
                "app %s could not be cancelled: %s; cancel it, or it runs to its end", record.app_id, problem
            )
            return
        # It may have started just before the cancel: then the next try follows it, or uses its result.
        if state is None:
            self._log.warning("app %s was cancelled but has not ended yet; the next try will check it", record.app_id)
        elif state is AppState.SUCCEEDED:
            self._log.warning("app %s succeeded before it was cancelled; the next try uses its result", record.app_id)
        elif state is AppState.CANCELLED:
            metrics.count_cancelled(self._backend)
            self._log.warning("app %s did not start within its limit and was cancelled", record.app_id)
            self.close(error)
        else:
            self._log.warning("app %s started while it was being cancelled, and ended as %s", record.app_id, state)
            self.close(error)

    def _await_end_of(self, record: Record) -> AppState | None:
        """Wait for the end of an app that a kill may be ending; from here on another kill cancels it."""
        self._track(record)
        return self._await_end(record.app_id)

    def _await_end(self, app_id: str) -> AppState | None:
        """Wait for the end of a cancelled app and return its state; CANCELLED if it no longer exists.

        None if it has not ended within `[launch] replace_wait_s`.
        """
        deadline = time.monotonic() + conf.getfloat("launch", "replace_wait_s", fallback=60.0)
        was_missing = False
        while time.monotonic() < deadline:
            response = self._retry(self._scheduler.describe, app_id)
            # Asked twice, because an engine may omit an app for a moment.
            if response is None and was_missing:
                return AppState.CANCELLED
            was_missing = response is None
            if response is not None and is_terminal(response.state):
                return response.state
            self._killer.check()
            time.sleep(min(0.2, self._scheduler.poll_interval_s))
        return None

    def cancel_killed(self) -> None:
        """Cancel the app of a killed task, even if it was submitted after the cancel thread had finished."""
        record = self._record
        if record is None or self.has_succeeded:
            return
        if self._op.kill_policy == "leave":
            self._log.warning("the task was killed; app %s keeps running, because on_kill='leave'", record.app_id)
            self._note_kill(record)
            return
        error = self._killer.error
        deadline = time.monotonic() + _KILLED_CANCEL_S
        while True:
            try:
                self._scheduler.cancel(record.app_id)
            except Exception as problem:  # noqa: BLE001 - the task ends anyway, and the remaining app is logged
                error = problem
            else:
                if self._had_succeeded(record):
                    # The record stays open, so that a retry uses the result.
                    self._log.warning(
                        "the task was killed after app %s had succeeded; a retry returns its result", record.app_id
                    )
                    self._note_kill(record)
                    return
                self._log.warning("the task was killed; app %s was cancelled", record.app_id)
                metrics.count_cancelled(self._backend)
                self.close(AppKilledError("killed"))
                return
            if time.monotonic() >= deadline:
                break
            time.sleep(0.2)
        self._note_kill(record)
        self._log.error(
            "the task was killed, but app %s could not be cancelled: %s; cancel it, or it runs to its end",
            record.app_id,
            error,
        )

    def _had_succeeded(self, record: Record) -> bool:
        with contextlib.suppress(Exception):
            found = self._scheduler.describe(record.app_id)
            return found is not None and found.state == AppState.SUCCEEDED
        return False


def _run_of(key: TaskKey) -> str:
    """Return the id of the task's run, the parent of runs in trackers; it is the same in each try."""
    index = "" if key.map_index < 0 else f"/{key.map_index}"
    return f"airflow://{key.dag_id}/{key.run_id}/{key.task_id}{index}"
