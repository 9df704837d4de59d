# ruff: noqa: SLF001 - plug-ins rely on the names `_app`, `_scheduler` and `_validate`
"""`Runner`: launch apps on any scheduler, and follow them by handle from any process."""

from __future__ import annotations

import copy
import dataclasses
import logging
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.runner.dryruns import (
    built_images,
    pin_workspace_images,
    prepare_workspaces,
    submit_dryrun,
    validate,
)
from airflow_provider_launch.runner.events import log_event
from airflow_provider_launch.runner.injected_env import get_configured_trackers, inject_env, refuse_env_of_replicas
from airflow_provider_launch.runner.orphans import CONFIRM_S, OrphanFinder
from airflow_provider_launch.schedulers import SchedulerFactory, get_scheduler_factories, resolve_scheduler_name
from airflow_provider_launch.schedulers.api import Capability, DescribeAppResponse, ListAppResponse, Scheduler, Stream
from airflow_provider_launch.schedulers.backends import BACKENDS
from airflow_provider_launch.schedulers.ids import make_stable, slug
from airflow_provider_launch.specs.check import check_app
from airflow_provider_launch.specs.errors import (
    AppNotStartedError,
    InvalidRunConfigException,
    SessionMismatchException,
    UnknownAppException,
    UnknownSchedulerException,
    UnsupportedError,
)
from airflow_provider_launch.specs.handles import ParsedAppHandle, make_app_handle, parse_app_handle
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.specs.sentinels import AppHandle
from airflow_provider_launch.specs.states import is_terminal
from airflow_provider_launch.specs.statuses import AppStatus
from airflow_provider_launch.specs.workspaces import Workspace
from airflow_provider_launch.util.strings import closest
from airflow_provider_launch.workspace.api import WorkspaceMixin

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType

    from typing_extensions import Self

    from airflow_provider_launch.specs.dryrun import AppDryRunInfo
    from airflow_provider_launch.specs.owner import TaskKey
    from airflow_provider_launch.specs.runopts import CfgVal, runopts
    from airflow_provider_launch.workspace.api import WorkspaceBuilder

log = logging.getLogger(__name__)

__all__ = ["NONE", "Runner", "get_configured_trackers", "get_runner", "pin_workspace_images"]

NONE = "<NONE>"


