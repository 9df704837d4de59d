"""One run of a task that follows an app: its client, its retries during an outage, and its end."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from airflow_provider_launch._airflow import TaskDeferred, conf
from airflow_provider_launch._task.cancel_on_kill import AppKilledError
from airflow_provider_launch._task.errors import FinalStateError
from airflow_provider_launch._task.outcome import as_xcom, error_line, failure, result_of
from airflow_provider_launch._task.progress import FollowProgress
from airflow_provider_launch._task.secrets import hidden, register_error
from airflow_provider_launch.links.launch import drop_empty_links
from airflow_provider_launch.specs.errors import AppNotStartedError, LaunchError, SchedulerUnavailableError
from airflow_provider_launch.specs.handles import parse_app_handle
from airflow_provider_launch.util.backoff import backoff

if TYPE_CHECKING:
    from typing_extensions import Self

    from airflow_provider_launch._task.cancel_on_kill import CancelThread
    from airflow_provider_launch._task.follow_app import AppFollow
    from airflow_provider_launch._task.options import FollowOptions
    from airflow_provider_launch.hooks.launch import LaunchHook
    from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler
    from airflow_provider_launch.specs.errors import AppFailedError
    from airflow_provider_launch.specs.roles import Role

P = ParamSpec("P")
T = TypeVar("T")

_STEP_S = 0.1
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0


class OutageRetry:
    """Calls the scheduler, and repeats the call while the scheduler is unreachable, until the task is killed.

    Args:
        check: called in short intervals; raises to stop.
        unavailable_for_s: seconds to retry while the scheduler is unreachable, before its error is raised.
        warn: takes one line when an outage starts.
    """

    def __init__(self, check: Callable[[], None], unavailable_for_s: float, warn: Callable[[str], object]) -> None:
        self._check = check
        self._unavailable_for_s = unavailable_for_s
        self._warn = warn

    def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a call that is safe to repeat."""
        deadline = time.monotonic() + self._unavailable_for_s
        pauses = backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        has_warned = False
        while True:
            self._check()
            try:
                return call(*args, **kwargs)
            except SchedulerUnavailableError as error:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                if not has_warned:
                    has_warned = True
                    register_error(error)
                    limit = f"{self._unavailable_for_s:.0f} s"
                    self._warn(f"the scheduler does not answer, asking again for up to {limit}: {error}")
                self._sleep(min(next(pauses), left))

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            # Short steps, because a signal does not interrupt a sleep.
            time.sleep(min(left, _STEP_S))
            self._check()


