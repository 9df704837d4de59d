"""`LaunchAppOperator`: one task, one distributed app."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, XComArg

from airflow_provider_launch.links.launch import (
    JobDefinitionLink,
    QueueLink,
    RequestLink,
    SchedulerLink,
    SchedulerLogLink,
)
from airflow_provider_launch.operators.templates import (
    as_text,
    has_template,
    is_plain_object,
    rendered_copy,
    with_final_newline,
)

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import BaseOperatorLink, Context
    from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial

    from airflow_provider_launch._task.callbacks import Callback
    from airflow_provider_launch._task.cancel_on_kill import CancelThread
    from airflow_provider_launch._task.options import FollowOptions
    from airflow_provider_launch.operators._run import OperatorRun
    from airflow_provider_launch.operators._sources import Sources
    from airflow_provider_launch.operators._written import Written
    from airflow_provider_launch.schedulers.logs import Stream
    from airflow_provider_launch.schedulers.responses import DescribeAppResponse
    from airflow_provider_launch.specs.roles import AppDef
    from airflow_provider_launch.specs.workspaces import Workspace

# The core is imported where it is used, because each parse of each DAG file pays for the imports at the top.

__all__ = ["LaunchAppOperator"]


class LaunchAppOperator(BaseOperator):
    """Launches an app, follows it, and succeeds only if the app has succeeded.

    The task log shows states and lines of all replicas. XCom `handle` exists from the launch on; after a success
    `return_value` is `{handle, state, attempts, roles: {name: [exit codes]}, result}`. XCom `app` is the same without
    the result, after a success and after a failure.

    A retry continues with the app of the last try if it is still running, and launches a new one if it failed.
    A cleared task ends the old app and launches a new one. A task that is killed or times out cancels its app.

    Give either an `app` or a `component` with its `component_args`.

    Args:
        app: an `AppDef`; a dict as `app_to_dict` gives it; or a callable `(context, jinja_env)` that returns either.
            Every string in an app that is written in the DAG file is a template; XComs and the value of the callable
            are not. Airflow calls a callable in each try, and once more when a deferred task resumes.
        component: name of a function that returns an app: `dist.ddp`, `package.module:function`, or
            `path/to/file.py:function`, relative to the folder of the DAG file.
        component_args: its arguments by name, or as a list like on a command line. Names and types are checked when
            the DAG is parsed. Template; the component is called with the rendered values.
        launch_conn_id: the connection, which names the scheduler. Template.
        cfg: options of this launch; they override those of the connection. Template.
        workspace: directory with the code of the first role, relative to the DAG file; or a mapping of local
            directories to paths in the working directory of a replica, where each replica finds a copy. Template.
        wait: whether to wait for the end of the app. False: succeed right after the launch, with the same XComs.
        poll_interval_s: seconds between two polls of the app. None: the scheduler's default.
        streams: "stdout", "stderr" or "combined". None: all that the scheduler has.
        log_roles: roles whose lines are shown. None: all roles; empty: no lines.
        log_replicas: numbers of the replicas of each role whose lines are shown: `[0]`. The lines of others are read
            all the same, so the error of a failed replica is complete. None: all.
        stderr_level: level of lines of stderr in the task log: "warning"; "info"; or "line", the level that stands in
            the line itself, such as `INFO` or `ERROR`.
        logs_from: "start", or "now" to skip the earlier lines of an adopted app.
        max_log_bytes: maximum bytes of log shown per replica. A longer log is cut in the middle. None: all.
        on_kill: whether a killed task cancels its app ("cancel"), or leaves it running for the next try ("leave").
        unavailable_for_s: seconds to retry while the scheduler is unreachable.
        time_limit_s: seconds after which the scheduler ends the app; on Docker only while a process polls the app.
        start_limit_s: seconds from the first submission within which the app must have started, also across retries
            that adopt it. Otherwise it is cancelled, and the task fails with the reason for the wait. None: no limit,
            except that a stuck app, such as one with a missing image, waits only a minute.
            With `wait=False` the task waits for the start until this limit; without a limit it does not wait.
        silence_limit_s: seconds without a line of any replica after which the app counts as hanging: it is cancelled,
            and the error names the replicas that were still running. None: no limit.
        checkpoint_dir: path or URI below which each replica gets a `LAUNCH_CHECKPOINT_DIR`, the same for all attempts
            and tries of one DAG run, task and map index, also after a clear. Docker mounts it. Template.
        on_finish: when to delete an ended app, after its log and result were read: "keep" (never), "delete_succeeded",
            or "delete" (always). None: `[launch] on_finish`, "delete_succeeded" by default.
        results: "first" returns the result of the lowest-numbered replica of the first role that wrote one, "all" a
            list of the results of all replicas of that role.
        skip_on_exit_code: one or more exit codes. The task is skipped if the first failed replica has one of them.
        deferrable: whether to wait in the triggerer, without a worker. None: `[operators] default_deferrable`.
        defer_after_s: seconds for which the worker follows the app before it defers; an app that ends by then needs
            no triggerer. None: `[launch] defer_after_s`, 10 by default.
        on_start: function that is called with the `AppStatus` once the app has started, in each try. It runs on a
            worker, so if the app starts while the task is deferred, it is called when the task resumes.
        on_event: the same after each change of the state and each end of an attempt that a worker sees.
        on_end: the same with the last status, before the task succeeds or fails. An exception in one of the three is
            logged, and changes nothing.
    """

    template_fields: Sequence[str] = (
        "app",
        "component_args",
        "cfg",
        "launch_conn_id",
        "workspace",
        "checkpoint_dir",
        "request",
    )
    template_fields_renderers = {"cfg": "json", "component_args": "json"}  # noqa: RUF012 - as Airflow declares it
    # `request` is set during execution. If the link could not store it then, Airflow stores it here.
    overwrite_rtif_after_execution = True
    operator_extra_links: Collection[BaseOperatorLink] = (
        SchedulerLink(),
        JobDefinitionLink(),
        QueueLink(),
        SchedulerLogLink(),
        RequestLink(),
    )
    ui_color = "#d9ecf2"
    _builds_app: ClassVar[bool] = True
    """Whether a function of the task builds the app; for one of a decorator it may be the program of the app."""
    _pushes_app: ClassVar[bool] = True
    """Whether XComs `handle` and, after a success, `app` are pushed; operators built on this one may have their own."""

    def __init__(
        self,
        *,
        app: AppDef | Mapping[str, Any] | Callable[..., Any] | XComArg | None = None,
        component: str | None = None,
        component_args: Mapping[str, Any] | Sequence[Any] | XComArg | None = None,
        launch_conn_id: str = "launch_local_default",
        cfg: Mapping[str, Any] | None = None,
        workspace: str | Mapping[str, str] | Workspace | XComArg | None = None,
        wait: bool = True,
        poll_interval_s: float | None = None,
        streams: str | Stream | None = None,
        log_roles: Sequence[str] | None = None,
        log_replicas: Sequence[int] | None = None,
        stderr_level: str = "warning",
        logs_from: str = "start",
        max_log_bytes: int | None = None,
        on_kill: str = "cancel",
        unavailable_for_s: float = 600,
        time_limit_s: float | None = None,
        start_limit_s: float | None = None,
        silence_limit_s: float | None = None,
        checkpoint_dir: str | None = None,
        on_finish: str | None = None,
        results: str = "first",
        skip_on_exit_code: int | Sequence[int] | None = None,
        deferrable: bool | None = None,
        defer_after_s: float | None = None,
        on_start: Callback | None = None,
        on_event: Callback | None = None,
        on_end: Callback | None = None,
        **kwargs: Any,
    ) -> None:
        from airflow_provider_launch._task.options import default_deferrable

        if kwargs:
            _refuse_peer_arguments(kwargs, type(self))
        super().__init__(**kwargs)
        self.app = app
        self.component = component
        self.component_args = component_args
        self.cfg = cfg
        self.workspace = workspace
        self.launch_conn_id = launch_conn_id
        self.wait = wait
        self.poll_interval_s = poll_interval_s
        self.streams = streams
        self.log_roles = log_roles
        self.log_replicas = log_replicas
        self.stderr_level = stderr_level
        self.logs_from = logs_from
        self.max_log_bytes = max_log_bytes
        # `on_kill` is the name of Airflow's method.
        self.kill_policy = on_kill
        self.unavailable_for_s = unavailable_for_s
        self.time_limit_s = time_limit_s
        self.start_limit_s = start_limit_s
        self.silence_limit_s = silence_limit_s
        self.checkpoint_dir = checkpoint_dir
        self.on_finish = on_finish
        self.results = results
        self.skip_on_exit_code = skip_on_exit_code
        self.deferrable = default_deferrable() if deferrable is None else deferrable
        self.defer_after_s = defer_after_s
        self.on_start = on_start
        self.on_event = on_event
        self.on_end = on_end
        self.request: str | None = None
        self.ui_url: str | None = None
        self.ui_pages: Mapping[str, str] = {}
        self._killed = False
        self._killer: CancelThread | None = None
        self._written: Written | None = None
        """The part of the authors of the DAG file; None if no template was rendered."""
        self._is_app_made = component is not None or callable(app)
        """Whether a function builds the app, otherwise the field `app` contains it."""
        self._marks_data = self._keeps_types = self._is_option = False
        self._marked_args: Any = None
        self._unmarked_args: Any = None
        """The last rendered arguments of the component: with `$` marked, as in `_data`, and unmarked."""
        with _final_errors(self.task_id):
            self._check_arguments()
            is_known = self._check_app()
        # An app that is known has no part of another task.
        _set_upstream(self, (self.component_args,) if is_known else (self.app, self.component_args))

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Return the operator with some of its arguments; `expand` adds the others for each mapped task."""
        _refuse_peer_arguments(kwargs, cls)
        made = super().partial(**kwargs)
        made.__class__ = _partial_class(type(made))  # type: ignore[arg-type]
        return made

    def _check_arguments(self) -> None:
        from airflow_provider_launch._task.callbacks import check_callback
        from airflow_provider_launch._task.options import (
            check_exit_codes,
            check_on_finish,
            check_results,
            check_seconds,
        )

        self.follow_options.check()
        check_results(self.results)
        if self.on_finish is not None:
            check_on_finish(self.on_finish)
        for name, seconds in (
            ("poll_interval_s", self.poll_interval_s),
            ("time_limit_s", self.time_limit_s),
            ("start_limit_s", self.start_limit_s),
        ):
            if seconds is not None:
                check_seconds(name, seconds)
        if self.defer_after_s is not None:
            check_seconds("defer_after_s", self.defer_after_s, may_be_0=True)
        for name, function in (("on_start", self.on_start), ("on_event", self.on_event), ("on_end", self.on_end)):
            check_callback(name, function)
        check_exit_codes("skip_on_exit_code", self.skip_on_exit_code)
        is_rendered_later = isinstance(self.workspace, str) and "{" in self.workspace
        if self.workspace is not None and not is_rendered_later and not _has_xcom(self.workspace):
            from airflow_provider_launch.operators._workspace import workspace_from

            workspace_from(self.workspace)

    @property
    def follow_options(self) -> FollowOptions:
        """The options for following the app; templates in them may not be rendered yet."""
        from airflow_provider_launch._task.options import FollowOptions

        return FollowOptions(
            self.launch_conn_id,
            self.poll_interval_s,
            self.unavailable_for_s,
            self.streams,
            self.log_roles,
            self.logs_from,
            self.max_log_bytes,
            self.kill_policy,
            watches_start=True,
            start_limit_s=self.start_limit_s,
            log_replicas=self.log_replicas,
            stderr_level=self.stderr_level,
            silence_limit_s=self.silence_limit_s,
        )

    def _check_app(self) -> bool:
        """Check the app as far as it is known, and return whether all of it is."""
        from airflow_provider_launch.specs.errors import InvalidAppError

        if (self.app is None) == (self.component is None):
            raise InvalidAppError(
                "give exactly one of `app` and `component`: an AppDef, or the name of a function that returns one"
            )
        if self.component is not None:
            from airflow_provider_launch._task.mapped import is_from_mapped
            from airflow_provider_launch.operators._component import check_component

            # On the worker its arguments may come from a run, so nothing is called before they are checked.
            if not is_from_mapped(self):
                check_component(self)
        elif self.component_args is not None:
            raise InvalidAppError("component_args needs a component; name it, or leave component_args out")
        elif not callable(self.app) and not _has_xcom(self.app):
            _as_app(self.app)
            return True
        return False

    def _rendered_app(self) -> AppDef:
        """Return the app, after templates are rendered."""
        if self.component is None:
            return _as_app(self.app)
        from airflow_provider_launch.operators._component import component_app

        is_rendered = self._unmarked_args is not None and self.component_args is self._unmarked_args
        return component_app(self, self._marked_args if is_rendered else self.component_args)

    # ---- run -------------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Launch or adopt the app, follow it, and return the XCom value.

        Raises:
            AirflowFailException: app, options or connection are wrong; retries do not help.
            AppFailedError: the app failed or was cancelled.
            UnknownOutcomeError: the app vanished.
            SchedulerUnavailableError: the scheduler was unreachable for too long; the app may be running.
        """
        with _final_errors():
            app = self._rendered_app()
            return self._value_of(self._started(context).run(app, self._sources()))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume a deferred task; if its trigger failed, follow the app here."""
        from airflow_provider_launch._task.errors import event_of_failure

        event = event_of_failure(next_method, next_kwargs)
        # Once more, because the frames below would be shown above the user's error.
        with _final_errors():
            if event is not None:
                return self.resume(context, event)
            return super().resume_execution(next_method, next_kwargs, context)

    def resume(self, context: Context, event: Mapping[str, Any] | None = None, *, has_started: bool = False) -> Any:
        """Finish a deferred task like `execute`: log the rest, and return or raise the outcome.

        Without an event this is `execute`, because the task was cleared while it was deferred.

        Raises:
            AirflowTaskTimeout: `execution_timeout` has passed; the app is cancelled.
            Exception: those of `execute`.
        """
        if event is None:
            return self.execute(context)
        with _final_errors():
            # Do not build the app of the DAG again, because the launched app counts.
            return self._value_of(self._started(context).resume(event, has_started=has_started))

    def _started(self, context: Context) -> OperatorRun:
        """Return a run whose app `on_kill` cancels."""
        # Imported here, because parsing a DAG does not need it.
        from airflow_provider_launch._task.cancel_on_kill import CancelThread
        from airflow_provider_launch.operators._run import OperatorRun

        self._killer = killer = CancelThread()
        if self._killed:
            killer.fire()
        return OperatorRun(self, context, killer, self._app_ended)

    def dry_run(self) -> None:
        """Print the request that would be sent, with templates as they are."""
        if callable(self.app) or _has_xcom(self.app) or _has_xcom(self.component_args):
            print(f"{self.task_id}: the app is known only in a run")  # noqa: T201 - the purpose of dry_run
            return
        from airflow_provider_launch.operators._request import shown_dry_run

        print(shown_dry_run(self, self._rendered_app()))  # noqa: T201 - the purpose of dry_run

    def on_kill(self) -> None:
        """Mark the task as killed and cancel the app; called in a signal handler."""
        self._killed = True
        if self._killer is not None:
            self._killer.fire()

    def _app_for(self, app: AppDef, backend: str) -> AppDef:
        """Return the app for a scheduler of this kind; for operators built on this one."""
        if self.component is not None and backend == "local":
            from airflow_provider_launch.operators._component import refuse_missing_script

            refuse_missing_script(self, app)
        return app

    def _value_of(self, outcome: Mapping[str, Any]) -> Any:
        """Return the value of the task for the outcome of a success; for operators built on this one.

        Called before the app is removed, and again for the return value.

        Raises:
            InvalidAppError: the outcome has no such value.
        """
        return outcome

    def _app_runs(self) -> None:
        """Called at least each 0.2 s while a worker follows the app; for operators built on this one."""

    def _app_ended(self, response: DescribeAppResponse) -> None:
        """Handle the last status of the app; for operators built on this one."""

    def is_skipped_by(self, exit_code: int | None) -> bool:
        """Return whether the task is skipped if the first failed replica has this exit code."""
        wanted = self.skip_on_exit_code
        if exit_code is None or wanted is None:
            return False
        return exit_code == wanted if isinstance(wanted, int) else exit_code in wanted

    # ---- templates -------------------------------------------------------------------------------------------

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Return `content` rendered; apps and roles are copied, so the DAG's own objects do not change."""
        from airflow_provider_launch.operators._data import marked, settled, settled_app

        if content is None or not (content is self.app or content is self.component_args):
            before = self._is_option
            self._is_option = before or self._is_option_field(content)
            try:
                rendered = self._render_content(content, context, jinja_env, seen_oids)
            finally:
                self._is_option = before
            if content is not None and any(content is getattr(self, name, None) for name in self.template_fields):
                self._register_field(content, rendered)
            return rendered
        is_app = content is self.app
        # Whether the whole field is a template or an XCom.
        is_external = isinstance(content, str) or hasattr(content, "resolve") or id(content) in (seen_oids or ())
        # If the whole app comes from a template or XCom, macros in it are replaced. A single value from there is data,
        # so its `$` stay. A list is a command line, so all its members are strings.
        self._marks_data, self._keeps_types = not (is_app and is_external), not (is_app or isinstance(content, list))
        try:
            rendered = self._render_content(content, context, jinja_env, seen_oids)
        finally:
            marks, self._marks_data, self._keeps_types = self._marks_data, False, False
        if is_app:
            from airflow_provider_launch.operators._masks import register_texts, with_masks

            made = settled_app(rendered) if marks else rendered
            if not is_external:
                found = register_texts(content, made)
                if self._written is not None:
                    self._written.secrets += found
            return with_masks(made)
        self._marked_args = marked(rendered) if is_external else rendered
        self._unmarked_args = settled(self._marked_args)
        self._register_field(content, self._unmarked_args)
        return self._unmarked_args

    def _do_render_template_fields(self, parent: Any, *args: Any, **kwargs: Any) -> None:
        # Airflow calls the function of `app` in here, and this also for mapped tasks.
        if parent is self:
            self._note_written()
            if self.component is not None:
                from airflow_provider_launch.operators._component import check_name

                # Rendering the arguments imports the component.
                with _final_errors():
                    check_name(self)
        is_function = parent is self and callable(self.app)
        super()._do_render_template_fields(parent, *args, **kwargs)
        if is_function and not callable(self.app):
            from airflow_provider_launch.operators._masks import with_masks

            self.app = with_masks(self.app)

    def _register_field(self, content: Any, rendered: Any) -> None:
        """Register secrets in a rendered field, which Airflow stores before the task starts."""
        from airflow_provider_launch.operators._masks import register_field

        is_args = content is getattr(self, "op_args", None)
        function = getattr(self, "python_callable", None) if is_args else None
        found = register_field(content, rendered, function, is_option=content is self.cfg)
        if self._written is not None:
            self._written.secrets += found

    def prepare_for_execution(self) -> Any:
        """Return the copy that runs, with the part of the authors of the DAG file."""
        made: Any = super().prepare_for_execution()
        made._note_written()  # noqa: SLF001 - of this class
        return made

    def _note_written(self) -> None:
        if self._written is None:
            self._written = self._written_part()

    def _written_part(self) -> Written:
        """Return the part of the DAG file, before templates are rendered; for operators built on this one."""
        from airflow_provider_launch._task.mapped import is_from_mapped
        from airflow_provider_launch.operators._written import written_in, written_in_mapped

        return written_in_mapped(self) if is_from_mapped(self) else written_in(self)

    def _render_content(
        self, content: Any, context: Context, jinja_env: jinja2.Environment | None, seen_oids: set[int] | None
    ) -> Any:
        from airflow_provider_launch.operators._data import marked
        from airflow_provider_launch.util.openapi_models import is_model, plain

        # Values from XComs are data, so strings in them are not rendered.
        if (seen_oids is not None and id(content) in seen_oids) or isinstance(content, Enum):
            return marked(content) if self._marks_data else content
        env = jinja_env or self.get_template_env()
        if is_model(content):
            # Airflow does not render objects of the package `kubernetes`.
            content = plain(content)
        if isinstance(content, str):
            is_template = has_template(content, env)
            text = self._rendered_text(content, context, env, seen_oids) if is_template else content
            return with_final_newline(content, text, env) if is_template else content
        if self._marks_data and isinstance(content, XComArg):
            return marked(super().render_template(content, context, env, seen_oids))
        if is_plain_object(content):
            keeps = self._keeps_types
            # Metadata may hold any type.
            return rendered_copy(
                content,
                lambda name, part: self._render_part(part, context, env, seen_oids, keeps or name == "metadata"),
            )
        if content is self.component_args and isinstance(content, dict):
            from airflow_provider_launch.operators._component import takes_text

            return {
                name: self._render_part(part, context, env, seen_oids, not takes_text(self, name, part))
                for name, part in content.items()
            }
        rendered = super().render_template(content, context, env, seen_oids)
        return as_text(content, rendered) if content is self.app and isinstance(content, dict) else rendered

    def _render_part(
        self, part: Any, context: Context, env: jinja2.Environment, seen_oids: set[int] | None, keeps_types: bool
    ) -> Any:
        """Return a field of an app or role, or an argument of a component, rendered."""
        before, self._keeps_types = self._keeps_types, keeps_types
        try:
            return self.render_template(part, context, env, seen_oids)
        finally:
            self._keeps_types = before

    def _rendered_text(
        self, content: str, context: Context, env: jinja2.Environment, seen_oids: set[int] | None
    ) -> Any:
        from jinja2 import Undefined, nativetypes

        native = isinstance(env, nativetypes.NativeEnvironment)
        if not (self._marks_data or (self._is_option and native)):
            return super().render_template(content, context, env, seen_oids)
        from airflow_provider_launch._airflow import rendering
        from airflow_provider_launch.operators._data import data_env, marked, settled

        is_text = not (native and self._keeps_types)
        values: list[Any] = []
        env = data_env(env, native=native, as_text=is_text, values=values)
        with rendering(self, native=not is_text):
            rendered = super().render_template(content, context, env, seen_oids)
        if not self._marks_data:
            # "3.10" and "None" stay text; a single expression keeps its own type, such as a list.
            text = settled(rendered)
            is_whole = len(values) == 1 and text == as_text("", values[0]) and not isinstance(values[0], Undefined)
            return values[0] if is_whole else text
        if native and is_text and values == [None] and rendered == "None":
            return None  # the default of a parameter or field, not the string "None"
        # In a string, `data_env` has marked the inserted values; the rest was written in the DAG file.
        return rendered if isinstance(rendered, str) else marked(rendered)

    def _is_option_field(self, content: Any) -> bool:
        """Return whether the content is a field whose texts stay texts in a native DAG, and not a part of the app."""
        if self._marks_data:
            return False
        # A text for all options is evaluated, so that it can name a dict.
        is_cfg = content is self.cfg and isinstance(content, Mapping)
        return is_cfg or any(content is field for field in (self.launch_conn_id, self.workspace, self.checkpoint_dir))

    def _sources(self) -> Sources:
        """Return which files and addresses the app may name.

        These are the files and addresses in the DAG file, and those in the code of the function that builds the app.
        """
        from airflow_provider_launch.operators._sources import Sources

        written = self._written
        if written is None:
            return Sources(None)
        is_free = self.component is not None and any(self.component_args == each for each in written.args)
        # Code of the author may also make it of the mapped values.
        code = written.code if self._is_app_made or written.is_app_made else None
        return Sources(
            written.texts, code, folders=written.folders, is_free=is_free, are_options_built=written.is_built
        )