class Runner:
    """Launches and follows apps. Methods that take a handle work in any process that can reach the engine.

    Args:
        name: the session, which is part of every handle; may be empty.
        scheduler_factories: backend name to factory. None: all builtin schedulers and plug-ins.
        component_defaults: component name to a mapping of parameter to text.
        scheduler_params: keyword arguments for every factory; a dict under a backend's name is for that backend, and
            schedulers of this package refuse unknown names in it.
        check_session: refuse to cancel or delete by a handle of another session. This only guards against a mistaken
            handle. To separate teams, give each its own namespace, engine or queue: `list` shows all apps, with handles
            of this session.
        strict: whether to refuse unknown options; otherwise they are ignored, so that one cfg works for several
            schedulers.
        trackers: name to config of the trackers of all replicas. None: read from files and variables, see
            `get_configured_trackers`.
    """

    def __init__(
        self,
        name: str = "",
        scheduler_factories: Mapping[str, SchedulerFactory] | None = None,
        component_defaults: Mapping[str, Mapping[str, str]] | None = None,
        scheduler_params: Mapping[str, Any] | None = None,
        *,
        check_session: bool = False,
        strict: bool = True,
        trackers: Mapping[str, str | None] | None = None,
    ) -> None:
        factories = get_scheduler_factories() if scheduler_factories is None else scheduler_factories
        self._name = name
        self._factories = dict(factories)
        self._component_defaults = dict(component_defaults or {})
        self._scheduler_params = dict(scheduler_params or {})
        self._check_session = check_session
        self._strict = strict
        self._trackers = trackers
        self._schedulers: dict[str, Scheduler[Any]] = {}
        self._creating = threading.RLock()
        self._apps: dict[AppHandle, AppDef] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Runner(name={self._name!r}, schedulers={self.scheduler_backends()})"

    def name(self) -> str:
        """Return the session name."""
        return self._name

    def close(self) -> None:
        """Close all schedulers that were created; may be called again."""
        with self._creating:
            schedulers = [*self._schedulers.values()]
            self._schedulers.clear()
        for scheduler in schedulers:
            scheduler.close()

    # ---- schedulers ------------------------------------------------------------------------------------------

    def scheduler(self, backend: str) -> Scheduler[Any]:
        """Return the scheduler with this name, created on first use.

        Raises:
            UnknownSchedulerException: no such scheduler is registered.
            MissingDependencyError: its client library is not installed.
            InvalidRunConfigException: `scheduler_params` has a name for this scheduler that it does not accept.
        """
        name = resolve_scheduler_name(backend, self._factories)
        with self._creating:
            if name not in self._schedulers:
                if name not in self._factories:
                    raise UnknownSchedulerException(backend, self._factories)
                common, own = self._params_of(name)
                scheduler = self._factories[name](self._name, **{**common, **own})
                strange = [param for param in common if not self._may_know(param)]
                if unknown := _unknown_param(scheduler, [*own, *strange]):
                    scheduler.close()
                    raise InvalidRunConfigException(f"scheduler_params of {name!r}: {unknown}", name, common | own)
                for param in common:
                    # Another scheduler may accept it.
                    if "did you mean" in (unknown := _unknown_param(scheduler, [param])):
                        log.warning("scheduler %r ignores an %s", name, unknown)
                self._schedulers[name] = scheduler
            return self._schedulers[name]

    def scheduler_backends(self) -> builtins.list[str]:
        """Return the registered names, the default scheduler first."""
        return [*self._factories]

    def scheduler_run_opts(self, scheduler: str) -> runopts:
        """Return the schema of a scheduler's options."""
        return self.scheduler(scheduler).run_opts()

    def cfg_from_str(self, scheduler: str, *cfg_literal: str) -> dict[str, CfgVal]:
        """Return the options of texts such as `queue=gpu,tags=a;b`; later texts win.

        Raises:
            InvalidRunConfigException: a name or a value is wrong; a runner that is not strict ignores unknown names.
        """
        schema = self.scheduler_run_opts(scheduler)
        cfg: dict[str, CfgVal] = {}
        for text in cfg_literal:
            cfg.update(schema.cfg_from_str(text, strict=self._strict and len(schema) > 0))
        return cfg

    def _params_of(self, backend: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the keyword arguments for all factories, and those for this backend only."""
        own: dict[str, Any] = {}
        common: dict[str, Any] = {}
        for key, value in self._scheduler_params.items():
            meant = resolve_scheduler_name(key, self._factories)
            if meant in self._factories and isinstance(value, dict):
                if meant == backend:
                    own.update(value)
            else:
                common[key] = value
        return common, own

    def _may_know(self, param: str) -> bool:
        """Return whether one of the schedulers may accept a keyword; those of plug-ins may accept any."""
        if any(resolve_scheduler_name(name, BACKENDS) not in BACKENDS for name in self._factories):
            return True
        types: list[Any] = [backend.connection_options() for backend in BACKENDS.values()]
        return any(param == item.name for options in types for item in dataclasses.fields(options))

    # ---- launch ----------------------------------------------------------------------------------------------

    def run(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: str | Workspace | None = None,
        parent_run_id: str | None = None,
        *,
        dryrun: bool = False,
        app_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> AppHandle | AppDryRunInfo[Any]:
        """Launch an app and return its handle; with `dryrun` return the request instead.

        Arguments and errors are those of `dryrun` and `schedule`.
        """
        info = self.dryrun(
            app, scheduler, cfg, workspace, parent_run_id, app_id=app_id, idempotency_key=idempotency_key
        )
        return info if dryrun else self.schedule(info)

    def dryrun(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: str | Workspace | None = None,
        parent_run_id: str | None = None,
        *,
        app_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Return the request that `schedule` would send; nothing outside the process changes.

        Args:
            app: the app to launch; neither it nor `cfg` is changed.
            scheduler: name of the backend.
            cfg: options of this launch.
            workspace: directories to copy into the first role, instead of its own; ignored with a warning if the
                scheduler does not support it. Container schedulers build the image now, unless it exists.
            parent_run_id: the run that the app is a part of; the launcher's own environment wins.
            app_id: the id of the app. None: a new unique id.
            idempotency_key: makes the id from the app's name and this key: a second launch adopts the first app.

        Raises:
            InvalidAppError: app or cfg is wrong, or needs a feature that the scheduler lacks (`UnsupportedError`).
            UnknownSchedulerException: no such scheduler is registered.
        """
        backend = self.scheduler(scheduler)
        name = resolve_scheduler_name(scheduler, self._factories)
        with log_event("dryrun", name, app_id=app_id) as logged:
            copied = copy.deepcopy(app)
            check_app(copied)
            refuse_env_of_replicas(copied)
            if idempotency_key is not None:
                if app_id is not None:
                    raise ValueError("give either `app_id` or `idempotency_key`, not both: each determines the app id")
                # Names are for people; most schedulers accept only some of their characters.
                app_id = make_stable(slug(copied.name, 25), f"{len(copied.name)}:{copied.name}{idempotency_key}", 39)
                if Capability.ADOPT not in backend.capabilities:
                    warnings.warn(
                        f"{name!r} cannot adopt a running app: "
                        "a second run with this idempotency_key may start a second app",
                        stacklevel=3,
                    )
            logged.event.app_image = copied.roles[0].image
            inject_env(copied, name, self._name, parent_run_id, self._trackers)
            schema = backend.run_opts()
            # A plug-in without declared options accepts any; with declared options, misspelt ones are refused.
            resolved = copy.deepcopy(schema.resolve(cfg or {}, strict=self._strict and len(schema) > 0))
            if workspace and isinstance(backend, WorkspaceMixin):
                copied.roles[0].workspace = (
                    Workspace.from_str(workspace) if isinstance(workspace, str) else copy.deepcopy(workspace)
                )
            backend._pre_build_validate(copied, name, resolved)
            prepare_workspaces(copied, name, workspace, backend, resolved)
            validate(backend, copied, name, resolved)
            info = submit_dryrun(backend, copied, resolved, app_id)
            info._scheduler = name
            return info

    def run_component(
        self,
        component: str,
        component_args: Sequence[str] | Mapping[str, Any],
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: str | Workspace | None = None,
        parent_run_id: str | None = None,
        *,
        app_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> AppHandle:
        """Launch the app that a component builds, and return its handle; as `dryrun_component` and `schedule`."""
        info = self.dryrun_component(
            component,
            component_args,
            scheduler,
            cfg,
            workspace,
            parent_run_id,
            app_id=app_id,
            idempotency_key=idempotency_key,
        )
        return self.schedule(info)

    def dryrun_component(
        self,
        component: str,
        component_args: Sequence[str] | Mapping[str, Any],
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: str | Workspace | None = None,
        parent_run_id: str | None = None,
        *,
        app_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Return the request that `run_component` would send; other arguments and errors are those of `dryrun`.

        Args:
            component: its name, as for `specs.finder.get_component`.
            component_args: an argument vector (`["--j", "2x4"]`), or a mapping of parameter to value (`{"j": "2x4"}`).
                `component_defaults` of the runner fill in missing ones.
            scheduler: name of the backend.
            cfg: options of this launch.
            workspace: directories to copy into the first role.
            parent_run_id: the run that the app is a part of.
            app_id: the id of the app.
            idempotency_key: the same as in `dryrun`.

        Raises:
            ComponentNotFoundException: the component does not exist.
            ComponentValidationException: the function is not a valid component.
            InvalidAppError: an argument is unknown, wrong or missing; the text shows the usage.
            TypeError: the component does not return an `AppDef`.
        """
        # Imported here, because plain launches need neither argparse nor the finder.
        from airflow_provider_launch.specs.builders import build_app
        from airflow_provider_launch.specs.finder import get_component

        app = build_app(get_component(component).fn, component_args, self._component_defaults.get(component))
        return self.dryrun(
            app, scheduler, cfg, workspace, parent_run_id, app_id=app_id, idempotency_key=idempotency_key
        )

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> AppHandle:
        """Send the request and return the handle of the app; may be repeated on schedulers that adopt.

        Raises:
            ValueError: the info does not come from `dryrun`.
            AppConflictError: the id belongs to another app.
            SchedulerUnavailableError: the scheduler cannot be reached; the same call may succeed later.
        """
        name, app = dryrun_info._scheduler, dryrun_info._app
        if name is None or app is None:
            raise ValueError("this dry-run info has no scheduler or no app; create it with `Runner.dryrun`")
        with log_event("schedule", name, app_image=app.roles[0].image if app.roles else None) as logged:
            app_id = self.scheduler(name).schedule(dryrun_info)
            logged.event.app_id = app_id
            handle = make_app_handle(resolve_scheduler_name(name, self._factories), self._name, app_id)
            self._apps[handle] = app
            return handle

    # ---- workspaces ------------------------------------------------------------------------------------------

    def build_workspace(
        self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None
    ) -> dict[tuple[str, Workspace], str]:
        """Build each workspace of the app once and return (image, workspace) to the image that contains it.

        `pin_workspace_images` sets these images in an app.

        Raises:
            InvalidAppError: a workspace is missing, too large or cannot be built, or the scheduler supports none.
        """
        backend = self.scheduler(scheduler)
        name = resolve_scheduler_name(scheduler, self._factories)
        with log_event("build_workspace", name):
            if not isinstance(backend, WorkspaceMixin):
                raise UnsupportedError(f"{name!r} does not support workspaces; put the code into the image")
            return built_images(backend, app, cfg or {})

    def build_standalone_workspace(self, workspace_builder: WorkspaceBuilder[Any, Any], sync: bool = True) -> Any:
        """Return the result of `workspace_builder.build_workspace(sync)`."""
        return workspace_builder.build_workspace(sync)

    # ---- by handle -------------------------------------------------------------------------------------------

    def status(self, app_handle: AppHandle) -> AppStatus | None:
        """Return the current status of the app; None if it does not exist, or its record was removed.

        Raises:
            SchedulerUnavailableError: the scheduler cannot be reached, so the status is unknown.
        """
        scheduler, parsed = self._find(app_handle)
        with log_event("status", parsed.scheduler_backend, parsed.app_id):
            return self._status(app_handle, scheduler, parsed)

    def _status(self, app_handle: AppHandle, scheduler: Scheduler[Any], parsed: ParsedAppHandle) -> AppStatus | None:
        return self._to_status(app_handle, scheduler.describe(parsed.app_id))

    def _to_status(self, app_handle: AppHandle, found: DescribeAppResponse | None) -> AppStatus | None:
        if found is None:
            self._apps.pop(app_handle, None)
            return None
        return found.to_status()

    def wait(
        self,
        app_handle: AppHandle,
        wait_interval: float = 10,
        *,
        timeout: float | None = None,
        max_errors: int = 5,
        start_limit_s: float | None = None,
    ) -> AppStatus | None:
        """Wait until the app has ended, and return its status; None if its record is gone.

        An app that can never start, for example because its image does not exist, is cancelled after a minute.

        Args:
            app_handle: the app.
            wait_interval: seconds between two polls; a new app is polled more often.
            timeout: seconds after which to give up. None: never.
            max_errors: number of consecutive errors or UNKNOWN states to tolerate, with growing pauses.
            start_limit_s: seconds from now within which the app must start; an app that still waits then is cancelled.
                None: no limit.

        Raises:
            TimeoutError: the app has not ended in time; it continues to run.
            AppNotStartedError: it has not started in time, or cannot start; the text has the reason.
            AppStatusError: the state stayed UNKNOWN.
            Exception: the last error, if too many came in a row.
        """
        # Imported here, because launching and listing do not need the follower.
        from airflow_provider_launch.runner.waits import wait_for_end

        scheduler, parsed = self._find(app_handle)
        with log_event("wait", parsed.scheduler_backend, parsed.app_id):
            try:
                found = wait_for_end(
                    scheduler,
                    parsed.app_id,
                    app_handle,
                    wait_interval,
                    timeout=timeout,
                    max_errors=max_errors,
                    start_limit_s=start_limit_s,
                )
            except AppNotStartedError:
                if self._is_own(parsed):
                    scheduler.cancel(parsed.app_id)
                raise
            return self._to_status(app_handle, found)

    def cancel(self, app_handle: AppHandle) -> None:
        """Ask the app to end, without waiting; no-op if it is unknown or has ended."""
        scheduler, parsed = self._find(app_handle, changes=True)
        with log_event("cancel", parsed.scheduler_backend, parsed.app_id):
            status = self._status(app_handle, scheduler, parsed)
            if status is not None and not is_terminal(status.state):
                scheduler.cancel(parsed.app_id)

    def stop(self, app_handle: AppHandle) -> None:
        """Cancel the app; the older name of `cancel`."""
        warnings.warn("`stop` will be deprecated, use `cancel`", PendingDeprecationWarning, stacklevel=2)
        self.cancel(app_handle)

    def delete(self, app_handle: AppHandle) -> None:
        """Remove the app and its record; a running one is cancelled first. No-op if it is unknown."""
        scheduler, parsed = self._find(app_handle, changes=True)
        with log_event("delete", parsed.scheduler_backend, parsed.app_id):
            if self._status(app_handle, scheduler, parsed) is not None:
                scheduler.delete(parsed.app_id)

    def sweep(
        self,
        scheduler: str,
        older_than_s: float,
        *,
        live: bool = False,
        dag_id: str | None = None,
        run_id: str | None = None,
        task_id: str | None = None,
    ) -> builtins.list[AppHandle]:
        """Delete the apps that ended more than `older_than_s` seconds ago, and return their handles.

        Args:
            scheduler: name of the backend.
            older_than_s: seconds since the end of the app.
            live: also cancel and delete unfinished apps that were launched that long ago and may have lost their task.
            dag_id: only apps launched by tasks of this DAG.
            run_id: only apps of this run.
            task_id: only apps of this task; of all its instances, if it is mapped.

        Raises:
            SchedulerUnavailableError: the scheduler cannot be reached; apps deleted before the error stay deleted.
        """
        backend = self.scheduler(scheduler)
        name = resolve_scheduler_name(scheduler, self._factories)
        with log_event("sweep", name):
            deleted = backend.sweep(older_than_s, live=live, owner=_owner(dag_id, run_id, task_id))
            return [make_app_handle(name, self._name, app_id) for app_id in deleted]

    def describe(self, app_handle: AppHandle) -> AppDef | None:
        """Return the app as it was launched, or as far as the scheduler still has it; None if it does not exist."""
        scheduler, parsed = self._find(app_handle)
        with log_event("describe", parsed.scheduler_backend, parsed.app_id):
            if app_handle in self._apps:
                return self._apps[app_handle]
            found = scheduler.describe(parsed.app_id)
            if found is None:
                return None
            return AppDef(name=parsed.app_id, roles=found.roles, metadata=dict(found.metadata))

    def describe_native(self, app_handle: AppHandle) -> AppDryRunInfo[Any] | None:
        """Return the request as the engine stores it; None if it stores none, or the app is unknown."""
        scheduler, parsed = self._find(app_handle)
        with log_event("describe_native", parsed.scheduler_backend, parsed.app_id):
            info = scheduler.describe_native(parsed.app_id)
            if info is not None:
                info._scheduler = parsed.scheduler_backend
            return info

    def log_lines(
        self,
        app_handle: AppHandle,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Return the lines of one replica, each with its newline.

        Args:
            app_handle: the app.
            role_name: its role.
            k: the replica, from 0 in its role.
            regex: keep only lines that match somewhere.
            since: keep only lines from this time on; naive means UTC.
            until: keep only lines before this time; naive means UTC.
            should_tail: whether to follow until the app has ended; otherwise only the existing lines are returned.
            streams: STDOUT, STDERR or COMBINED. None: the default of the backend.

        Raises:
            UnknownAppException: the app does not exist; raised by the call itself.
            ValueError: the app has no such role or replica, or the regex is invalid.
        """
        scheduler, parsed = self._find(app_handle)
        with log_event("log_lines", parsed.scheduler_backend, parsed.app_id):
            if self._status(app_handle, scheduler, parsed) is None:
                raise UnknownAppException(app_handle)
            return scheduler.log_iter(parsed.app_id, role_name, k, regex, since, until, should_tail, streams=streams)

    def list(
        self,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        *,
        dag_id: str | None = None,
        run_id: str | None = None,
        task_id: str | None = None,
    ) -> builtins.list[ListAppResponse]:
        """Return the apps of this launcher on a scheduler, with their handles.

        Args:
            scheduler: name of the backend.
            cfg: its location, for schedulers that need options to list apps.
            dag_id: only apps launched by tasks of this DAG.
            run_id: only apps of this run.
            task_id: only apps of this task; of all its instances, if it is mapped.
        """
        wanted = _owner(dag_id, run_id, task_id)
        backend = self.scheduler(scheduler)
        name = resolve_scheduler_name(scheduler, self._factories)
        with log_event("list", name):
            # Plug-ins older than `cfg` do not accept the argument.
            apps = backend.list(cfg) if cfg else backend.list()
            if wanted:
                apps = [app for app in apps if wanted.items() <= app.owner.items()]
            for app in apps:
                app.app_handle = make_app_handle(name, self._name, app.app_id)
            return apps

    def orphans(
        self,
        scheduler: str,
        states: Callable[[Collection[TaskKey]], Mapping[TaskKey, str | None]],
        deployment: str,
        *,
        confirm_s: float = CONFIRM_S,
    ) -> builtins.list[AppHandle]:
        """Return the running apps of one Airflow deployment whose tasks are over; waits `confirm_s` if there are any.

        For deployments without a triggerer; `LaunchHook.orphans` calls it with the states of its Airflow. It leaves out
        apps of deleted runs: only a process that saw the run before can know that it was deleted.

        Args:
            scheduler: name of the backend.
            states: returns the states of tasks; see `airflow_provider_launch.hooks.task_states`.
            deployment: the id of the Airflow deployment; apps of other deployments are ignored.
            confirm_s: seconds between the two checks.
        """
        finder = OrphanFinder(deployment, confirm_s=confirm_s)
        for is_last in (False, True):
            rows = {row.app_id: row for row in self.list(scheduler)}
            apps = finder.wanted(rows.values())
            found = finder.check(apps, states({*apps.values()}) if apps else {}, time.monotonic())
            if is_last or found.due_in_s is None:
                return [rows[orphan.app_id].app_handle for orphan in found.orphans]
            time.sleep(found.due_in_s)
        return []

    def _is_own(self, parsed: ParsedAppHandle) -> bool:
        return not self._check_session or parsed.session_name == self._name

    def _find(self, app_handle: AppHandle, *, changes: bool = False) -> tuple[Scheduler[Any], ParsedAppHandle]:
        parsed = parse_app_handle(app_handle)
        if changes and not self._is_own(parsed):
            raise SessionMismatchException(app_handle, self._name)
        scheduler = self.scheduler(parsed.scheduler_backend)
        name = resolve_scheduler_name(parsed.scheduler_backend, self._factories)
        return scheduler, parsed._replace(scheduler_backend=name)


def _owner(dag_id: str | None, run_id: str | None, task_id: str | None) -> dict[str, str]:
    given = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id}
    return {name: value for name, value in given.items() if value is not None}


def _unknown_param(scheduler: Scheduler[Any], params: Iterable[str]) -> str:
    """Return the problem with the first keyword that a scheduler of this package does not accept; empty if none."""
    connection_type = getattr(scheduler, "connection_type", None)
    if not (isinstance(connection_type, type) and dataclasses.is_dataclass(connection_type)):
        return ""  # a plug-in may accept any keyword, and a mock of a scheduler has any attribute
    known = {item.name for item in dataclasses.fields(connection_type)}
    for name in params:
        if name not in known and name not in getattr(scheduler, "factory_params", ()):
            near = closest(name, known)
            hint = f"did you mean {near!r}?" if near else f"valid ones are {', '.join(sorted(known))}"
            return f"unknown parameter {name!r}; {hint}"
    return ""


def get_runner(
    name: str | None = None,
    component_defaults: Mapping[str, Mapping[str, str]] | None = None,
    *,
    strict: bool = True,
    **scheduler_params: Any,
) -> Runner:
    """Return a runner of the session `torchx`, in which stored handles were created.

    Args:
        name: another session name; give it to `Runner` instead.
        component_defaults: component name to a mapping of parameter to text.
        strict: the same as in `Runner`.
        **scheduler_params: keyword arguments for every scheduler, or a dict under the name of one. One that no
            scheduler knows is refused when a scheduler is used, unless there are plug-ins, which may know it.
    """
    if name is not None:
        warnings.warn("`name` of `get_runner` will be removed; use `Runner(name=...)`", FutureWarning, stacklevel=2)
    return Runner("torchx" if name is None else name, None, component_defaults, scheduler_params, strict=strict)
