"""The operator of pipeline tasks: collects parameters, launches the app, and passes on its values."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Variable

from airflow_provider_launch._airflow import BaseHook, TaskDeferred, mask_secret, redact
from airflow_provider_launch.links.launch import RequestLink
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.pipelines.gates import PARAMETERS_KEY, Scope, Source, known_parameters
from airflow_provider_launch.util.paths import expanded

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

    from airflow_provider_launch.operators._written import Written
    from airflow_provider_launch.pipelines.attempt import Attempt
    from airflow_provider_launch.pipelines.executors import Placement
    from airflow_provider_launch.pipelines.model import PipelineModel, TaskStep
    from airflow_provider_launch.pipelines.objects import Objects
    from airflow_provider_launch.pipelines.parameters import Known
    from airflow_provider_launch.schedulers.api import DescribeAppResponse


_PARTS = frozenset({"roles", "resource", "mounts", "workspace"})
"""The fields of an app that have fields."""
_NUMBERS = frozenset({
    "num_replicas", "min_replicas", "max_retries", "max_disruptions", "service", "torch_env", "port_map", "metadata",
    "cpu", "cpu_request", "gpu", "memMB", "memMB_request", "devices", "tags", "read_only",
})  # fmt: skip
"""The fields of an app that have numbers, true or false, or any type."""
_WHOLE = frozenset({*_PARTS, "args", "env", "capabilities", "projects"})
"""The fields that have no text, so that a text stands for all of their content."""
_ELEMENT = "launch_element"
"""In the context: the element of a map as text, which the UI shows instead of its number."""


def _built_later(**_: Any) -> None:
    raise AssertionError("the app of a step is built when it runs")


def _texts_of(template: list[Any]) -> Iterator[str]:
    """Yield the texts that a template may give as a whole, such as `'a' if x else 'b'`, and not their parts."""
    from jinja2 import nodes

    if not template:
        yield ""
    if len(template) != 1:
        return
    (node,) = template
    if isinstance(node, nodes.TemplateData):
        yield node.data
    elif isinstance(node, nodes.Const):
        yield str(node.value)
    for part in _results(node):
        yield from _texts_of(part)


def _results(node: Any) -> list[list[Any]]:
    """Return the parts of a template of which a node gives one."""
    from jinja2 import nodes

    if isinstance(node, nodes.Output):
        return [node.nodes]
    if isinstance(node, nodes.If):
        return [node.body, *(each.body for each in node.elif_), node.else_]
    if isinstance(node, nodes.CondExpr):
        return [[node.expr1], [node.expr2] if node.expr2 else []]
    if isinstance(node, nodes.Or):
        return [[node.left], [node.right]]
    return [node.args[:1]] if isinstance(node, nodes.Filter) and node.name in ("default", "d") else []


class StepOperator(LaunchAppOperator):
    """Runs one task of a pipeline.

    XCom `parameters` is `{returned, values, orders, index}`: the values of the task, and all that later tasks see.
    XCom `attempt` is the record of the attempt. `return_value`, and `app` after a failure, are those of
    `LaunchAppOperator`. Other requests of it to Airflow are left out, because a step is often small: the log has the
    handle and the request.

    Args:
        model: the pipeline.
        step: the task.
        place: its executor and settings.
        sources: the tasks that pass on parameters to it.
        scope: the enclosing map.
        order: its position in the pipeline; if two tasks return the same parameter, the later one wins.
        kwargs: arguments of `LaunchAppOperator`.
    """

    # Without `app`, which is built when the task runs.
    template_fields: Sequence[str] = ("command", "step_args", "env", "cfg", "launch_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"command": "bash", "env": "json", "cfg": "json"}

    overwrite_rtif_after_execution = False
    operator_extra_links = tuple(
        link for link in LaunchAppOperator.operator_extra_links if not isinstance(link, RequestLink)
    )
    _pushes_app = False

    def __init__(
        self,
        *,
        model: PipelineModel,
        step: TaskStep,
        place: Placement,
        sources: Sequence[Source],
        scope: Scope,
        order: int,
        **kwargs: Any,
    ) -> None:
        if scope.group:
            kwargs.setdefault("map_index_template", f"{{{{ {_ELEMENT} | default(ti.map_index) }}}}")
        super().__init__(app=_built_later, launch_conn_id=place.conn_id, cfg=dict(place.options), **kwargs)
        self.model = model
        self.step = step
        self.place = place
        self.sources = tuple(sources)
        self.scope = scope
        self.order = order
        self.command = step.command
        self.step_args = dict(step.args)
        self.env = dict(place.settings.env)
        self._elements: dict[str, Any] = {}
        self._file_secrets: list[str] = []
        """The secrets of the file; also those that it takes from Airflow."""
        self._attempt: Attempt | None = None

    def render_template_fields(self, context: Context, jinja_env: jinja2.Environment | None = None) -> None:
        """Render, and mask secrets before Airflow stores the fields, because Airflow checks other names."""
        from airflow_provider_launch._task.secrets import forms_of, register_parts, register_some, register_written
        from airflow_provider_launch.operators._masks import hidden_in_names
        from airflow_provider_launch.operators.templates import as_text
        from airflow_provider_launch.specs.secrets import hidden_in_env

        # Those of the file first, so that no number of values of a run pushes them out of the limit.
        fields = {name: getattr(self, name) for name in self.template_fields}
        self._file_secrets = register_written([self.model.parameters, self.step.app, fields])
        if not self.step.template:
            self.command = ""
        super().render_template_fields(context, jinja_env)
        self.command, self.env = as_text(fields["command"], self.command), as_text(fields["env"], self.env)
        if not self.step.template:
            self.command = self.step.command
        # Values of a run may be in the other fields.
        own = [forms_of(hidden_in_env({name: self.env[name]})) for name in fields["env"] if name in self.env]
        self._file_secrets += register_some([*own, *hidden_in_names(fields["step_args"], self.step_args)])
        register_parts({name: getattr(self, name, None) for name in self.template_fields})

    def execute(self, context: Context) -> dict[str, Any]:
        """Launch the app of the step; as `LaunchAppOperator.execute`.

        Raises:
            AirflowFailException: the step is invalid, or did not return a declared value.
            CatalogError: a file of the step is missing.
        """
        from airflow_provider_launch._task.errors import final_errors
        from airflow_provider_launch._task.secrets import hidden_in_arguments, register
        from airflow_provider_launch.pipelines.apps import Inputs, build_app, prefixed_only, references_of
        from airflow_provider_launch.pipelines.attempt import Attempt
        from airflow_provider_launch.pipelines.parameters import as_text
        from airflow_provider_launch.specs.secrets import masked_document

        known, elements = known_parameters(context, self.sources, self.scope)
        # Parameters are also parts of variables with other names.
        register(hidden_in_arguments(known.values))
        if self.scope.group:
            # Airflow stores this text unmasked. Masked before the cut, behind which a rest of a secret would not match.
            shown = masked_document(elements, by_name=True)[self.scope.iterate_as]
            context[_ELEMENT] = str(redact(as_text(shown)))[:100]  # type: ignore[literal-required]  # ours
        step, place = self._rendered(context)
        self._note_sources()
        with final_errors():
            self._check_connection()
            is_code_ours = self._check_code_dir(place)
            self._check_data_dir(place)
        attempt = Attempt.start(self, context, place)
        with attempt.failing_ends():
            objects = self._readable_objects(step, place, known.values, context["ti"].map_index)
            folder = attempt.prepare_files(objects.files)
            with final_errors():
                inputs = Inputs(
                    parameters=objects.values,
                    objects=tuple(objects.names),
                    check_arguments=self._before_component,
                    map_variables=elements,
                    secrets=self._secrets(),
                    run=self._run_variables(context),
                    data_dir=folder,
                    references=references_of(self.step),
                )
                self.app, self.cfg = build_app(self.model, step, place, inputs)
            if step.command_type == "shell":
                undeclared, taken = prefixed_only(self.model, step, known.values)
                if undeclared:
                    self.log.info("only as LAUNCH_PARAM_x, because no step declares it in 'returns': %s", undeclared)
                if taken:
                    self.log.warning("only as LAUNCH_PARAM_x, because shells act on such names: %s", taken)
            attempt.describe(self.app, self.cfg, known.values, is_code_ours=is_code_ours)
            self._elements = elements
        # Once more, because the frames below would be shown above the user's error.
        with final_errors():
            return self._finished(context, attempt, lambda: self._launched(context), known)

    def resume(
        self, context: Context, event: Mapping[str, Any] | None = None, *, has_started: bool = False
    ) -> dict[str, Any]:
        """Finish a deferred task; as `LaunchAppOperator.resume`."""
        from airflow_provider_launch._task.errors import final_errors
        from airflow_provider_launch.pipelines.attempt import Attempt

        if event is None:
            return self.execute(context)
        place = self._rendered_place(context)
        self._note_sources()
        with final_errors():
            self._check_code_dir(place)
            self._check_data_dir(place)
        attempt = Attempt.resume(self, context, place)
        return self._finished(
            context, attempt, lambda: super(StepOperator, self).resume(context, event, has_started=has_started)
        )

    def _launched(self, context: Context) -> dict[str, Any]:
        outcome: dict[str, Any] = super().execute(context)
        return outcome

    def _app_runs(self) -> None:
        if self._attempt is not None:
            self._attempt.save_running()

    def _app_ended(self, response: DescribeAppResponse) -> None:
        if self._attempt is not None:
            self._attempt.note_end(response.roles_statuses)

    def dry_run(self) -> None:
        """State that the app exists only in a run."""
        print(f"{self.task_id}: the app is built only in a run")  # noqa: T201 - what dry_run is for

    # ---- before ----------------------------------------------------------------------------------------------

    def _rendered(self, context: Context) -> tuple[TaskStep, Placement]:
        app = self.step.app
        if app is not None:
            from airflow_provider_launch.operators._data import settled_app
            from airflow_provider_launch.operators._masks import register_texts

            self._marks_data = True
            try:
                app = settled_app(self._rendered_parts(app, context))
            finally:
                self._marks_data = False
            self._file_secrets += register_texts(self.step.app, app)
        step = dataclasses.replace(self.step, command=self.command, args=self.step_args, app=app)
        return step, self._rendered_place(context)

    def _rendered_parts(self, part: Mapping[str, Any], context: Context) -> dict[str, Any]:
        """Return a copy of an app, or of a part of one; in a native DAG only numbers become numbers."""
        env = self.get_template_env()
        found: dict[str, Any] = {}
        for name, value in part.items():
            if name in _PARTS and isinstance(value, Mapping):
                found[name] = self._rendered_parts(value, context)
            elif name in _PARTS and isinstance(value, (list, tuple)):
                found[name] = [
                    self._rendered_parts(each, context)
                    if isinstance(each, Mapping)
                    else self._render_part(each, context, env, None, keeps_types=True)
                    for each in value
                ]
            else:
                keeps_types = name in _NUMBERS or (isinstance(value, str) and name in _WHOLE)
                found[name] = self._render_part(value, context, env, None, keeps_types)
        return found

    def _rendered_place(self, context: Context) -> Placement:
        from airflow_provider_launch._task.errors import final_errors
        from airflow_provider_launch.operators.templates import as_text
        from airflow_provider_launch.pipelines.executors import rendered_settings

        place, env, cfg = self._placement(), self.env, self.cfg or {}
        if self.place.left_to_connection:
            env = as_text(place.settings.env, self._setting(dict(place.settings.env), context))
            cfg = self._setting(dict(place.options), context)
        with final_errors():
            settings = rendered_settings(place.settings, lambda value: self._setting(value, context))
        return dataclasses.replace(place, settings=dataclasses.replace(settings, env=env), options=cfg)

    def _is_option_field(self, content: Any) -> bool:
        return super()._is_option_field(content) or any(
            content is field for field in (self.env, self.command, self.step_args)
        )

    def _setting(self, value: Any, context: Context) -> Any:
        """Return a rendered setting; a text such as `1.10` stays one in a native DAG, as in options."""
        before, self._is_option = self._is_option, True
        try:
            return self.render_template(value, context)
        finally:
            self._is_option = before

    def _placement(self) -> Placement:
        """Return where the step runs, with the placeholders of its connection."""
        from airflow_provider_launch._task.errors import final_errors
        from airflow_provider_launch.hooks.launch import LaunchHook
        from airflow_provider_launch.pipelines.executors import placement
        from airflow_provider_launch.pipelines.layers import ConnectionPlaceholders

        if not self.place.left_to_connection:
            return self.place
        # Connections are not read while a DAG is parsed, because each parse would query the database.
        with final_errors():
            found = LaunchHook.for_connection(self.launch_conn_id).options.placeholders
            return placement(self.model, self.step, ConnectionPlaceholders(self.launch_conn_id, found))

    def _readable_objects(
        self, step: TaskStep, place: Placement, values: Mapping[str, Any], map_index: int | None
    ) -> Objects:
        from airflow_provider_launch.pipelines.objects import Objects, readable

        if step.command_type not in ("python", "notebook") or not place.sees_files:
            return Objects(values)
        return readable(values, self.dag.task_dict, self.scope.folders_of(map_index))

    def _written_part(self) -> Written:
        """Return nothing: `execute` notes it, because the placeholders of a connection are part of it."""
        from airflow_provider_launch.operators._written import Written

        return Written()

    def _note_sources(self) -> None:
        """Keep the worker from opening files or addresses that an earlier step or the trigger form named."""
        from airflow_provider_launch.operators._sources import folders_of, strings_in
        from airflow_provider_launch.operators._written import Written, emptied_in, marks_in

        place = self._placement()
        # The name of an argument is not a path.
        arguments = [[*each.values()] for each in (self.model.parameters, self.step.args)]
        fields = self.step.app, self.workspace, [*place.settings.env.values()], [*place.options.values()], arguments
        folders = {*folders_of(self.workspace, self.step.app), *marks_in(strings_in(arguments))}
        self._written = Written(
            {*strings_in(fields), *folders}, folders, {*emptied_in(place.options)}, self._file_secrets
        )
        if self.step.command_type == "app" and self.step.app is None:  # no code makes another step's app
            from airflow_provider_launch.operators._code import Code

            self._written.code = Code(texts=self._written.texts)

    def _before_component(self, component: Callable[..., Any], given: Mapping[str, Any]) -> None:
        # Imported here, because most steps name no component.
        from airflow_provider_launch.operators._code import Code
        from airflow_provider_launch.operators._component import check_configs, is_hydra, written_config
        from airflow_provider_launch.operators._sources import folders_of, strings_in

        assert self._written is not None
        texts = self._written.texts
        check_configs(component, given, texts, self._written.folders)
        if is_hydra(component):
            config = written_config(component, given, {}, texts)
            self._written.code = Code(texts={*texts, *strings_in(config)})
            self._written.folders.update(folders_of(None, config))
        else:
            self._written.code = Code([component], texts=texts)

    def _check_code_dir(self, place: Placement) -> bool:
        """Keep a run and earlier steps from naming the folder of the code; return whether the file names it.

        The worker imports the code in it, starts programs in it, or copies its files into the app. In a container it is
        a path of the image.
        """
        from airflow_provider_launch.operators._sources import Sources

        step, given = self.step, place.settings.code_dir
        is_written = self._is_written(given, self._placement().settings.code_dir)
        is_imported = step.command_type == "app" and step.app is None
        is_copied = step.catalog and (step.catalog.project or self.model.project)
        is_on_worker = place.backend is None or not place.backend.in_containers
        if not is_written and (is_on_worker or is_imported or is_copied):
            folder = (self.model.folder / given).resolve()
            Sources(()).check(given, str(folder), "setting 'code_dir' of the executor")
        return is_written

    def _check_data_dir(self, place: Placement) -> None:
        """Keep them from naming `data_dir`, in which the worker makes folders."""
        from airflow_provider_launch.operators._sources import Sources

        given, written = place.settings.data_dir, self._placement().settings.data_dir
        if given and not self._is_written(given, written):
            folder = expanded(given).resolve()
            # The start of a template, as in `/data/{{ run_id }}`.
            text = written.partition("{")[0].rpartition("/")[0]
            start = expanded(text).resolve()
            if not text or start == start.parent or not folder.is_relative_to(start):
                Sources(()).check(given, str(folder), "setting 'data_dir' of the executor")

    def _is_written(self, given: str, written: str) -> bool:
        """Return whether the file has a folder as a whole; `given` is the rendered text of `written`.

        Its parts do not count: each word of a file could be one, and a run could join them to a path.
        """
        import jinja2

        from airflow_provider_launch.operators._sources import is_mark

        assert self._written is not None
        # Not that of the DAG, whose macros, filters and missing names may stand for anything.
        env = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)  # noqa: S701 - a path
        with contextlib.suppress(Exception):  # a template raises anything
            if given == env.from_string(written).render(params=self.model.parameters):
                return True
        if not is_mark(given) and given in self._written.texts:
            return True
        with contextlib.suppress(jinja2.TemplateSyntaxError):
            return given in _texts_of(env.parse(written).body)
        return False

    def _check_connection(self) -> None:
        """Refuse a connection whose type differs from the executor, because its options would not fit."""
        from airflow_provider_launch.hooks.launch import LaunchHook
        from airflow_provider_launch.specs.errors import InvalidAppError

        backend = self.place.backend
        if backend is None or self.launch_conn_id == backend.default_conn_id:
            return
        found = LaunchHook.for_connection(self.launch_conn_id).options.backend
        if found != backend.name:
            raise InvalidAppError(
                f"step {self.step.name!r} runs on executor {self.place.type!r}, but connection "
                f"{self.launch_conn_id!r} is of type {found!r}; set another one as 'conn_id'"
            )

    def _secrets(self) -> dict[str, str]:
        from airflow_provider_launch._task.secrets import forms_of, register

        found = {}
        for name, source in self.step.secrets.items():
            kind, _, conn_id = source.partition(":")
            value = BaseHook.get_connection(conn_id).get_uri() if kind == "conn" and conn_id else Variable.get(source)
            found[name] = str(value)
            mask_secret(found[name])
            # Also each line, and the JSON form.
            register(forms_of([found[name]]))
            self._file_secrets.append(found[name])
        return found

    def _run_variables(self, context: Context) -> dict[str, str]:
        ti = context["ti"]
        found = {"LAUNCH_DAG_ID": ti.dag_id, "LAUNCH_RUN_ID": ti.run_id, "LAUNCH_TASK_ID": ti.task_id}
        if self.scope.group:
            found["LAUNCH_MAP_INDEX"] = str(ti.map_index)
        return found

    def _keep_references(self, returned: dict[str, Any], result: Any, map_index: int | None) -> None:
        """Set the values that stand for objects, which a program must not choose."""
        from airflow_provider_launch.pipelines.objects import object_names, reference

        scope = (self.scope.folders_of(map_index) or [""])[-1]
        for name in object_names(self.step):
            if isinstance(result, Mapping) and name in result:
                returned[name] = reference(self.task_id, name, scope)

    # ---- after -----------------------------------------------------------------------------------------------

    def _finished(
        self, context: Context, attempt: Attempt, launch: Callable[[], dict[str, Any]], known: Known | None = None
    ) -> dict[str, Any]:
        from airflow_provider_launch._task.errors import final_errors
        from airflow_provider_launch.pipelines.parameters import returned_values, tracked, unpacked

        self._attempt = attempt
        try:
            value = launch()
        except TaskDeferred:
            attempt.save_running(at_once=True)
            raise
        except BaseException as error:
            attempt.fail(error)
            raise
        with attempt.failing_ends():
            if known is None:
                known, _ = known_parameters(context, self.sources, self.scope)
            names = None if self.step.returns is None else [item.name for item in self.step.returns]
            with final_errors():
                document = unpacked(value["result"], self.step.name)
                if document is None and names != [] and self.step.command_type == "shell" and self.place.backend:
                    self.log.warning(
                        "the shell ended without returning variables: 'exec' replaced it, or it called 'exit' with an "
                        "EXIT trap of its own; end the command without them"
                    )
                returned = returned_values(document, names, given=known.values, step=self.step.name)
                metrics = tracked(document, self.step.name)
            attempt.store_files()
            self._keep_references(returned, document, context["ti"].map_index)
            if returned:
                self.log.info("returned %s", ", ".join(returned))
            known.set(returned, self.order)
            index = context["ti"].map_index if self.scope.group else None
            context["ti"].xcom_push(PARAMETERS_KEY, known.to_json(returned, index))
        attempt.succeed(value, returned, metrics)
        return value