def _as_app(value: Any) -> AppDef:
    """Return a checked app."""
    from airflow_provider_launch.specs.app_dict import app_from_dict
    from airflow_provider_launch.specs.check import check_app
    from airflow_provider_launch.specs.errors import InvalidAppError
    from airflow_provider_launch.specs.roles import AppDef

    app = app_from_dict(value) if isinstance(value, Mapping) else value
    if not isinstance(app, AppDef):
        raise InvalidAppError(
            f"app must be an AppDef, a dict, or a callable that returns one, not {type(app).__name__}"
        )
    check_app(app)
    return app


@functools.cache
def _known_arguments(operator: type) -> frozenset[str]:
    made = [cls.__init__ for cls in operator.__mro__]  # type: ignore[misc] # only the names of parameters are read
    return frozenset(name for function in made for name in inspect.signature(function).parameters)


def _refuse_peer_arguments(given: Mapping[str, Any], operator: type) -> None:
    """Refuse arguments of other operators, with their counterparts; Airflow refuses all other unknown ones.

    Raises:
        TypeError: as for each unknown argument in Python.
    """
    unknown = [name for name in given if name not in _known_arguments(operator)]
    if not unknown:
        return
    from airflow_provider_launch.schedulers.backends import BACKENDS
    from airflow_provider_launch.specs.peers import counterpart

    options = {name for info in BACKENDS.values() for made in (info.connection_options, info.launch_options)
               for name, _ in made().as_runopts()}  # fmt: skip
    hints = [f"{name!r} is {found.text()}" for name in unknown if (found := counterpart(name, options)) is not None]
    if hints:
        raise TypeError(f"{operator.__name__} has no argument {', '.join(map(repr, unknown))}: {'; '.join(hints)}")