class TaskRun(ABC):
    """The common part of the runs of operators and sensors; a context manager, for a single use.

    Entering it starts the thread that cancels the app when the task is killed. Leaving it ends what the run has used.

    Args:
        task: the task of the DAG, rendered.
        ti: its task instance.
        hook: reaches the scheduler.
        killer: knows whether the task was killed; its thread has not started.
    """

    def __init__(self, task: Any, ti: Any, hook: LaunchHook, killer: CancelThread) -> None:
        self._task = task
        self._ti = ti
        self._hook = hook
        self._killer = killer
        self._log = task.log
        self._retry = OutageRetry(killer.check, task.unavailable_for_s, self._log.warning)
        self._masked: list[str] | None = None
        """The secrets of the app; None if they are not known yet."""

    @property
    def _scheduler(self) -> Scheduler[Any]:
        return self._hook.scheduler

    def __enter__(self) -> Self:
        # Read the options now, so that the killer, which makes its client only when needed, need not ask Airflow.
        _ = self._hook.options
        self._killer.start(self._hook.new_scheduler if self._task.follow_options.may_cancel else None)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        is_deferred = isinstance(error, TaskDeferred)
        if isinstance(error, Exception):
            register_error(error)
        if isinstance(error, (LaunchError, FinalStateError)):
            # In full and before the exception: the log view cuts long errors, and hides them below the traceback.
            self._log.error("%s", str(error).partition("\n")[0])
        try:
            if error is not None and not is_deferred:
                # Not an `Exception`: `execution_timeout` or an interrupt, which Airflow raises at any point.
                self._cancel_after(
                    error, is_killed=isinstance(error, AppKilledError) or not isinstance(error, Exception)
                )
        finally:
            drop_empty_links(self._task)
            if not is_deferred:
                # Otherwise a kill may come before Airflow has recorded the deferral.
                self._killer.close()
            self._hook.close()

    @abstractmethod
    def _cancel_after(self, error: BaseException, *, is_killed: bool) -> None:
        """Cancel the app if this end of the run requires it.

        Args:
            error: ended the run.
            is_killed: the task was killed, or has timed out.
        """

    def _check(self) -> None:
        """Called often while the app is followed; raises to stop."""
        self._killer.check()

    def _continued(self, event: Mapping[str, Any], handle: str) -> FollowProgress:
        """Return where to continue after the trigger has stopped with this event, or raise its error."""
        reason, text = (str(event.get(name) or "") for name in ("reason", "text"))
        if reason == "not_started":
            raise AppNotStartedError(text)
        if reason == "unreachable":
            raise SchedulerUnavailableError(text)
        if reason == "error":
            self._log.warning("the trigger has failed (%s); following %s here", text, handle)
        progress = FollowProgress.from_json(event)
        if conf.getboolean("launch", "trigger_logs_last", fallback=True):
            return progress
        # The log of the trigger is lost, so show the whole log.
        return FollowProgress(since=progress.since, roles=progress.roles)

    def _follower(
        self,
        handle: str,
        options: FollowOptions,
        progress: FollowProgress,
        *,
        is_new: bool = False,
        is_known: bool = True,
        is_part: bool = False,
        on_change: Callable[[DescribeAppResponse], object] = lambda _response: None,
    ) -> AppFollow:
        """Return a follower of the app; the arguments are those of `AppFollow`."""
        # Imported here, because the app of an operator is already starting meanwhile.
        from airflow_provider_launch._task.follow_app import AppFollow

        follow = AppFollow(
            self._task, self._ti, self._scheduler, handle, options, progress, self._check,
            is_new=is_new, is_known=is_known, is_part=is_part, on_change=on_change,
        )  # fmt: skip
        follow.log.hide(self._masked or ())
        return follow

    def _failure(
        self,
        handle: str,
        response: DescribeAppResponse,
        tails: Mapping[str, Sequence[str]],
        roles: Sequence[Role] = (),
    ) -> AppFailedError:
        """Return the error of an app that did not succeed, and push XCom `app`, with the result if it wrote one."""
        from airflow_provider_launch._airflow import redact

        values = self._masked or ()

        def masked(text: str) -> str:
            return str(redact(hidden(text, values, is_cut=True)))

        # For later tasks that run even after a failure.
        with contextlib.suppress(Exception):
            # Unlike logs, XComs are not masked by Airflow.
            error = error_line(response, tails, masked)
            result = self._result_of_failed(parse_app_handle(handle).app_id)
            self._push_app(as_xcom(handle, response, result, roles=roles, error=error), result)
        return failure(handle, response, tails, masked)

    def _result_of_failed(self, app_id: str) -> Any:
        """Return the result that the app wrote before it failed, such as the metrics of its last epoch, or None."""
        try:
            return result_of(self._scheduler, app_id, self._task.results)
        except LaunchError as error:
            self._log.warning("the app has failed, and its result cannot be read: %s", error)
            return None

    def _push_app(self, outcome: Mapping[str, Any], result: Any = None) -> None:
        """Push XCom `app`, which has the same form after a success and a failure.

        Args:
            outcome: the outcome; its result is left out, because it is the value of the task.
            result: the result of an app that has failed, so that its task has no value.
        """
        if self._task.do_xcom_push:
            shown = {name: value for name, value in outcome.items() if name != "result"}
            self._ti.xcom_push("app", shown if result is None else {**shown, "result": result})
