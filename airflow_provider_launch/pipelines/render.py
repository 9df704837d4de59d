"""From the model to a DAG: one task for a step, and gates only where ways part or meet."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param, TaskGroup, task_group

from airflow_provider_launch.pipelines import parameters
from airflow_provider_launch.pipelines.checks import incoming, step_path
from airflow_provider_launch.pipelines.executors import MOCKED, Placement, placement
from airflow_provider_launch.pipelines.gates import (
    CaseCheck,
    CaseGate,
    FailOperator,
    FanIn,
    FanOut,
    JoinGate,
    OutcomeGate,
    Scope,
    Source,
    StubOperator,
)
from airflow_provider_launch.pipelines.ids import FAILED, JOIN, OK, dag_id_of, folder_of, task_id_of
from airflow_provider_launch.pipelines.model import (
    ConditionalStep,
    DagStep,
    FailStep,
    Graph,
    MapStep,
    ParallelStep,
    PipelineModel,
    Step,
    SuccessStep,
    TaskStep,
)
from airflow_provider_launch.pipelines.plugin_operator import PluginStepOperator
from airflow_provider_launch.pipelines.problems import PipelineError, Problem
from airflow_provider_launch.pipelines.step_operator import StepOperator
from airflow_provider_launch.pipelines.validation import Config, load

__all__ = ["dag_from_file", "dag_from_model", "load_pipelines"]

PATTERNS = ("*.yaml", "*.yml")


def dag_from_file(
    path: str | Path,
    dag_id: str | None = None,
    *,
    launch_conn_id: str | None = None,
    params: Mapping[str, Any] | None = None,
    config: Config | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """Return the DAG of a pipeline file.

    Args:
        path: of the file; relative to the file that calls.
        dag_id: without it the `name` in the file, or the file's own.
        launch_conn_id: the connection of the pipeline's executor, unless the file names one.
        params: parameters that win over those of the file.
        config: a file, or a mapping, with sections that win over those of the file: `executor`, `catalog`,
            `parameters`.
        dag_kwargs: those of `DAG`.

    Raises:
        PipelineError: with all problems of the file.
    """
    base = _folder_of_caller(sys._getframe(1).f_globals)  # noqa: SLF001 - a path is meant relative to the caller's file
    if isinstance(config, (str, Path)):
        config = base / config
    return dag_from_model(load(base / path, config), dag_id, launch_conn_id=launch_conn_id, params=params, **dag_kwargs)


def load_pipelines(folder: str | Path, namespace: dict[str, Any], **kwargs: Any) -> list[DAG]:
    """Put the DAG of each pipeline file of a folder into a module: `load_pipelines("pipelines", globals())`.

    A file without a `dag` section, such as one with parameters only, is left alone.

    Args:
        folder: relative to the file that calls.
        namespace: the module's `globals()`.
        kwargs: those of `dag_from_file`.

    Raises:
        PipelineError: with all problems of all files.
    """
    base = _folder_of_caller(namespace) / folder
    if not base.is_dir():
        raise PipelineError([Problem(f"folder {str(base)!r} is not there; it is relative to the file that calls")])
    dags: list[DAG] = []
    problems: list[Problem] = []
    for path in sorted(found for pattern in PATTERNS for found in base.glob(pattern)):
        if "dag:" not in path.read_text(encoding="utf-8"):
            continue
        try:
            dag = dag_from_file(path, **kwargs)
        except PipelineError as error:
            problems.extend(error.problems)
            continue
        dags.append(dag)
        namespace[f"pipeline_{task_id_of(dag.dag_id)}"] = dag
    if problems:
        raise PipelineError(problems)
    return dags


def _folder_of_caller(namespace: Mapping[str, Any]) -> Path:
    file = namespace.get("__file__")
    return Path(file).resolve().parent if file else Path.cwd()


def dag_from_model(
    model: PipelineModel,
    dag_id: str | None = None,
    *,
    launch_conn_id: str | None = None,
    params: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """Return the DAG of a pipeline; as `dag_from_file`."""
    if launch_conn_id is not None:
        config = {"conn_id": launch_conn_id, **model.executor.config}
        model = replace(model, executor=replace(model.executor, config=config))
    values = {**model.parameters, **parameters.from_environment(), **(params or {})}
    settings: dict[str, Any] = {"catchup": False}
    if model.graph.description:
        settings["description"] = model.graph.description
    limit = model.executor.config.get("parallelism")
    if model.executor.config.get("enable_parallel", True) is False:
        limit = 1
    if limit is not None:
        settings["max_active_tasks"] = limit
    schedule = dag_kwargs.pop("schedule", None)
    settings |= dag_kwargs
    dag = DAG(dag_id or dag_id_of(model.name), schedule=schedule, params=_params(values), **settings)
    with dag:
        _Renderer(model).graph(model.graph, Scope(), ())
    return dag


def _params(values: Mapping[str, Any]) -> dict[str, Param]:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return {
        name: value
        if isinstance(value, Param)
        else Param(value, type=["null", kinds[type(value)]])
        if type(value) in kinds
        else Param(value)
        for name, value in values.items()
    }


@dataclass
class _Part:
    """What a step, or a graph, became."""

    entry: BaseOperator
    exits: list[BaseOperator]
    """Have all succeeded if the step has."""
    ends: list[BaseOperator]
    """Other tasks after which nothing comes: those that fail."""
    members: list[str]
    """All tasks that run as often as the entry."""
    inner: list[str] = field(default_factory=list)
    """Tasks in a mapped group below."""
    outputs: list[Source] = field(default_factory=list)
    """Where parameters come from after a success."""


class _Renderer:
    """Makes the tasks of one pipeline, inside of its DAG."""

    def __init__(self, model: PipelineModel) -> None:
        self._model = model
        self._order = 0
        self._mocked = model.executor.type == MOCKED
        self._patches: Mapping[str, Any] = model.executor.config.get("patches") or {}
        self._places: dict[int, Placement] = {}

    def _next_order(self) -> int:
        self._order += 1
        return self._order

    # ---- graphs ----------------------------------------------------------------------------------------------

    def graph(self, graph: Graph, scope: Scope, sources: Sequence[Source]) -> _Part:
        """Make the tasks of a graph, and the ways between them."""
        edges = incoming(graph)
        parts: dict[str, _Part] = {}
        # Where each way ends: the tasks that have succeeded, and the sources behind them.
        ways: dict[tuple[str, str], tuple[list[BaseOperator], list[Source]]] = {}
        members: list[str] = []
        inner: list[str] = []
        ends: list[BaseOperator] = []
        for name in _in_order(graph, edges):
            step = graph.steps[name]
            arriving = [ways[source, kind] for source, kind in edges[name]]
            inputs = list(dict.fromkeys(source for _, found in arriving for source in found)) or list(sources)
            join = self._join(name, scope, [tasks for tasks, _ in arriving]) if len(arriving) > 1 else None
            part = self._step(step, scope, inputs)
            parts[name] = part
            for task in [join] if join else arriving[0][0] if arriving else []:
                task >> part.entry
            members += ([join.task_id] if join else []) + part.members
            inner += part.inner
            ways[name, "next"] = (part.exits, part.outputs)
            if isinstance(step, FailStep):
                ends += part.exits
            elif step.on_failure:
                ok, failed = self._gates(name, scope, part)
                members += [ok.task_id, failed.task_id]
                ways[name, "next"] = ([ok], part.outputs)
                ways[name, "on_failure"] = ([failed], list(dict.fromkeys([*inputs, *part.outputs])))
            else:
                ends += part.ends
        success = next(name for name, step in graph.steps.items() if isinstance(step, SuccessStep) and name in parts)
        # What the last step knew, and nothing of those that it did not pass.
        outputs = list(dict.fromkeys(s for way in edges[success] for s in ways[way][1])) or list(sources)
        return _Part(parts[graph.start_at].entry, parts[success].exits, ends, members, inner, outputs)

    def _join(self, name: str, scope: Scope, ways: list[list[BaseOperator]]) -> BaseOperator:
        gate = JoinGate(
            task_id=f"{task_id_of(name)}{JOIN}", ways=[[task.task_id for task in way] for way in ways], scope=scope
        )
        for task in dict.fromkeys(task for way in ways for task in way):
            task >> gate
        return gate

    def _gates(self, name: str, scope: Scope, part: _Part) -> tuple[BaseOperator, BaseOperator]:
        made = []
        for end, passes_on in ((OK, "success"), (FAILED, "failure")):
            gate = OutcomeGate(
                task_id=f"{task_id_of(name)}{end}",
                passes_on=passes_on,
                entry=part.entry.task_id,
                exits=[task.task_id for task in part.exits],
                members=part.members,
                inner=part.inner,
                scope=scope,
            )
            # After what fails, too: a failure that is dealt with must not be the last task of its way.
            for task in dict.fromkeys([*part.exits, *part.ends]):
                task >> gate
            made.append(gate)
        return made[0], made[1]

    # ---- steps -----------------------------------------------------------------------------------------------

    def _step(self, step: Step, scope: Scope, sources: list[Source]) -> _Part:
        if isinstance(step, TaskStep) and not self._is_mocked(step):
            return self._task(step, scope, sources)
        if isinstance(step, (ParallelStep, MapStep, DagStep, ConditionalStep)):
            with TaskGroup(task_id_of(step.name), group_display_name=step.name, prefix_group_id=True):
                return self._composite(step, scope, sources)
        operator = FailOperator if isinstance(step, FailStep) else StubOperator
        kwargs: dict[str, Any] = {"retries": 0} if isinstance(step, FailStep) else {}
        task = operator(task_id=task_id_of(step.name), task_display_name=step.name, **kwargs)
        self._next_order()
        return _Part(task, [task], [], [task.task_id], outputs=sources)

    def _is_mocked(self, step: TaskStep) -> bool:
        return self._mocked and step.name not in self._patches

    def _task(self, step: TaskStep, scope: Scope, sources: list[Source]) -> _Part:
        if self._mocked:
            patch = self._patches[step.name] or {}
            step = replace(
                step,
                command=patch.get("command", step.command),
                command_type=patch.get("command_type", step.command_type if "command" not in patch else "python"),
            )
        place = placement(self._model, step)
        operator = StepOperator if place.backend is not None else PluginStepOperator
        task = operator(
            task_id=task_id_of(step.name),
            task_display_name=step.name,
            model=self._model,
            step=step,
            place=place,
            sources=sources,
            scope=scope,
            order=self._next_order(),
            **_task_kwargs(step, scope),
        )
        return _Part(task, [task], [], [task.task_id], outputs=[Source(task.task_id, scope.group)])

    def _composite(self, step: Step, scope: Scope, sources: list[Source]) -> _Part:
        if isinstance(step, DagStep):
            assert step.branch is not None
            return self.graph(step.branch, scope, sources)
        if isinstance(step, MapStep):
            assert step.branch is not None
            if isinstance(step.iterate_on, tuple):
                return self._static_map(step, step.branch, step.iterate_on, scope, sources)
            return self._map(step, step.branch, scope, sources)
        if isinstance(step, ConditionalStep):
            return self._conditional(step, scope, sources)
        assert isinstance(step, ParallelStep)
        entry = StubOperator(task_id="fan_out")
        branches = {name: (graph, scope, entry) for name, graph in step.branches.items()}
        return self._side_by_side(entry, branches, sources)

    def _side_by_side(
        self, entry: BaseOperator, branches: Mapping[str, tuple[Graph, Scope, BaseOperator]], sources: list[Source]
    ) -> _Part:
        made = _Part(entry, [], [], [entry.task_id])
        for name, (graph, scope, before) in branches.items():
            with TaskGroup(task_id_of(name), group_display_name=name):
                part = self.graph(graph, scope, sources)
            before >> part.entry
            made.exits += part.exits
            made.ends += part.ends
            made.members += part.members
            made.inner += part.inner
            made.outputs += [source for source in part.outputs if source not in made.outputs]
        return made

    def _conditional(self, step: ConditionalStep, scope: Scope, sources: list[Source]) -> _Part:
        self._next_order()
        cases = list(step.branches)
        what: dict[str, Any] = {"parameter": step.parameter, "cases": cases, "sources": sources, "scope": scope}
        entry: BaseOperator = StubOperator(task_id="fan_out") if step.default else CaseCheck(task_id="fan_out", **what)
        branches: dict[str, tuple[Graph, Scope, BaseOperator]] = {}
        gates = []
        graphs: dict[str | None, Graph] = dict(step.branches.items())
        if step.default is not None:
            graphs[None] = step.default
        for case, graph in graphs.items():
            name = "default" if case is None else case
            gate = CaseGate(task_id=f"{task_id_of(name)}__case", case=case, **what)
            entry >> gate
            gates.append(gate)
            branches[name] = (graph, scope, gate)
        made = self._side_by_side(entry, branches, sources)
        join = self._join_of_cases(made, scope)
        made.members += [*(gate.task_id for gate in gates), join.task_id]
        made.exits = [join]
        made.outputs = list(dict.fromkeys([*sources, *made.outputs]))
        return made

    def _join_of_cases(self, made: _Part, scope: Scope) -> BaseOperator:
        join = JoinGate(task_id="join", ways=[[task.task_id] for task in made.exits], scope=scope)
        for task in made.exits:
            task >> join
        return join

    # ---- maps ------------------------------------------------------------------------------------------------

    def _map(self, step: MapStep, branch: Graph, scope: Scope, sources: list[Source]) -> _Part:
        order = self._next_order()
        fan_out = FanOut(
            task_id="fan_out", iterate_on=str(step.iterate_on), sources=sources, scope=scope, do_xcom_push=True
        )
        made: list[_Part] = []
        outer = Source(fan_out.task_id, scope.group)

        def each(value: Any) -> None:  # noqa: ARG001 - Airflow maps over it
            group = f"{fan_out.task_id.rpartition('.')[0]}.each"
            inside = Scope(group, fan_out.task_id, step.iterate_as, order, scope.fixed, scope.folders, step.parallelism)
            made.append(self.graph(branch, inside, [outer]))

        task_group(group_id="each")(each).expand(value=fan_out.output)
        part = made[0]
        fan_in = FanIn(
            task_id="fan_in",
            before=[outer],
            branches=[[source for source in part.outputs if source != outer]],
            reducer=step.reducer,
            order=order,
            hidden=[step.iterate_as],
            fan_out=fan_out.task_id,
            scope=scope,
        )
        # The way past the group: an empty list skips the group, and is a success.
        fan_out >> fan_in
        for task in dict.fromkeys([*part.exits, *part.ends]):
            task >> fan_in
        return _Part(
            fan_out,
            [fan_in],
            [],
            [fan_out.task_id, fan_in.task_id],
            [*part.members, *part.inner],
            [Source(fan_in.task_id, scope.group)],
        )

    def _static_map(
        self, step: MapStep, branch: Graph, items: Iterable[Any], scope: Scope, sources: list[Source]
    ) -> _Part:
        order = self._next_order()
        entry = StubOperator(task_id="fan_out")
        made = _Part(entry, [], [], [entry.task_id])
        branches = []
        for at, item in enumerate(items):
            inside = replace(
                scope,
                fixed={**scope.fixed, step.iterate_as: (item, order)},
                folders=(*scope.folders, f"{folder_of(entry.task_id)}/{at}"),
            )
            with TaskGroup(str(at), group_display_name=str(item)):
                part = self.graph(branch, inside, sources)
            entry >> part.entry
            made.exits += part.exits
            made.ends += part.ends
            made.members += part.members
            made.inner += part.inner
            branches.append([source for source in part.outputs if source not in sources])
        fan_in = FanIn(
            task_id="fan_in",
            before=sources,
            branches=branches,
            reducer=step.reducer,
            order=order,
            hidden=[step.iterate_as],
            scope=scope,
        )
        entry >> fan_in
        for task in dict.fromkeys([*made.exits, *made.ends]):
            task >> fan_in
        made.exits, made.ends = [fan_in], []
        made.members.append(fan_in.task_id)
        made.outputs = [Source(fan_in.task_id, scope.group)]
        return made


def _in_order(graph: Graph, edges: Mapping[str, list[tuple[str, str]]]) -> list[str]:
    """Return the names of the steps so that each comes after those that lead to it."""
    left = {name: len(found) for name, found in edges.items()}
    ready = [graph.start_at]
    ordered = []
    while ready:
        name = ready.pop(0)
        ordered.append(name)
        for target in graph.steps[name].targets:
            if target not in left:
                continue
            left[target] -= 1
            if left[target] == 0:
                ready.append(target)
    return ordered


_SECONDS = ("execution_timeout", "retry_delay", "max_retry_delay")
_OURS = {
    "task_id": "the name of the step",
    "task_display_name": "the name of the step",
    "app": "'command_type: app'",
    "trigger_rule": "'next' and 'on_failure'",
    "launch_conn_id": "'conn_id' in the executor's config",
    "cfg": "the executor's config",
    "retries": "'max_attempts'",
}


def _task_kwargs(step: TaskStep, scope: Scope) -> dict[str, Any]:
    """Return the arguments of the Airflow task that a step names."""
    problems = [
        Problem(f"'airflow' has {name!r}, which is set by {_OURS[name]}", replace(step.place, step=step_path(step)))
        for name in step.airflow
        if name in _OURS
    ]
    if problems:
        raise PipelineError(problems)
    kwargs: dict[str, Any] = {
        name: timedelta(seconds=value) if name in _SECONDS and isinstance(value, (int, float)) else value
        for name, value in step.airflow.items()
    }
    if step.max_attempts is not None:
        kwargs["retries"] = step.max_attempts - 1
        kwargs.setdefault("retry_delay", timedelta(seconds=step.retry_delay_s or 0))
    elif step.retry_delay_s is not None:
        kwargs["retry_delay"] = timedelta(seconds=step.retry_delay_s)
    if scope.parallelism is not None:
        kwargs.setdefault("max_active_tis_per_dagrun", scope.parallelism)
    return kwargs