def _set_upstream(task: Any, fields: Iterable[object]) -> None:
    """Make the task depend on tasks whose output is inside an object, where Airflow does not find it."""
    for field in fields:
        for later in _resolved_later(field, of_objects=True):
            if isinstance(later, XComArg):
                XComArg.apply_upstream_relationship(task, later)


@functools.cache
def _partial_class(base: type[OperatorPartial]) -> type[OperatorPartial]:
    class Partial(base):  # type: ignore[misc, valid-type]
        __slots__ = ()

        def expand(self, **mapped_kwargs: Any) -> MappedOperator:
            _refuse_peer_arguments(mapped_kwargs, self.operator_class)
            if hasattr(mapped_kwargs.get("component"), "resolve"):
                from airflow_provider_launch._task.mapped import refuse_component_of_run

                refuse_component_of_run()
            return self._mapped(super().expand(**mapped_kwargs), mapped_kwargs)

        def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
            return self._mapped(super().expand_kwargs(kwargs, strict=strict), kwargs)

        def _mapped(self, task: MappedOperator, mapped: object) -> MappedOperator:
            from airflow_provider_launch._task.mapped import input_of_run
            from airflow_provider_launch.operators._written import written_for_operator

            _set_upstream(task, (self.kwargs, mapped))
            given = task.expand_input
            task.expand_input = input_of_run(given, operator=self.operator_class, note=written_for_operator)
            return task

    return Partial


