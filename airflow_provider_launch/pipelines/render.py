"""Renders the model as tasks: one for each step, and gates only where paths split or join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from typing import Any

from airflow.sdk import BaseOperator, TaskGroup
from airflow.sdk.exceptions import AirflowException

from airflow_provider_launch.pipelines.checks import incoming, step_path
from airflow_provider_launch.pipelines.executors import MOCKED, patched, placement, task_limit
from airflow_provider_launch.pipelines.gates import (
    CaseCheck,
    CaseGate,
    FailOperator,
    JoinGate,
    OutcomeGate,
    Scope,
    Source,
    StubOperator,
)
from airflow_provider_launch.pipelines.ids import CASE, FAILED, JOIN, OK, task_id_of
from airflow_provider_launch.pipelines.maps import Part, mapped, unrolled
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
    steps_of,
)
from airflow_provider_launch.pipelines.plugin_operator import PluginStepOperator
from airflow_provider_launch.pipelines.problems import PipelineError, Problem
from airflow_provider_launch.pipelines.step_operator import StepOperator


class Renderer:
    """Makes the tasks of one pipeline in its DAG."""

    def __init__(self, model: PipelineModel) -> None:
        self.model = model
        self._order = 0
        self._mocked = model.executor.type == MOCKED

    def next_order(self) -> int:
        """Return the position of the next step in the pipeline."""
        self._order += 1
        return self._order

    # ---- graphs ----------------------------------------------------------------------------------------------

    def graph(self, graph: Graph, scope: Scope, sources: Sequence[Source]) -> Part:
        """Make the tasks of a graph and the edges between them."""
        edges = incoming(graph)
        parts: dict[str, Part] = {}
        # The end of each path: the tasks that succeed, and the sources of parameters.
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
        # Parameters of the paths that lead to the success, not of other steps.
        outputs = list(dict.fromkeys(s for way in edges[success] for s in ways[way][1])) or list(sources)
        return Part(parts[graph.start_at].entry, parts[success].exits, ends, members, inner, outputs)

    def _join(self, name: str, scope: Scope, ways: list[list[BaseOperator]]) -> BaseOperator:
        gate = JoinGate(
            task_id=f"{task_id_of(name)}{JOIN}", ways=[[task.task_id for task in way] for way in ways], scope=scope
        )
        for task in dict.fromkeys(task for way in ways for task in way):
            task >> gate
        return gate

    def _gates(self, name: str, scope: Scope, part: Part) -> tuple[BaseOperator, BaseOperator]:
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
            # Also after failing tasks: a handled failure must not be the last task of its path.
            for task in dict.fromkeys([*part.exits, *part.ends]):
                task >> gate
            made.append(gate)
        return made[0], made[1]

    # ---- steps -----------------------------------------------------------------------------------------------

    def _step(self, step: Step, scope: Scope, sources: list[Source]) -> Part:
        task = patched(self.model, step) if isinstance(step, TaskStep) and self._mocked else step
        if isinstance(task, TaskStep):
            return self._task(task, scope, sources)
        if isinstance(step, (ParallelStep, MapStep, DagStep, ConditionalStep)):
            with TaskGroup(task_id_of(step.name), group_display_name=step.name, prefix_group_id=True):
                return self._composite(step, scope, sources)
        operator = FailOperator if isinstance(step, FailStep) else StubOperator
        kwargs: dict[str, Any] = {"retries": 0} if isinstance(step, FailStep) else {}
        stub = operator(task_id=task_id_of(step.name), task_display_name=step.name, **kwargs)
        self.next_order()
        return Part(stub, [stub], [], [stub.task_id], outputs=sources)

    def _task(self, step: TaskStep, scope: Scope, sources: list[Source]) -> Part:
        place = placement(self.model, step)
        operator = StepOperator if place.backend is not None else PluginStepOperator
        kwargs = task_kwargs(step, scope, task_limit(self.model))
        order = self.next_order()
        try:
            task = operator(
                task_id=task_id_of(step.name),
                task_display_name=step.name,
                model=self.model,
                step=step,
                place=place,
                sources=sources,
                scope=scope,
                order=order,
                **kwargs,
            )
        except (TypeError, ValueError, AttributeError, AirflowException) as error:  # e.g. a text as start_date
            text = f"is refused by Airflow: {error}; see its section 'airflow'"
            raise PipelineError([Problem(text, replace(step.place, step=step_path(step)))]) from error
        return Part(task, [task], [], [task.task_id], outputs=[Source(task.task_id, scope.group)])

    def _composite(self, step: Step, scope: Scope, sources: list[Source]) -> Part:
        if isinstance(step, DagStep):
            assert step.branch is not None
            return self.graph(step.branch, scope, sources)
        if isinstance(step, MapStep):
            assert step.branch is not None
            # Airflow cannot map inside of a mapped group.
            is_nested = bool(scope.group) or any(isinstance(one, MapStep) for one, _, _ in steps_of(step.branch))
            if isinstance(step.iterate_on, tuple) and is_nested:
                return unrolled(self, step, step.branch, step.iterate_on, scope, sources)
            return mapped(self, step, step.branch, scope, sources)
        if isinstance(step, ConditionalStep):
            return self._conditional(step, scope, sources)
        assert isinstance(step, ParallelStep)
        entry = StubOperator(task_id="fan_out")
        branches = {name: (graph, scope, entry) for name, graph in step.branches.items()}
        return self._parallel(entry, branches, sources)

    def _parallel(
        self, entry: BaseOperator, branches: Mapping[str, tuple[Graph, Scope, BaseOperator]], sources: list[Source]
    ) -> Part:
        made = Part(entry, [], [], [entry.task_id])
        for name, (graph, scope, before) in branches.items():
            with TaskGroup(task_id_of(name), group_display_name=name):
                part = self.graph(graph, scope, sources)
            before >> part.entry
            made.add(part)
            made.outputs += [source for source in part.outputs if source not in made.outputs]
        return made

    def _conditional(self, step: ConditionalStep, scope: Scope, sources: list[Source]) -> Part:
        self.next_order()
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
            gate = CaseGate(task_id=f"{task_id_of(name)}{CASE}", case=case, **what)
            entry >> gate
            gates.append(gate)
            branches[name] = (graph, scope, gate)
        made = self._parallel(entry, branches, sources)
        join = self._join_of_cases(made, scope)
        made.members += [*(gate.task_id for gate in gates), join.task_id]
        made.exits = [join]
        made.outputs = list(dict.fromkeys([*sources, *made.outputs]))
        return made

    def _join_of_cases(self, made: Part, scope: Scope) -> BaseOperator:
        join = JoinGate(task_id="join", ways=[[task.task_id] for task in made.exits], scope=scope)
        for task in made.exits:
            task >> join
        return join


def _in_order(graph: Graph, edges: Mapping[str, list[tuple[str, str]]]) -> list[str]:
    """Return the names of the steps in topological order."""
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


def task_kwargs(step: TaskStep, scope: Scope, limit: int | None = None) -> dict[str, Any]:
    """Return the arguments of the Airflow task from the section `airflow` of a step.

    Args:
        step: the task.
        scope: the enclosing map.
        limit: maximum number of tasks of a run at the same time, set by the pipeline.
    """
    problems = [
        Problem(f"'airflow' has {name!r}, which is set by {_OURS[name]}", replace(step.place, step=step_path(step)))
        for name in step.airflow
        if name in _OURS
    ]
    if problems:
        raise PipelineError(problems)
    kwargs: dict[str, Any] = {name: _airflow_value(name, value) for name, value in step.airflow.items()}
    if step.max_attempts is not None:
        kwargs["retries"] = step.max_attempts - 1
        kwargs.setdefault("retry_delay", timedelta(seconds=step.retry_delay_s or 0))
    elif step.retry_delay_s is not None:
        kwargs["retry_delay"] = timedelta(seconds=step.retry_delay_s)
    limits = [one for one in (limit, scope.parallelism) if one is not None]
    if scope.group and limits:
        # The limit of the DAG does not count deferred tasks; this one does.
        kwargs.setdefault("max_active_tis_per_dagrun", min(limits))
    return kwargs


def _airflow_value(name: str, value: Any) -> Any:
    """Return a value of a pipeline file as Airflow takes it."""
    if name in _SECONDS and isinstance(value, (int, float)):
        return timedelta(seconds=value)
    # YAML reads `2026-01-01` as a date.
    return datetime.combine(value, time(), timezone.utc) if type(value) is date else value
