"""Acquires the app of one try: launches it, or adopts it from an earlier try."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._task import metrics
from airflow_provider_launch._task.folds import folded
from airflow_provider_launch._task.secrets import shown_request
from airflow_provider_launch.links.launch import show_request
from airflow_provider_launch.operators._attempt import NextStep, Record, app_id_for, next_step
from airflow_provider_launch.operators._earlier import EarlierApps
from airflow_provider_launch.schedulers.api import Capability, spec_hash
from airflow_provider_launch.specs.errors import AppConflictError, LaunchError
from airflow_provider_launch.specs.handles import make_app_handle, parse_app_handle
from airflow_provider_launch.specs.macros import near_misses
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.util.untrusted import clean_text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_launch.hooks.launch import LaunchHook
    from airflow_provider_launch.operators._attempt_tracker import AttemptTracker
    from airflow_provider_launch.operators._fields import OperatorFields
    from airflow_provider_launch.schedulers.api import DescribeAppResponse, Scheduler
    from airflow_provider_launch.specs.dryrun import AppDryRunInfo
    from airflow_provider_launch.specs.roles import AppDef

# A log line must stay below 64 KB; Airflow cuts stored rendered fields far earlier.
_SHOWN_CHARS = 16_000


class AppAcquirer:
    """Decides from the record of earlier tries which app a try follows.

    Args:
        operator: the task of the DAG, rendered.
        app: the checked app.
        hook: reaches the scheduler.
        tracker: records the current app.
    """

    def __init__(self, operator: OperatorFields, app: AppDef, hook: LaunchHook, tracker: AttemptTracker) -> None:
        self._op = operator
        self._app = app
        self._hook = hook
        self._tracker = tracker
        self._log = operator.log
        self._ti: Any = None
        self.value: dict[str, Any] | None = None
        """The return value of the last try, whose app has succeeded and was removed."""

    @property
    def _backend(self) -> str:
        return self._hook.options.backend

    @property
    def _scheduler(self) -> Scheduler[Any]:
        return self._hook.scheduler

    def acquire(self, context: Context, cfg: dict[str, Any]) -> tuple[str, DescribeAppResponse | None]:
        """Return the handle of this try's app, and its status if the app existed before.

        Args:
            context: of the task.
            cfg: options for a launch.
        """
        self._ti = context["ti"]
        record = self._tracker.load(context.get("task_state_store"))
        if not self._tracker.is_persistent:
            earlier = EarlierApps(
                self._op, self._tracker, self._scheduler, self._hook.options.identity,
                lambda attempt: self._new_app_id(context, attempt),
            )  # fmt: skip
            record, replaced = earlier.find(context)
            for each in replaced:
                self._cancel_replaced(each)
        clear_number = int(getattr(context["dag_run"], "clear_number", 0) or 0)
        first = max(0, int(context["ti"].try_number) - 1)
        max_tries = int(getattr(context["ti"], "max_tries", -1))
        retries = int(self._op.retries or 0)
        step = next_step(record, clear_number, max_tries, retries)
        digest = spec_hash(self._app, cfg)
        if record is not None and step is NextStep.REPLACE and self._is_here(record, step):
            self._cancel_replaced(record)
        if record is not None and step is NextStep.RESUME and self._is_here(record, step):
            # If a clear happened since then, it concerned another task of the run.
            record = dataclasses.replace(
                record, clear_number=clear_number, max_tries=max_tries, retries=retries, outcome=""
            )
            found = self._resume(record, digest)
            if isinstance(found, Record):
                return self._launch(cfg, found, was_intended=True), None
            if found is not None:
                return found
        # Without a store the ids follow the number of the try, so that the next try finds them.
        attempt = record.attempt + 1 if record is not None and self._tracker.is_persistent else first
        app_id = self._new_app_id(context, attempt)
        identity = self._hook.options.identity
        fresh = Record(
            attempt, app_id, digest, identity, clear_number, "intent",
            max_tries=max_tries, retries=retries, since=time.time(),
        )  # fmt: skip
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

    def _resume(self, record: Record, digest: str) -> tuple[str, DescribeAppResponse | None] | Record | None:
        """Return the app of the last try, or the record under which it must still be launched.

        None: the app is over, and a new attempt is due.
        """
        if record.value is not None:
            self._log.info("app %s of the last try has succeeded and was removed; its result was kept", record.app_id)
            self.value = record.value
            return record.handle, None
        # From here on a kill cancels this app.
        self._tracker.track(record)
        response = self._tracker.retry_while_unavailable(lambda: self._scheduler.describe(record.app_id))
        if response is None:
            if record.state == "intent":
                if Capability.ADOPT not in self._scheduler.capabilities:
                    self._warn_no_adopt("the last try may have launched an app that cannot be found")
                # The last try did not submit: launch the same attempt under the same id.
                return dataclasses.replace(record, spec_hash=digest)
            self._log.warning("app %s of the last try vanished: unknown outcome; launching again", record.app_id)
            return None
        if response.state in (AppState.FAILED, AppState.CANCELLED):
            self._log.info("app %s of the last try ended as %s; launching again", record.app_id, response.state)
            return None
        if (
            record.state == "intent"
            and not is_terminal(response.state)
            and Capability.ADOPT in self._scheduler.capabilities
        ):
            # The submission may have been interrupted; submitting again completes it.
            return dataclasses.replace(record, spec_hash=digest)
        self._log.info("continuing with app %s of the last try, which is %s", record.app_id, response.state)
        # Empty: found without a record.
        if record.spec_hash not in ("", digest):
            self._log.warning("the DAG has changed since app %s was launched; it runs as it was then", record.app_id)
        handle = record.handle or make_app_handle(self._backend, self._op.launch_conn_id, record.app_id)
        self._op.request = f"adopted from an earlier try: {handle}"
        show_request(self._op, self._ti)
        adopted = dataclasses.replace(record, state="scheduled", handle=handle)
        self._tracker.track(adopted)
        self._tracker.save(adopted)
        return handle, response

    def _cancel_replaced(self, record: Record) -> None:
        """Cancel the app from before a clear, and wait for its end for a limited time."""
        # From here on a kill cancels this app.
        self._tracker.track(record)
        scheduler = self._scheduler
        response = self._tracker.retry_while_unavailable(lambda: scheduler.describe(record.app_id))
        if response is None or is_terminal(response.state):
            return
        self._log.info("the task was cleared: cancelling app %s, which is %s", record.app_id, response.state)
        self._tracker.retry_while_unavailable(lambda: scheduler.cancel(record.app_id))
        if self._op.kill_policy == "leave":
            # With other policies the kill by the clear has counted it.
            metrics.count_cancelled(self._backend)
        if self._tracker.await_end(record.app_id) is None:
            self._log.warning("app %s has not ended within `[launch] replace_wait_s` after its cancel", record.app_id)

    def _launch(self, cfg: Mapping[str, Any], record: Record, *, was_intended: bool = False) -> str:
        """Submit the app under the id of the record and return its handle."""
        op = self._op
        runner = self._hook.runner
        # The dry run starts nothing, so an invalid app leaves no trace; only a workspace needs an engine here.
        info = self._tracker.retry_while_unavailable(
            lambda: runner.dryrun(self._app, self._backend, cfg, parent_run_id=_run_id(self._ti), app_id=record.app_id)
        )
        # A build may have taken minutes.
        self._tracker.check()
        self._show(info)
        for role in self._app.roles:
            for given, meant in near_misses(role):
                self._log.warning(
                    "role %r: ${%s} is not a macro and stays as it is, for the shell; did you mean ${%s}?",
                    role.name, given, meant,
                )  # fmt: skip
        adopts = Capability.ADOPT in self._scheduler.capabilities
        if not adopts:
            self._warn_no_adopt("a worker that dies during the launch may cause a second app")
        if not was_intended:
            # The build of an image does not count as waiting for a start.
            record = dataclasses.replace(record, since=time.time())
        self._tracker.save(record)
        self._tracker.track(record)
        started_at = time.monotonic()
        handle = self._submit(info, record, adopts=adopts, was_intended=was_intended)
        metrics.seconds("submit", time.monotonic() - started_at, backend=self._backend)
        metrics.count("apps_launched", backend=self._backend)
        app_id = parse_app_handle(handle).app_id
        launched = dataclasses.replace(record, app_id=app_id, state="scheduled", handle=handle)
        self._tracker.track(launched)
        self._tracker.check()
        self._tracker.save(launched)
        # Only now, so that the app does not wait for it and a kill finds the app recorded.
        show_request(op, self._ti)
        self._log.info("launched %s", handle)
        return handle

    def _submit(self, info: AppDryRunInfo[Any], record: Record, *, adopts: bool, was_intended: bool) -> str:
        runner = self._hook.runner
        try:
            # Do not retry an outage if a second submit may start a second app.
            if not adopts:
                return runner.schedule(info)
            return self._tracker.retry_while_unavailable(lambda: runner.schedule(info))
        except AppConflictError:
            # The id belongs to an earlier try with the same intent, and the DAG has changed since.
            if not was_intended:
                raise
            handle = make_app_handle(self._backend, self._op.launch_conn_id, record.app_id)
            self._log.warning("an earlier try launched %s from another version of the DAG; following it", handle)
            return handle

    # ---- small parts -----------------------------------------------------------------------------------------

    def _show(self, info: AppDryRunInfo[Any]) -> None:
        text = shown_request(info)
        self._op.request = clean_text(text)
        more = len(text) - _SHOWN_CHARS
        shown = f"{text[:_SHOWN_CHARS]}\n... and {more} more characters" if more > 0 else text
        for line in folded(f"Request to scheduler {self._backend}", shown):
            self._log.info("%s", line)

    def _warn_no_adopt(self, consequence: str) -> None:
        self._log.warning("scheduler %s cannot adopt a running app: %s", self._backend, consequence)


def _run_id(ti: Any) -> str:
    """Return the id of the task's run, the parent of runs in trackers; it is the same in each try."""
    index = "" if ti.map_index is None or ti.map_index < 0 else f"/{ti.map_index}"
    return f"airflow://{ti.dag_id}/{ti.run_id}/{ti.task_id}{index}"