def _has_xcom(value: object) -> bool:
    """Return whether a part of the value is resolved only in a run: the output of a task, or a `literal`."""
    return bool(_resolved_later(value))


def _resolved_later(value: object, *, of_objects: bool = False) -> list[Any]:
    """Return the parts of the value that are resolved in a run.

    With `of_objects` only parts of dataclasses, because Airflow finds the others itself.
    """
    found: list[Any] = []
    if value is not None:
        _collect_later(value, found, is_wanted=not of_objects)
    return found


def _collect_later(value: object, found: list[Any], *, is_wanted: bool) -> None:
    if isinstance(value, Mapping):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    elif is_plain_object(value):
        parts, is_wanted = vars(value).values(), True
    else:
        if is_wanted and hasattr(value, "resolve") and not isinstance(value, PurePath):
            found.append(value)
        return
    for part in parts:
        # Most parts are such; each parse of each DAG file pays for every one.
        kind = type(part)
        if not (part is None or kind in _LEAVES or (kind in _CONTAINERS and not part)):
            _collect_later(part, found, is_wanted=is_wanted)


_LEAVES = frozenset({str, int, float, bool, bytes})
_CONTAINERS = frozenset({dict, list, tuple})


def _final_errors(task_id: str = "") -> contextlib.AbstractContextManager[None]:
    """Fail without retries on errors that need a change of the DAG."""
    from airflow_provider_launch._task.errors import final_errors

    return final_errors(task_id)
