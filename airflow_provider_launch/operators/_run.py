"""One run of a `LaunchAppOperator`: from the record of the last try to the outcome."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._airflow import AirflowSkipException, AirflowTaskTimeout, TaskDeferred, conf
from airflow_provider_launch._task import metrics
from airflow_provider_launch._task.cancel_on_kill import AppKilledError, CancelThread
from airflow_provider_launch._task.lineage import with_parent_run
from airflow_provider_launch._task.options import (
    DELETE_SUCCEEDED,
    check_log_roles,
    check_on_finish,
    check_streams,
)
from airflow_provider_launch._task.outcome import as_xcom, check_all_results, failure, first_failed, result_of
from airflow_provider_launch._task.progress import FIRE_AFTER_S, FollowProgress
from airflow_provider_launch._task.secrets import (
    Place,
    copied_variables,
    hidden_values,
    kept_values,
    places_of,
    register,
    shown_request,
)
from airflow_provider_launch.hooks.extras import refuse_locked
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.hooks.task_states import deployment_id
from airflow_provider_launch.links.launch import drop_empty_links, drop_request_link
from airflow_provider_launch.operators._acquire import AppAcquirer
from airflow_provider_launch.operators._attempt import Record
from airflow_provider_launch.operators._attempt_tracker import AttemptTracker
from airflow_provider_launch.operators._earlier import with_counts
from airflow_provider_launch.operators._refused_deferral import cancel_if_refused
from airflow_provider_launch.operators._workspace import with_workspace
from airflow_provider_launch.schedulers.backends import BACKENDS
from airflow_provider_launch.specs import overlays
from airflow_provider_launch.specs.errors import (
    AppNotStartedError,
    AppStatusError,
    InvalidAppError,
    LaunchError,
    SchedulerUnavailableError,
    UnknownOutcomeError,
    UnsupportedError,
)
from airflow_provider_launch.specs.handles import parse_app_handle
from airflow_provider_launch.specs.owner import DEPLOYMENT, LEAVE, OWNER, POLICY, TRY, TaskKey
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.triggers.checkpoint import create_checkpoint, delete_checkpoint
from airflow_provider_launch.util.untrusted import clean_text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_launch._task.follow_app import AppFollow
    from airflow_provider_launch.operators._fields import OperatorFields
    from airflow_provider_launch.operators._sources import Sources
    from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler
    from airflow_provider_launch.triggers.launch import AppStatusTrigger

_DEFER_AFTER_S = 10.0


class OperatorRun:
    """Runs one try of one task; for a single use.

    Args:
        operator: the task of the DAG, rendered.
        app: the checked app. None: only `resume` is called, for an app that was launched.
    """

    def __init__(self, operator: OperatorFields, app: AppDef | None) -> None:
        self._op = operator
        self._app = app or AppDef("")
        self._ti: Any = None
        self._log = operator.log
        self._hook = LaunchHook.for_connection(operator.launch_conn_id)
        self._tracker = AttemptTracker(operator, self._hook)
        self._has_gap = True  # until the log has been read to its end
        self._sources: Sources | None = None

    @property
    def _backend(self) -> str:
        return self._hook.options.backend

    @property
    def _scheduler(self) -> Scheduler[Any]:
        return self._hook.scheduler

    def dry_run(self) -> str:
        """Return the request as text."""
        try:
            return shown_request(self._hook.runner.dryrun(self._with_workspace(), self._backend, self._cfg()))
        finally:
            self._hook.close()

    def run(self, context: Context) -> dict[str, Any]:
        """Return the XCom value of a success; raise an error, or `TaskDeferred`."""
        self._sources = sources = self._op._sources(context)  # noqa: SLF001 - part of `OperatorFields`

        def check(location: str) -> None:
            sources.check(location, location, "an overlay of the app")

        with overlays.guarded(check):
            return self._guarded(lambda: self._run(context, self._cfg()))

    def resume(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue where the trigger has stopped: log the rest, and return the XCom value.

        Args:
            context: of the task.
            event: the event of `AppStatusTrigger`.
        """
        return self._guarded(lambda: self._resumed(context, event))

    def _guarded(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        op = self._op
        # Read the options now, so that the killer, which makes its client only when needed, need not ask Airflow.
        _ = self._hook.options
        may_cancel = op.follow_options.may_cancel
        killer = op._killer = CancelThread(self._hook.new_scheduler if may_cancel else None)  # noqa: SLF001 - `on_kill` finds it there
        try:
            value = work()
        except TaskDeferred:
            drop_empty_links(op)
            # Keep the killer: a kill may come before Airflow has recorded the deferral.
            self._hook.close()
            raise
        except BaseException as error:
            try:
                # Not an `Exception`: `execution_timeout` or an interrupt, which Airflow raises at any point.
                if isinstance(error, AppKilledError) or not isinstance(error, Exception):
                    self._tracker.cancel_killed()
                elif isinstance(error, AppNotStartedError):
                    self._tracker.cancel_not_started(error)
            finally:
                self._close(killer)
            raise
        self._close(killer)
        return value

    def _close(self, killer: CancelThread) -> None:
        drop_empty_links(self._op)
        killer.close()
        self._hook.close()

    def _run(self, context: Context, cfg: dict[str, Any]) -> dict[str, Any]:
        began = time.time()
        self._tracker.check()
        _ = self._on_finish  # an invalid value must be refused now, not after the app has ended
        check_streams(self._scheduler, self._op.streams)
        check_all_results(self._scheduler, self._op.results)
        check_log_roles(self._app, self._op.log_roles)
        self._refuse_overlays()
        self._ti = context["ti"]
        self._app = self._with_owner(with_parent_run(self._with_workspace(), self._ti, self._log.warning))
        self._app = with_counts(self._app, context, self._op.retries, began)
        # Before the request is shown, which may contain such values anywhere.
        register(hidden_values(self._app.roles, {}, ()))
        acquirer = AppAcquirer(self._op, self._app, self._hook, self._tracker)
        handle, response = acquirer.acquire(context, cfg)
        # An adopted app may have old lines.
        is_new = response is None
        if self._op.do_xcom_push:
            context["ti"].xcom_push("handle", clean_text(handle))
        if acquirer.value is not None:
            return acquirer.value
        self._tracker.check()
        places = self._mask_secrets(cfg)
        if not self._op.wait:
            response = self._wait_for_start(handle, response, is_new=is_new)
            return as_xcom(handle, response, roles=self._app.roles)
        progress = self._progress()
        if self._op.deferrable and (response is None or not is_terminal(response.state)):
            ended, progress = self._follow_first(handle, is_new=is_new)
            if not ended:
                create_checkpoint(self._ti)
                if self._op.follow_options.may_cancel:
                    cancel_if_refused(_task_of(self._ti), functools.partial(self._cancel_refused, handle))
                trigger = self._trigger(handle, began, progress, places, is_new=is_new)
                self._op.defer(trigger=trigger, method_name="resume")
        return self._conclude(handle, progress, is_new=is_new)

    def _progress(self) -> FollowProgress:
        """Return the progress with which this try starts to follow its app."""
        is_named = self._backend in BACKENDS
        roles = {} if is_named else {role.name: role.num_replicas for role in self._app.roles}
        return FollowProgress(since=self._tracker.since, roles=roles)

    def _wait_for_start(
        self, handle: str, response: DescribeAppResponse | None, *, is_new: bool
    ) -> DescribeAppResponse | None:
        """Wait until the app has started, if it has a start limit, and return its last description."""
        if self._op.start_limit_s is None:
            return response
        from airflow_provider_launch.follow.events import StateChanged
        from airflow_provider_launch.follow.start_limit import is_waiting

        if response is not None and not is_waiting(response.state):
            return response
        with self._follower(handle, self._progress(), is_new=is_new, is_part=True) as follow:
            follow.run(is_over=lambda event: isinstance(event, StateChanged) and not is_waiting(event.new))
            return follow.response

    def _follow_first(self, handle: str, *, is_new: bool) -> tuple[bool, FollowProgress]:
        """Follow the app for its first seconds; return whether it has ended, and the progress.

        Most failures happen early, and Airflow fails deferred tasks whose triggers fire within seconds.
        """
        op = self._op
        limit_s = op.defer_after_s
        if limit_s is None:
            limit_s = conf.getfloat("launch", "defer_after_s", fallback=_DEFER_AFTER_S)
        # Two followers would not agree on which lines of an adopted app are old.
        if limit_s <= 0 or (op.logs_from == "now" and not is_new):
            return False, self._progress()
        with self._follower(handle, self._progress(), is_new=is_new, is_part=True) as follow:
            response = follow.run(until=time.monotonic() + limit_s)
            return response is not None, follow.progress

    def _follower(self, handle: str, progress: FollowProgress, *, is_new: bool, is_part: bool = False) -> AppFollow:
        # Imported here, while the app is already starting.
        from airflow_provider_launch._task.follow_app import AppFollow

        return AppFollow(
            self._op,
            self._ti,
            self._scheduler,
            handle,
            self._tracker.app_id,
            self._op.follow_options,
            progress,
            self._tracker.check,
            is_new=is_new,
            is_part=is_part,
        )

    def _resumed(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        self._ti = context["ti"]
        delete_checkpoint(self._ti)
        handle, why, text = (str(event.get(name) or "") for name in ("handle", "why", "text"))
        record = self._tracker.load(context.get("task_state_store"))
        # The trigger may have failed before it found the app, which may still be running.
        handle = handle or (record.handle if record is not None else "")
        if not handle:
            raise LaunchError(f"the trigger did not find the app: {text}")
        app_id = parse_app_handle(handle).app_id
        progress = FollowProgress.from_json(event)
        self._op.ui_url = progress.url
        drop_request_link(self._op)
        if record is None or record.app_id != app_id:
            record = Record(0, app_id, "", self._hook.options.identity, 0, "scheduled", handle)
        self._tracker.track(record)
        # Set the field again: it would lose the request that the first part of the task has shown.
        with contextlib.suppress(LaunchError):
            native = self._scheduler.describe_native(app_id)
            register(kept_values(self._scheduler, app_id))
            self._op.request = clean_text(shown_request(native)) if native else None
        self._tracker.check()
        if why == "deadline":
            # As `execution_timeout` does on a worker; this cancels again, in case the trigger's cancel failed.
            raise AirflowTaskTimeout(text)
        if why == "not started":
            raise AppNotStartedError(text)
        if why == "unreachable":
            raise SchedulerUnavailableError(text)
        if why == "error":
            self._log.warning("the trigger has failed (%s); following %s here", text, handle)
        progress = dataclasses.replace(progress, since=progress.since or self._tracker.since)
        if not conf.getboolean("launch", "trigger_logs_last", fallback=True):
            progress = FollowProgress(since=progress.since, roles=progress.roles)
        return self._conclude(handle, progress)

    def _conclude(self, handle: str, progress: FollowProgress, *, is_new: bool = True) -> dict[str, Any]:
        try:
            value = self._follow(handle, progress, is_new=is_new)
        except (AppStatusError, AirflowSkipException, UnknownOutcomeError) as error:
            # After any other error the app may be running, or only its result may be unreadable: the next try polls it.
            self._tracker.close(error)
            self._remove_ended(error)
            raise
        # Keep the record open: if this worker dies before Airflow records the success, the next try takes the result.
        # A clear is detected by its number.
        self._tracker.check()
        self._remove_succeeded(handle, value)
        return value

    # ---- removal ---------------------------------------------------------------------------------------------

    def _remove_succeeded(self, handle: str, value: dict[str, Any]) -> None:
        """Remove an app whose result and log were read, unless `on_finish` keeps it."""
        if self._on_finish == "keep":
            return
        if self._has_gap:
            self._log.warning("%s is kept, because its log may be incomplete here", handle)
        elif not self._tracker.is_persistent:
            self._log.info("%s is kept: without it a retry could not find out that it has succeeded", handle)
        else:
            try:
                self._tracker.save_value(value)
            except Exception as problem:  # noqa: BLE001 - the task has succeeded
                self._log.warning("%s is kept: its result could not be stored for a retry: %s", handle, problem)
                return
            self._remove()

    def _remove_ended(self, error: Exception) -> None:
        """Remove an app that has failed or was cancelled, if `on_finish` is "delete"."""
        if self._on_finish == "delete" and not isinstance(error, UnknownOutcomeError) and not self._has_gap:
            self._remove()

    def _remove(self) -> None:
        app_id = self._tracker.app_id
        try:
            self._scheduler.delete(app_id)
        except Exception as problem:  # noqa: BLE001 - the outcome of the task is already decided
            self._log.warning("app %s has ended and could not be removed: %s", app_id, problem)
        else:
            self._log.info("app %s was removed (on_finish=%s)", app_id, self._on_finish)

    @functools.cached_property
    def _on_finish(self) -> str:
        default = conf.get("launch", "on_finish", fallback=DELETE_SUCCEEDED)
        return check_on_finish(self._op.on_finish or default)

    def _refuse_overlays(self) -> None:
        """Refuse overlays in roles if the connection locks options, because an overlay could override them."""
        if not self._hook.options.locked:
            return
        for role in self._app.roles:
            if role.metadata.get(self._backend):
                raise InvalidAppError(
                    f"role {role.name!r} has an overlay for {self._backend!r} in its metadata, which could override "
                    f"options that connection {self._op.launch_conn_id!r} locks; leave it out"
                )

    def _mask_secrets(self, cfg: Mapping[str, Any]) -> list[Place]:
        """Mask the secrets that lines of the app may show, and return their locations."""
        copied: dict[str, dict[str, str]] = {}
        if cfg.get("copy_env"):
            with contextlib.suppress(LaunchError):
                copied = copied_variables(self._scheduler.describe_native(self._tracker.app_id))
        places = places_of(self._app, copied)
        register(hidden_values(self._app.roles, copied, places), self._log.warning)
        return places

    def _trigger(
        self, handle: str, began: float, progress: FollowProgress, places: list[Place], *, is_new: bool
    ) -> AppStatusTrigger:
        # Imported here, because only tasks that defer need it.
        from airflow_provider_launch.triggers.launch import AppStatusTrigger

        op = self._op
        limit = op.execution_timeout
        return AppStatusTrigger(
            handle,
            deadline=None if limit is None else began + limit.total_seconds(),
            cancels_at_deadline=op.kill_policy == "cancel",
            scheduled=is_new,
            known=not is_new,
            secret_places=places,
            progress=progress.to_json() or None,
            fire_after_s=conf.getfloat("launch", "trigger_fire_after_s", fallback=FIRE_AFTER_S),
            **op.follow_options.to_json(),
        )

    # ---- follow ----------------------------------------------------------------------------------------------

    def _follow(self, handle: str, progress: FollowProgress, *, is_new: bool) -> dict[str, Any]:
        op, app_id = self._op, self._tracker.app_id
        results: list[Any] = []

        # While the rest of the log is read: on Docker a result takes 54 to 114 ms, a whole task `true` 450 ms.
        def read_result(ended: DescribeAppResponse) -> None:
            if ended.state == AppState.SUCCEEDED:
                # After an error the result is read again below, with retries.
                with contextlib.suppress(Exception):
                    results.append(self._result(app_id))

        with self._follower(handle, progress, is_new=is_new) as follow:
            response = follow.run(on_end=read_result)
            self._has_gap = follow.has_gap
        if response is None:
            raise UnknownOutcomeError(f"following {handle!r} stopped before the app had ended")
        op._app_ended(response)  # noqa: SLF001 - for operators built on this one
        metrics.count("apps_ended", backend=self._backend, state=response.state.name)
        if response.state == AppState.SUCCEEDED:
            self._tracker.succeeded = True
            result = results[0] if results else self._tracker.retry_while_unavailable(lambda: self._result(app_id))
            return as_xcom(handle, response, result, roles=self._app.roles)
        if op.do_xcom_push:
            # As after a success, for later tasks that run even after a failure.
            with contextlib.suppress(Exception):
                self._ti.xcom_push("return_value", as_xcom(handle, response, roles=self._app.roles))
        replica = first_failed(response)
        error = failure(handle, response, follow.tails)
        if replica is not None and response.state == AppState.FAILED and op.is_skipped_by(replica.exit_code):
            raise AirflowSkipException(str(error)) from error
        raise error

    def _result(self, app_id: str) -> Any:
        return result_of(self._scheduler, app_id, self._op.results)

    # ---- small parts -----------------------------------------------------------------------------------------

    def _with_workspace(self) -> AppDef:
        dag = self._op.get_dag()
        dag_file = dag.fileloc if dag else None
        return with_workspace(self._app, self._op.workspace, dag_file, self._scheduler, self._sources)

    def _cfg(self) -> dict[str, Any]:
        """Return the options of this launch: those of the connection, overridden by `cfg` and the time limit."""
        cfg = self._hook.merged_cfg(self._op.cfg)
        limit = self._op.time_limit_s
        if limit is None:
            return cfg
        name = self._scheduler.run_opts().registered_name("time_limit_s")
        if name is None:
            raise UnsupportedError(
                f"time_limit_s={limit} is set, but scheduler {self._backend!r} has no such option; "
                f"leave it out, or use execution_timeout, which needs a running worker"
            )
        refuse_locked(self._op.launch_conn_id, self._hook.options, self._scheduler.run_opts(), [name])
        given = cfg.get(name) if "time_limit_s" in (self._op.cfg or {}) else None
        if given is not None and given != limit:
            raise InvalidAppError(f"time_limit_s is {limit} at the operator and {given} in its cfg; set it once")
        return {**cfg, name: limit}

    def _with_owner(self, app: AppDef) -> AppDef:
        """Return the app with its task in the metadata, for `Runner.list`; the given app is not changed."""
        stays = not self._op.wait or not self._op.follow_options.may_cancel
        owner = {
            **_task_of(self._ti)._asdict(),
            TRY: self._ti.try_number,
            DEPLOYMENT: deployment_id(),
            POLICY: LEAVE if stays else "cancel",
        }
        return dataclasses.replace(app, metadata={**app.metadata, OWNER: owner})

    def _cancel_refused(self, handle: str, state: str) -> None:
        """Cancel the app of a task that was ended before Airflow accepted its deferral."""
        scheduler = self._hook.new_scheduler()
        try:
            scheduler.cancel(parse_app_handle(handle).app_id)
        except LaunchError as error:
            self._log.error("the task is %s, but %s could not be cancelled: %s", state, handle, error)
        else:
            self._log.warning("the task is %s, so its deferral was refused; %s is cancelled", state, handle)
            metrics.count_cancelled(self._backend)
        finally:
            scheduler.close()


def _task_of(ti: Any) -> TaskKey:
    return TaskKey(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)
