"""One run of a `LaunchAppOperator`: from the memory of the last try to the outcome."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowSkipException, AirflowTaskTimeout, TaskDeferred

from airflow_provider_launch.hooks.arguments import check_log_roles, check_streams
from airflow_provider_launch.hooks.handover import Handover
from airflow_provider_launch.hooks.killing import AppKilledError, Killer
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.hooks.lineage import with_parent_run
from airflow_provider_launch.hooks.outcome import as_xcom, failure, first_failed
from airflow_provider_launch.hooks.patience import patiently
from airflow_provider_launch.links.launch import show_request
from airflow_provider_launch.operators.attempt import KILLED, Memory, Next, Record, app_id_for, next_step
from airflow_provider_launch.schedulers.api import Capability, Stream, spec_hash
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    AppStatusError,
    InvalidAppError,
    LaunchError,
    SchedulerUnavailableError,
    UnknownOutcomeError,
    UnsupportedError,
)
from airflow_provider_launch.specs.handles import make_app_handle, parse_app_handle
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.specs.states import AppState, is_terminal

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler
    from airflow_provider_launch.specs.dryrun import AppDryRunInfo
    from airflow_provider_launch.triggers.launch import AppStatusTrigger

__all__ = ["Launching"]

T = TypeVar("T")

# Airflow cuts what it stores of a rendered field far earlier; a log line must stay below 64 KB.
_SHOWN_CHARS = 16_000
_KILLED_CANCEL_S = 3.0


class Launching:
    """Works once, for one try of one task.

    Args:
        operator: what the DAG says, rendered.
        app: the checked app. None: only `resume` is called, for an app that was launched.
    """

    def __init__(self, operator: LaunchAppOperator, app: AppDef | None) -> None:
        self._op = operator
        self._app = app or AppDef("")
        self._ti: Any = None
        self._log = operator.log
        self._hook = LaunchHook.for_connection(operator.launch_conn_id)
        self._memory = Memory(None)
        self._record: Record | None = None
        self._succeeded = False

    @property
    def _backend(self) -> str:
        return self._hook.options.backend

    @property
    def _scheduler(self) -> Scheduler[Any]:
        return self._hook.scheduler

    def dry_run(self) -> str:
        """Return the request as text."""
        try:
            return str(self._hook.runner.dryrun(self._app, self._backend, self._cfg()))
        finally:
            self._hook.close()

    def run(self, context: Context) -> dict[str, Any]:
        """Return what XCom gets; raise whatever is not a success, or `TaskDeferred`."""
        return self._guarded(lambda: self._run(context, self._cfg()))

    def resume(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on where the trigger has stopped: tell the rest of the log, and return what XCom gets.

        Args:
            context: of the task.
            event: what `AppStatusTrigger` says.
        """
        return self._guarded(lambda: self._resumed(context, event))

    def _guarded(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        op = self._op
        # The killer's client is made when it is needed; reading the options now spares it a request to Airflow.
        _ = self._hook.options
        may_cancel = op.kill_policy == "cancel"
        killer = op._killer = Killer(self._hook.new_scheduler if may_cancel else None)  # noqa: SLF001 - `on_kill` finds it there
        try:
            value = work()
        except TaskDeferred:
            # The killer stays: a kill may come before Airflow has noted the deferral.
            self._hook.close()
            raise
        except BaseException as error:
            # No `Exception`: `execution_timeout` or an interrupt, raised by Airflow in the middle of anything.
            if isinstance(error, AppKilledError) or not isinstance(error, Exception):
                self._cancel_killed()
            self._close(killer)
            raise
        self._close(killer)
        return value

    def _close(self, killer: Killer) -> None:
        killer.close()
        self._hook.close()

    def _run(self, context: Context, cfg: dict[str, Any]) -> dict[str, Any]:
        began = time.time()
        self._check()
        check_streams(self._scheduler, self._op.streams)
        check_log_roles(self._app, self._op.log_roles)
        self._ti = context["ti"]
        self._app = with_parent_run(self._app, self._ti, self._log.warning)
        handle, response = self._obtain(context, cfg)
        # What is taken up may have written before.
        is_new = response is None
        if self._op.do_xcom_push:
            context["ti"].xcom_push("handle", handle)
        self._check()
        if not self._op.wait:
            return as_xcom(handle, response, roles=self._app.roles)
        if self._op.deferrable and (response is None or not is_terminal(response.state)):
            from airflow_provider_launch.triggers.checkpoint import begin_checkpoint

            begin_checkpoint(self._ti)
            self._op.defer(trigger=self._trigger(handle, began, is_new=is_new), method_name="resume")
        return self._conclude(handle, Handover(), is_new=is_new)

    def _resumed(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        self._ti = context["ti"]
        self._memory = Memory(context.get("task_state_store"))
        handle, why, text = (str(event.get(name) or "") for name in ("handle", "why", "text"))
        if not handle:
            raise LaunchError(f"the trigger did not find the app: {text}")
        app_id = parse_app_handle(handle).app_id
        handover = Handover.from_json(event)
        # Else the link would be empty when this worker is done.
        self._op.ui_url = handover.url
        record = self._memory.load()
        if record is None or record.app_id != app_id:
            record = Record(0, app_id, "", self._hook.options.identity, 0, "scheduled", handle)
        self._hold(record)
        # Else the field would lose what the first part of the task has shown.
        with contextlib.suppress(LaunchError):
            native = self._scheduler.describe_native(app_id)
            self._op.request = str(native) if native else None
        self._check()
        if why == "deadline":
            # As `execution_timeout` does on a worker; the cancel is repeated, in case that of the trigger failed.
            raise AirflowTaskTimeout(text)
        if why == "unreachable":
            raise SchedulerUnavailableError(text)
        if why == "error":
            self._log.warning("the trigger has given up (%s); following %s here", text, handle)
        lasts = conf.getboolean("launch", "trigger_logs_last", fallback=True)
        return self._conclude(handle, handover if lasts else Handover())

    def _conclude(self, handle: str, handover: Handover, *, is_new: bool = True) -> dict[str, Any]:
        try:
            value = self._follow(handle, handover, is_new=is_new)
        except (AppStatusError, AirflowSkipException, UnknownOutcomeError) as error:
            # After any other error the app may be running, or only its result not be readable: the next try looks.
            self._close_record(error)
            raise
        # The record stays open: should this worker die before Airflow knows of the success, the next try takes the
        # result; a clear is told by its number.
        self._check()
        return value

    def _trigger(self, handle: str, began: float, *, is_new: bool) -> AppStatusTrigger:
        # Only deferrable tasks need it, and only when they defer.
        from airflow_provider_launch.triggers.launch import AppStatusTrigger

        op = self._op
        limit = op.execution_timeout
        return AppStatusTrigger(
            handle,
            launch_conn_id=op.launch_conn_id,
            poll_interval_s=op.poll_interval_s,
            unavailable_for_s=op.unavailable_for_s,
            streams=None if op.streams is None else Stream(op.streams).value,
            log_roles=None if op.log_roles is None else list(op.log_roles),
            logs_from=op.logs_from,
            max_log_bytes=op.max_log_bytes,
            deadline=None if limit is None else began + limit.total_seconds(),
            cancels_at_deadline=op.kill_policy == "cancel",
            kill_policy=op.kill_policy,
            scheduled=is_new,
            known=not is_new,
        )

    # ---- launch or take up -----------------------------------------------------------------------------------

    def _obtain(self, context: Context, cfg: dict[str, Any]) -> tuple[str, DescribeAppResponse | None]:
        """Return the handle of the app of this try; with it what is known, if the app was there before."""
        store = context.get("task_state_store")
        self._memory = Memory(store)
        if not self._memory.lasts:
            self._log.info("this Airflow has no task state store: a retry cannot take up the app of an earlier try")
        clear_number = int(getattr(context["dag_run"], "clear_number", 0) or 0)
        record = self._memory.load()
        first = max(0, int(context["ti"].try_number) - 1)
        max_tries = int(getattr(context["ti"], "max_tries", -1))
        step = next_step(record, clear_number, max_tries)
        digest = spec_hash(self._app, cfg)
        if record is not None and step is Next.REPLACE and self._is_here(record, step):
            self._retire(record)
        if record is not None and step is Next.RESUME and self._is_here(record, step):
            # What was cleared meanwhile was another task of the run.
            record = dataclasses.replace(record, clear_number=clear_number, max_tries=max_tries, outcome="")
            found = self._resume(record, digest)
            if isinstance(found, Record):
                return self._launch(cfg, found, was_intended=True), None
            if found is not None:
                return found
        attempt = first if record is None else record.attempt + 1
        app_id = self._new_app_id(context, attempt)
        identity = self._hook.options.identity
        fresh = Record(attempt, app_id, digest, identity, clear_number, "intent", max_tries=max_tries)
        return self._launch(cfg, fresh), None

    def _new_app_id(self, context: Context, attempt: int) -> str:
        ti, run = context["ti"], context["dag_run"]
        return app_id_for(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            run_start=str(run.start_date or ""),
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            attempt=attempt,
        )

    def _is_here(self, record: Record, step: Next) -> bool:
        """Tell whether the connection still means the scheduler that has the app of the record."""
        identity = self._hook.options.identity
        if record.identity == identity:
            return True
        if not record.is_open:
            return False
        text = (
            f"app {record.app_id} was launched on {record.identity!r}, "
            f"but connection {self._op.launch_conn_id!r} now means {identity!r}"
        )
        if step is Next.REPLACE:
            self._log.warning("%s; it cannot be cancelled from here and may be running", text)
            return False
        raise LaunchError(f"{text}; restore the connection, or clear the task to launch anew")

    def _resume(self, record: Record, digest: str) -> tuple[str, DescribeAppResponse] | Record | None:
        """Return the app of the last try, or the record under which it is still to be launched.

        None: the app is done with, and a new attempt is due.
        """
        # A kill from here on concerns this app.
        self._hold(record)
        response = self._patiently(lambda: self._scheduler.describe(record.app_id))
        if response is None:
            if record.state == "intent":
                if Capability.ADOPT not in self._scheduler.capabilities:
                    self._warn_no_adopt("the last try may have launched an app which is not known")
                # Nothing came of the intent: the same attempt under the same id.
                return dataclasses.replace(record, spec_hash=digest)
            self._log.warning("app %s of the last try vanished: unknown outcome; launching anew", record.app_id)
            return None
        if response.state in (AppState.FAILED, AppState.CANCELLED):
            self._log.info("app %s of the last try ended as %s; launching anew", record.app_id, response.state)
            return None
        if (
            record.state == "intent"
            and not is_terminal(response.state)
            and Capability.ADOPT in self._scheduler.capabilities
        ):
            # The submission may have been broken off in its middle, and only a repeated one ends it.
            return dataclasses.replace(record, spec_hash=digest)
        self._log.info("going on with app %s of the last try, which is %s", record.app_id, response.state)
        if record.spec_hash != digest:
            self._log.warning("the DAG has changed since app %s was launched; it runs as it was then", record.app_id)
        handle = record.handle or make_app_handle(self._backend, self._op.launch_conn_id, record.app_id)
        self._op.request = f"taken up from an earlier try: {handle}"
        show_request(self._op, self._ti)
        self._hold(dataclasses.replace(record, state="scheduled", handle=handle))
        self._memory.save(self._current)
        return handle, response

    def _retire(self, record: Record) -> None:
        """End the app of before a clear, and wait a while until it has ended."""
        scheduler = self._scheduler
        response = self._patiently(lambda: scheduler.describe(record.app_id))
        if response is None or is_terminal(response.state):
            return
        self._log.info("the task was cleared: cancelling app %s, which is %s", record.app_id, response.state)
        self._patiently(lambda: scheduler.cancel(record.app_id))
        wait_s = conf.getfloat("launch", "replace_wait_s", fallback=60.0)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            response = self._patiently(lambda: scheduler.describe(record.app_id))
            if response is None or is_terminal(response.state):
                return
            self._check()
            time.sleep(min(0.2, scheduler.poll_interval_s))
        self._log.warning("app %s has not ended within %.0f s after its cancel", record.app_id, wait_s)

    def _launch(self, cfg: Mapping[str, Any], record: Record, *, was_intended: bool = False) -> str:
        """Submit the app under the id of the record and return its handle."""
        op = self._op
        runner = self._hook.runner
        # Pure, so a wrong app leaves no trace.
        info = runner.dryrun(self._app, self._backend, cfg, app_id=record.app_id)
        self._show(info)
        adopts = Capability.ADOPT in self._scheduler.capabilities
        if not adopts:
            self._warn_no_adopt("a worker that dies during the launch may cause a second app")
        self._memory.save(record)
        self._hold(record)
        try:
            handle = self._submit(info, record, adopts=adopts, was_intended=was_intended)
        except AppKilledError:
            raise
        except Exception:
            # What was refused is shown too.
            show_request(op, self._ti)
            raise
        app_id = parse_app_handle(handle).app_id
        self._hold(dataclasses.replace(record, app_id=app_id, state="scheduled", handle=handle))
        self._check()
        self._memory.save(self._current)
        # Not before: the app does not wait for it, and a kill finds the app known.
        show_request(op, self._ti)
        self._log.info("launched %s", handle)
        return handle

    def _submit(self, info: AppDryRunInfo[Any], record: Record, *, adopts: bool, was_intended: bool) -> str:
        runner = self._hook.runner
        try:
            # Where a second submit may start a second app, an outage is not borne.
            return self._patiently(lambda: runner.schedule(info)) if adopts else runner.schedule(info)
        except AppConflictError:
            # After an intent the id belongs to an earlier try, and the DAG has changed since.
            if not was_intended:
                raise
            handle = make_app_handle(self._backend, self._op.launch_conn_id, record.app_id)
            self._log.warning("an earlier try launched %s from another version of the DAG; following it", handle)
            return handle

    # ---- follow ----------------------------------------------------------------------------------------------

    def _follow(self, handle: str, handover: Handover, *, is_new: bool) -> dict[str, Any]:
        # Not above: the app starts while this is imported.
        from airflow_provider_launch.operators.following import follow

        op, app_id = self._op, parse_app_handle(handle).app_id
        results: list[Any] = []

        def read_result(ended: DescribeAppResponse) -> None:
            if ended.state == AppState.SUCCEEDED:
                # What fails here is asked for again below, and borne or told there.
                with contextlib.suppress(Exception):
                    results.append(self._result(app_id))

        response, tails = follow(
            op, self._ti, self._scheduler, handle, handover, is_new=is_new, check=self._check, on_end=read_result
        )
        if response.state == AppState.SUCCEEDED:
            self._succeeded = True
            result = results[0] if results else self._patiently(lambda: self._result(app_id))
            return as_xcom(handle, response, result, roles=self._app.roles)
        replica = first_failed(response)
        error = failure(handle, response, tails)
        if replica is not None and response.state == AppState.FAILED and op.is_skipped_by(replica.exit_code):
            raise AirflowSkipException(str(error)) from error
        raise error

    def _result(self, app_id: str) -> Any:
        return self._scheduler.result(app_id) if Capability.RESULT in self._scheduler.capabilities else None

    # ---- kill ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Leave as soon as the task was killed."""
        if self._op._killed:  # noqa: SLF001 - set by its `on_kill`
            raise AppKilledError("the task was killed")

    def _cancel_killed(self) -> None:
        """Cancel the app of a killed task: what was submitted after the signal the helper thread did not see."""
        record, killer = self._record, self._op._killer  # noqa: SLF001 - see `run`
        if record is None or self._succeeded:
            return
        if self._op.kill_policy == "leave":
            self._log.warning("the task was killed; app %s is left as it is", record.app_id)
            self._note_kill(record)
            return
        error = killer.error if killer is not None else None
        deadline = time.monotonic() + _KILLED_CANCEL_S
        while True:
            try:
                self._scheduler.cancel(record.app_id)
            except Exception as problem:  # noqa: BLE001 - the task ends anyway, and what was left is told
                error = problem
            else:
                if self._had_succeeded(record):
                    # The record stays open: a retry takes the result.
                    self._log.warning("the task was killed; app %s had succeeded before", record.app_id)
                    self._note_kill(record)
                    return
                self._log.warning("the task was killed; app %s is cancelled", record.app_id)
                self._close_record(AppKilledError("killed"))
                return
            if time.monotonic() >= deadline:
                break
            time.sleep(0.2)
        self._note_kill(record)
        self._log.error("the task was killed, but app %s could not be cancelled: %s", record.app_id, error)

    def _note_kill(self, record: Record) -> None:
        """Keep the record open, and say that a clear may have been the reason of the kill."""
        with contextlib.suppress(Exception):
            self._memory.save(dataclasses.replace(record, outcome=KILLED))

    def _had_succeeded(self, record: Record) -> bool:
        with contextlib.suppress(Exception):
            found = self._scheduler.describe(record.app_id)
            return found is not None and found.state == AppState.SUCCEEDED
        return False

    # ---- small parts -----------------------------------------------------------------------------------------

    @property
    def _current(self) -> Record:
        assert self._record is not None
        return self._record

    def _hold(self, record: Record) -> None:
        self._record = record
        if (killer := self._op._killer) is not None:  # noqa: SLF001 - see `run`
            killer.app_id = record.app_id

    def _close_record(self, error: Exception) -> None:
        record = self._record
        if record is None:
            return
        status = getattr(error, "status", None)
        outcome = str(status.state) if status is not None else type(error).__name__
        # After a kill Airflow may refuse to store anything; the next try then finds an app that has ended.
        with contextlib.suppress(Exception):
            self._memory.save(dataclasses.replace(record, state="closed", outcome=outcome))

    def _cfg(self) -> dict[str, Any]:
        """Return the options of this launch, connection first, and the time limit where it belongs."""
        cfg = self._hook.merged_cfg(self._op.cfg)
        limit = self._op.time_limit_s
        if limit is None:
            return cfg
        name = self._scheduler.run_opts().registered_name("time_limit_s")
        if name is None:
            raise UnsupportedError(
                f"time_limit_s={limit} is set, but scheduler {self._backend!r} has no such option; "
                f"leave it out, or use execution_timeout, which needs a living worker"
            )
        given = cfg.get(name) if "time_limit_s" in (self._op.cfg or {}) else None
        if given is not None and given != limit:
            raise InvalidAppError(f"time_limit_s is {limit} at the operator and {given} in its cfg; set it once")
        return {**cfg, name: limit}

    def _show(self, info: AppDryRunInfo[Any]) -> None:
        text = str(info)
        self._op.request = text
        more = len(text) - _SHOWN_CHARS
        shown = f"{text[:_SHOWN_CHARS]}\n... and {more} more characters" if more > 0 else text
        self._log.info("request to scheduler %s:\n%s", self._backend, shown)

    def _patiently(self, call: Callable[[], T]) -> T:
        return patiently(call, self._check, unavailable_for_s=self._op.unavailable_for_s, tell=self._log.warning)

    def _warn_no_adopt(self, consequence: str) -> None:
        self._log.warning("scheduler %s cannot adopt a running app: %s", self._backend, consequence)
