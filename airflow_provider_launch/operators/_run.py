"""One run of a `LaunchAppOperator`: acquires the app, follows it, and concludes with the outcome."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_launch._airflow import AirflowSkipException, AirflowTaskTimeout, conf
from airflow_provider_launch._task import metrics
from airflow_provider_launch._task.callbacks import Callbacks
from airflow_provider_launch._task.options import DELETE_SUCCEEDED, check_log_roles, check_on_finish, check_streams
from airflow_provider_launch._task.outcome import as_xcom, check_all_results, first_failed, result_of
from airflow_provider_launch._task.places import (
    Place,
    checked_places,
    copied_variables,
    hidden_in_app,
    hidden_values,
    kept_values,
    places_in_copied,
    places_of,
)
from airflow_provider_launch._task.progress import FIRE_AFTER_S, FollowProgress
from airflow_provider_launch._task.secrets import register, shown_request
from airflow_provider_launch._task.task_run import TaskRun
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.links.launch import drop_request_link
from airflow_provider_launch.operators._attempt import Attempt
from airflow_provider_launch.operators._own_state import cancel_if_over, cancel_if_refused
from airflow_provider_launch.operators._pod_template import template_paths
from airflow_provider_launch.operators._request import launch_app, launch_options
from airflow_provider_launch.operators._sources import strings_in
from airflow_provider_launch.schedulers.backends import BACKENDS
from airflow_provider_launch.specs import overlays
from airflow_provider_launch.specs.errors import (
    AppNotStartedError,
    AppStatusError,
    AppUnavailableError,
    LaunchError,
    SchedulerUnavailableError,
    UnknownOutcomeError,
)
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.triggers.checkpoint import create_checkpoint, delete_checkpoint
from airflow_provider_launch.util.untrusted import clean_text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_launch._task.cancel_on_kill import CancelThread
    from airflow_provider_launch._task.follow_app import AppFollow
    from airflow_provider_launch.operators._sources import Sources
    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.schedulers.api import DescribeAppResponse
    from airflow_provider_launch.specs.roles import AppDef, Role

_DEFER_AFTER_S = 10.0
_Found = TypeVar("_Found")
_ENDED = (AppStatusError, AirflowSkipException)
"""Errors of a task whose app has ended."""


class OperatorRun(TaskRun):
    """Runs one try of one task, or the rest of a deferred one; for a single use.

    Args:
        operator: the task of the DAG, rendered.
        context: the context of the task.
        killer: cancels the app when the task is killed.
        on_end: called with the last status of the app.
    """

    def __init__(
        self,
        operator: LaunchAppOperator,
        context: Context,
        killer: CancelThread,
        on_end: Callable[[DescribeAppResponse], object],
    ) -> None:
        super().__init__(operator, context["ti"], LaunchHook.for_connection(operator.launch_conn_id), killer)
        self._context = context
        self._op = operator
        self._on_end = on_end
        self._callbacks = Callbacks(operator.on_start, operator.on_event, operator.on_end, self._log)
        self._attempt = Attempt(operator, context, self._hook, killer, self._retry)
        self._roles: Sequence[Role] = ()
        """The roles of the launched app; empty in a task that resumes."""
        self._results: list[Any] = []
        """The result of the app as its only item; empty until it was read."""
        self._silent = ""
        """Why an earlier part of this try has found that the app hangs; empty: it has not."""
        self._hangs = False
        """Whether such an app must still be cancelled."""
        self._has_gap = True  # until the log has been read to its end

    def run(self, app: AppDef, sources: Sources) -> dict[str, Any]:
        """Return the XCom value of a success; raise an error, or `TaskDeferred`.

        Args:
            app: the checked app.
            sources: decides which files and addresses the app may name.
        """
        of_app = {*strings_in([app.metadata, *(role.metadata for role in app.roles)])}

        def check(location: str) -> None:
            # The administrator may name any file.
            if location in template_paths(self._hook.merged_cfg(None), self._scheduler.run_opts()):
                return
            if location in of_app:
                sources.check(location, location, "an overlay of the app")
            else:
                sources.check_option(location, location, "an option of the task")

        # Before any error or retry names a part of the app, which a function may have built.
        register(hidden_in_app(app))
        with overlays.guarded(check), self:
            return self._run(app, sources)

    def _run(self, app: AppDef, sources: Sources) -> dict[str, Any]:
        op, attempt, began = self._op, self._attempt, time.time()
        cfg = launch_options(op, self._hook, self._context, sources)
        sources.check_variables(app)
        self._killer.check()
        _ = self._on_finish  # refuses an invalid value now instead of after the end of the app
        check_streams(self._scheduler, op.streams)
        check_all_results(self._scheduler, op.results)
        check_log_roles(app, op.log_roles)
        app = op._app_for(app, self._hook.options.backend)  # noqa: SLF001 - for operators built on this one
        app = launch_app(app, op, self._ti, self._hook, sources)
        self._roles = app.roles
        written = op._written  # noqa: SLF001 - part of the operator
        places = places_of(app, written.secrets if written is not None else ())
        handle = attempt.acquire(app, cfg, places)
        if op.do_xcom_push and op._pushes_app:  # noqa: SLF001 - for operators built on this one
            self._ti.xcom_push("handle", clean_text(handle))
        if attempt.value is not None:
            self._push_success(attempt.value)
            return attempt.value
        self._killer.check()
        places = self._mask_secrets(app, places)
        if not op.wait:
            value = as_xcom(handle, self._wait_for_start(handle), roles=app.roles)
            self._push_success(value)
            return value
        progress = self._progress()
        if op.deferrable and (attempt.adopted is None or not is_terminal(attempt.adopted.state)):
            has_ended, progress = self._follow_first(handle)
            if not has_ended and not self._silent:
                self._defer(handle, began, progress, places)
        return self._to_end(handle, progress)

    def resume(self, event: Mapping[str, Any], *, has_started: bool = False) -> dict[str, Any]:
        """Continue where the trigger has stopped: log the rest, and return the XCom value.

        Args:
            event: the event of `AppStatusTrigger`.
            has_started: whether `on_start` was called before the deferral.
        """
        self._callbacks.has_started = has_started
        with self:
            delete_checkpoint(self._ti)
            given, reason, text = (str(event.get(name) or "") for name in ("handle", "reason", "text"))
            handle = self._attempt.rejoin(given)
            if not handle:
                raise LaunchError(f"the trigger did not find the app: {text}")
            self._op.ui_url = FollowProgress.from_json(event).url
            drop_request_link(self._op)
            places = checked_places(event.get("secret_places")) or self._attempt.places or []
            self._restore_request(places)
            self._killer.check()
            if reason == "deadline":
                # The same error as that of `execution_timeout` on a worker. It cancels the app again, in case the
                # trigger could not.
                raise AirflowTaskTimeout(text)
            progress = self._continued(event, handle)
            if reason == "silent":
                self._silent, self._hangs = text, True
            if self._masked is None:
                self._retry(self._mask_kept, places)
            return self._to_end(handle, dataclasses.replace(progress, since=progress.since or self._attempt.since))

    def _to_end(self, handle: str, progress: FollowProgress) -> dict[str, Any]:
        """Follow the app to its end, and return the XCom value or raise the error."""
        try:
            response, tails = self._follow(handle, progress)
            value = self._conclude(handle, response, tails)
        except (*_ENDED, UnknownOutcomeError) as error:
            # After any other error the app may be running, or only its result is unreadable, so the next try polls it.
            self._attempt.close(error)
            self._remove_ended(error)
            raise
        # Keep the record open: if this worker dies before Airflow records the success, the next try uses the result.
        # A clear is detected by `clear_number`.
        self._killer.check()
        self._remove_succeeded(handle, value)
        return value

    # ---- follow ----------------------------------------------------------------------------------------------

    def _follow(self, handle: str, progress: FollowProgress) -> tuple[DescribeAppResponse, Mapping[str, Sequence[str]]]:
        """Log states and lines until the app has ended; return its last status, and the last lines of each replica."""
        with self._follower_of(handle, progress) as follow:
            follow.silent = self._silent
            if self._hangs:
                follow.cancel_silent(self._silent)
            response = follow.run(on_end=self._read_result)
            self._has_gap = follow.has_gap
        if response is None:
            raise UnknownOutcomeError(f"following {handle!r} stopped before the app had ended")
        return response, follow.tails

    def _check(self) -> None:
        super()._check()
        self._op._app_runs()  # noqa: SLF001 - for operators built on this one

    def _read_result(self, ended: DescribeAppResponse) -> None:
        """Read the result while the rest of the log is read.

        On Docker reading a result takes 54 to 114 ms, while a whole task that runs `true` takes 450 ms.
        """
        if ended.state == AppState.SUCCEEDED:
            # After an error `_conclude` reads the result again, with retries.
            with contextlib.suppress(Exception):
                self._results.append(result_of(self._scheduler, self._attempt.app_id, self._op.results))

    def _progress(self) -> FollowProgress:
        """Return the progress with which this try starts to follow its app."""
        is_named = self._hook.options.backend in BACKENDS
        roles = {} if is_named else {role.name: role.num_replicas for role in self._roles}
        return FollowProgress(since=self._attempt.since, roles=roles)

    def _wait_for_start(self, handle: str) -> DescribeAppResponse | None:
        """Wait until the app has started, if it has a start limit, and return its last description."""
        adopted = self._attempt.adopted
        if self._op.start_limit_s is None:
            return adopted
        from airflow_provider_launch.follow.events import StateChanged
        from airflow_provider_launch.follow.state_tracker import is_waiting

        if adopted is not None and not is_waiting(adopted.state):
            return adopted
        with self._follower_of(handle, self._progress(), is_part=True) as follow:
            follow.run(is_over=lambda event: isinstance(event, StateChanged) and not is_waiting(event.new))
            return follow.response

    def _follow_first(self, handle: str) -> tuple[bool, FollowProgress]:
        """Follow the app for its first seconds; return whether it has ended, and the progress.

        Most failures happen early, and Airflow fails deferred tasks whose triggers fire within seconds.
        """
        op = self._op
        limit_s = op.defer_after_s
        if limit_s is None:
            limit_s = conf.getfloat("launch", "defer_after_s", fallback=_DEFER_AFTER_S)
        # With "now" two followers would not agree on which lines of an adopted app are old.
        if limit_s <= 0 or (op.logs_from == "now" and self._attempt.adopted is not None):
            return False, self._progress()
        with self._follower_of(handle, self._progress(), is_part=True) as follow:
            response = follow.run(until=time.monotonic() + limit_s)
            self._silent = follow.silent
            return response is not None, follow.progress

    def _follower_of(self, handle: str, progress: FollowProgress, *, is_part: bool = False) -> AppFollow:
        is_new = self._attempt.adopted is None  # an adopted app may have old lines
        return self._follower(
            handle, self._op.follow_options, progress,
            is_new=is_new, is_part=is_part, on_change=self._callbacks.changed,
        )  # fmt: skip

    def _defer(self, handle: str, began: float, progress: FollowProgress, places: list[Place]) -> None:
        """Defer the task: raise `TaskDeferred`, so that the triggerer follows the app."""
        # Imported here, because only tasks that defer need it.
        from airflow_provider_launch.triggers.launch import AppStatusTrigger

        op, is_new = self._op, self._attempt.adopted is None
        create_checkpoint(self._ti)
        if op.follow_options.may_cancel:
            cancel_if_refused(self._ti, handle, self._hook, self._log)
        limit = op.execution_timeout
        trigger = AppStatusTrigger(
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
        # Without the key a worker with an earlier release can resume the task.
        kwargs = {"has_started": True} if self._callbacks.has_started and op.on_start is not None else None
        op.defer(trigger=trigger, method_name="resume", kwargs=kwargs)

    # ---- conclude --------------------------------------------------------------------------------------------

    def _push_success(self, outcome: Mapping[str, Any]) -> None:
        if self._op._pushes_app:  # noqa: SLF001 - for operators built on this one
            self._push_app(outcome)

    def _conclude(
        self, handle: str, response: DescribeAppResponse, tails: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        """Return the XCom value of an app that has succeeded, or raise the error."""
        op = self._op
        self._on_end(response)
        self._callbacks.ended(response)
        metrics.count("apps_ended", backend=self._hook.options.backend, state=response.state.name)
        if response.state == AppState.SUCCEEDED:
            self._attempt.has_succeeded = True
            # Before the result, which may be wrong.
            self._push_success(as_xcom(handle, response, roles=self._roles))
            if not self._results:
                self._results.append(self._retry(result_of, self._scheduler, self._attempt.app_id, op.results))
            value = as_xcom(handle, response, self._results[0], roles=self._roles)
            _ = op._value_of(value)  # noqa: SLF001 - an app whose value cannot be used is not removed
            return value
        error = self._failure(handle, response, tails, self._roles)
        replica = first_failed(response, tails)
        if replica is not None and response.state == AppState.FAILED and op.is_skipped_by(replica.exit_code):
            raise AirflowSkipException(str(error)) from error
        raise error

    def _remove_succeeded(self, handle: str, value: dict[str, Any]) -> None:
        """Remove an app whose result and log were read, unless `on_finish` keeps it."""
        if self._on_finish == "keep":
            return
        if self._has_gap:
            self._log.warning("%s is kept, because its log may be incomplete here", handle)
        elif not self._attempt.is_persistent:
            self._log.info("%s is kept: without it a retry could not find out that it has succeeded", handle)
        else:
            try:
                self._attempt.save_value(value)
            except Exception as problem:  # noqa: BLE001 - the task has succeeded
                self._log.warning("%s is kept: its result could not be stored for a retry: %s", handle, problem)
                return
            self._remove()

    def _remove_ended(self, error: Exception) -> None:
        """Remove an app that has failed or was cancelled, if `on_finish` is "delete"."""
        if self._on_finish == "delete" and not isinstance(error, UnknownOutcomeError) and not self._has_gap:
            self._remove()

    def _remove(self) -> None:
        app_id = self._attempt.app_id
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

    def _cancel_after(self, error: BaseException, *, is_killed: bool) -> None:
        if is_killed:
            self._attempt.cancel_killed()
        elif isinstance(error, AppNotStartedError):
            self._attempt.cancel_not_started(error)
        elif self._may_leave_app(error):
            cancel_if_over(self._ti, self._attempt.handle, self._hook, self._log)

    def _may_leave_app(self, error: BaseException) -> bool:
        """Return whether the app may run on after this error although it belongs to the task."""
        is_ended = self._attempt.has_succeeded or isinstance(error, (*_ENDED, UnknownOutcomeError))
        return bool(self._attempt.app_id) and not is_ended and self._op.wait and self._op.follow_options.may_cancel

    # ---- secrets and links -----------------------------------------------------------------------------------

    def _mask_secrets(self, app: AppDef, places: list[Place]) -> list[Place]:
        """Mask the secrets that lines of the app may show, and return their locations.

        Args:
            app: the app of this try.
            places: the locations of its secrets.
        """
        attempt = self._attempt
        inherited = places_in_copied(attempt.copied)
        values = hidden_values(app.roles, attempt.copied, [*places, *inherited])
        if attempt.is_of_earlier_try:
            # It has the values of its launch, which may differ by now.
            copied = self._kept(lambda: copied_variables(self._scheduler.describe_native(attempt.app_id)))
            inherited = list(dict.fromkeys([*inherited, *places_in_copied(copied)]))
            places = places if attempt.places is None else attempt.places
            values |= self._kept(lambda: kept_values(self._scheduler, attempt.app_id, places))
        self._masked = register(values, self._log.warning)
        return [*places, *inherited]

    def _kept(self, read: Callable[[], dict[str, _Found]]) -> dict[str, _Found]:
        """Return what the scheduler has of the app, after an outage; nothing if it may not be read, or is damaged."""

        def answer() -> dict[str, _Found]:
            try:
                return read()
            except LaunchError as error:
                if isinstance(error, SchedulerUnavailableError) and not isinstance(error, AppUnavailableError):
                    raise
                return {}

        return self._retry(answer)

    def _mask_kept(self, places: list[Place]) -> None:
        """Mask the secrets of an app that an earlier part of the task has launched."""
        # A damaged request is not worth a wait.
        with contextlib.suppress(AppUnavailableError):
            self._masked = register(kept_values(self._scheduler, self._attempt.app_id, places))

    def _restore_request(self, places: list[Place]) -> None:
        """Set the field `request` again, because a task that resumes starts without it."""
        with contextlib.suppress(LaunchError):
            native = self._scheduler.describe_native(self._attempt.app_id)
            self._mask_kept(places)
            self._op.request = clean_text(shown_request(native)) if native else None
