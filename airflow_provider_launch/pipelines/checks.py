"""Checks of a whole pipeline: unreachable steps, cycles, and names that give the same task id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_provider_launch.pipelines.executors import executor_problems
from airflow_provider_launch.pipelines.ids import CASE, FAILED, JOIN, MAX_LENGTH, OK, task_id_of
from airflow_provider_launch.pipelines.model import (
    ConditionalStep,
    FailStep,
    Graph,
    MapStep,
    ParallelStep,
    PipelineModel,
    Step,
    StubStep,
    SuccessStep,
    TaskStep,
    branches_of,
    steps_of,
)
from airflow_provider_launch.pipelines.problems import Place, Problem, closest


def find_problems(model: PipelineModel) -> list[Problem]:
    """Return all problems of the graphs, the names and the executors."""
    problems: list[Problem] = []
    for graph, around in _graphs(model.graph, ()):
        problems.extend(_edges(graph, around))
        problems.extend(_names(graph, around))
    problems.extend(_ids(model.graph))
    problems.extend(_nested_maps(model))
    problems.extend(_maps(model))
    tasks = [step for step, _, _ in steps_of(model.graph) if isinstance(step, TaskStep)]
    problems.extend(executor_problems(model, tasks))
    return sorted(dict.fromkeys(problems), key=lambda problem: (problem.place.file, problem.line))


def _graphs(graph: Graph, around: tuple[Step, ...]) -> Iterator[tuple[Graph, tuple[Step, ...]]]:
    yield graph, around
    for step in graph.steps.values():
        for branch in branches_of(step).values():
            yield from _graphs(branch, (*around, step))


def step_path(step: Step, around: tuple[Step, ...] = ()) -> str:
    """Return the name of a step in messages, with its parents."""
    return step.place.step or " / ".join([*(one.name for one in around), step.name])


def _at(step: Step, around: tuple[Step, ...]) -> Place:
    return Place(step.place.file, step.place.line, step_path(step, around))


def _edges(graph: Graph, around: tuple[Step, ...]) -> Iterator[Problem]:
    known = graph.steps
    here = Place(graph.place.file, graph.place.line, " / ".join(step.name for step in around))
    if graph.start_at and graph.start_at not in known:
        yield Problem(f"start_at is {graph.start_at!r}, which does not exist; {closest(graph.start_at, known)}", here)
    for step in known.values():
        yield from _targets(step, around, known)
    if graph.start_at in known:
        yield from _ways(graph, around, here)
    if len([step for step in known.values() if isinstance(step, SuccessStep)]) > 1:
        yield Problem("has more than one step of type success; keep one", here)
    for ring in _rings(graph):
        yield Problem(
            f"steps form a cycle: {' -> '.join(ring)}; steps cannot repeat, so let one task loop instead",
            _at(known[ring[0]], around),
        )


_ENDS: Mapping[str, type[Step]] = {"fail": FailStep, "success": SuccessStep}
"""Steps that a file may leave out, if it has no step of their type."""


def _targets(step: Step, around: tuple[Step, ...], known: Mapping[str, Step]) -> Iterator[Problem]:
    for field, target in (("next", step.next), ("on_failure", step.on_failure)):
        if target == step.name:
            yield Problem(f"'{field}' names the step itself", _at(step, around))
        elif target and target not in known:
            ends = {name for name, kind in _ENDS.items() if not any(isinstance(one, kind) for one in known.values())}
            own = next((name for name, one in known.items() if isinstance(one, _ENDS.get(target, ()))), None)
            cure = f"use {own!r}, the step of type {target!r}" if own else closest(target, [*known, *sorted(ends)])
            yield Problem(f"'{field}' names {target!r}, which does not exist; {cure}", _at(step, around))


def _ways(graph: Graph, around: tuple[Step, ...], here: Place) -> Iterator[Problem]:
    known, found = graph.steps, reachable(graph)
    for name, step in known.items():
        # Files of magnus list terminals even if no step leads to them.
        if name not in found and not step.is_terminal:
            yield Problem("no step leads here; name it in a 'next', or remove it", _at(step, around))
    is_whole = all(target in known for step in known.values() for target in step.targets)
    if is_whole and not any(isinstance(known[name], SuccessStep) for name in found):
        yield Problem("has no way to a success; end it with 'next: success'", here)


def reachable(graph: Graph) -> dict[str, None]:
    """Return the names of the reachable steps, in depth-first order."""
    found: dict[str, None] = {}
    waiting = [graph.start_at]
    while waiting:
        name = waiting.pop()
        if name in found or name not in graph.steps:
            continue
        found[name] = None
        waiting.extend(reversed(graph.steps[name].targets))
    return found


def _rings(graph: Graph) -> Iterator[list[str]]:
    """Yield one cycle for each step that closes one."""
    done: set[str] = set()
    for start in graph.steps:
        if start in done:
            continue
        # Not recursive, because a chain may have more steps than Python allows frames.
        way: list[str] = [start]
        left = [list(graph.steps[start].targets)]
        while left:
            if not left[-1]:
                done.add(way.pop())
                left.pop()
                continue
            target = left[-1].pop(0)
            if target in way and target != way[-1]:
                yield [*way[way.index(target) :], target]
            elif target not in way and target not in done and target in graph.steps:
                way.append(target)
                left.append(list(graph.steps[target].targets))


def incoming(graph: Graph) -> dict[str, list[tuple[str, str]]]:
    """Return, for each reachable step, the edges to it: a step, and `next` or `on_failure`."""
    found = reachable(graph)
    edges: dict[str, list[tuple[str, str]]] = {name: [] for name in found}
    for name in graph.steps:
        step = graph.steps[name]
        if name not in found:
            continue
        for kind, target in (("next", step.next), ("on_failure", step.on_failure)):
            if target in edges:
                edges[target].append((name, kind))
    return edges


# ---- ids ------------------------------------------------------------------------------------------------------


def _names(graph: Graph, around: tuple[Step, ...]) -> Iterator[Problem]:
    taken: dict[str, str] = {}
    edges = incoming(graph)
    for name, step in graph.steps.items():
        for task_id, owner in _ids_of(name, step, edges) if name in edges else ():
            if task_id in taken:
                yield Problem(f"becomes the task id {task_id!r}, like {taken[task_id]}; rename one", _at(step, around))
            taken.setdefault(task_id, owner)
    for step in graph.steps.values():
        if isinstance(step, (ParallelStep, ConditionalStep)):
            yield from _branch_names(step, around)


def _ids_of(name: str, step: Step, edges: Mapping[str, list[tuple[str, str]]]) -> Iterator[tuple[str, str]]:
    """Yield the task ids of a step, each with a text that names its owner."""
    inner = "the pipeline adds a task of that name"
    yield task_id_of(name), f"step {name!r}"
    if step.on_failure:
        for end in (OK, FAILED):
            yield f"{task_id_of(name)}{end}", f"step {name!r}, after which {inner},"
    if len(edges[name]) > 1:
        yield f"{task_id_of(name)}{JOIN}", f"step {name!r}, before which {inner},"


def _branch_names(step: Step, around: tuple[Step, ...]) -> Iterator[Problem]:
    taken = {"fan_out": "the task that starts them", "join": "the task that ends them"}
    if isinstance(step, ConditionalStep):
        if step.default is not None and "default" in step.branches:
            yield Problem("'default' is both a branch and the default; keep one", _at(step, around))
        taken |= {f"{task_id_of(name)}{CASE}": f"the task that starts branch {name!r}" for name in branches_of(step)}
    for name in branches_of(step):
        branch_id = task_id_of(name)
        if branch_id in taken:
            yield Problem(
                f"branch {name!r} becomes the id {branch_id!r}, like {taken[branch_id]}; rename one", _at(step, around)
            )
        taken.setdefault(branch_id, f"branch {name!r}")


def _ids(graph: Graph) -> Iterator[Problem]:
    for step, around, _ in steps_of(graph):
        # Each level adds one or two groups.
        length = sum(len(task_id_of(one.name)) + 12 for one in (*around, step))
        if length > MAX_LENGTH:
            yield Problem("gives a task id that is too long for Airflow; shorten names or nest less", _at(step, around))


# ---- maps -----------------------------------------------------------------------------------------------------


def _nested_maps(model: PipelineModel) -> Iterator[Problem]:
    for step, around, _ in steps_of(model.graph):
        if not isinstance(step, MapStep) or isinstance(step.iterate_on, tuple):
            continue
        outer = [one for one in around if isinstance(one, MapStep) and isinstance(one.iterate_on, str)]
        if outer:
            yield Problem(
                f"is a map inside of map {outer[-1].name!r}, which Airflow cannot run; write the list of "
                f"{outer[-1].name!r} or of {step.name!r} into the file, or let one task loop over the inner list",
                _at(step, around),
            )


def _maps(model: PipelineModel) -> Iterator[Problem]:
    """Refuse a parameter that no step returns. Only decidable if every earlier step declares its `returns`."""
    for step, around, graph in steps_of(model.graph):
        if isinstance(step, ConditionalStep):
            wanted, field = step.parameter, "parameter"
        elif isinstance(step, MapStep) and isinstance(step.iterate_on, str) and step.iterate_on:
            wanted, field = step.iterate_on, "iterate_on"
        else:
            continue
        known = set(model.parameters) | {one.iterate_as for one in around if isinstance(one, MapStep)}
        before = list(_before(model, step, around, graph))
        if all(isinstance(one, StubStep) or (isinstance(one, TaskStep) and one.returns is not None) for one in before):
            known |= {item.name for one in before if isinstance(one, TaskStep) for item in one.returns or ()}
            if wanted not in known:
                cure = closest(wanted, known) if known else "add it to 'parameters', or to 'returns' of an earlier step"
                yield Problem(
                    f"'{field}' names {wanted!r}, which is neither a parameter nor returned by an earlier step; {cure}",
                    _at(step, around),
                )


def _before(model: PipelineModel, step: Step, around: tuple[Step, ...], graph: Graph) -> Iterator[Step]:
    """Yield the tasks and stubs that may have run before a step."""
    levels = [model.graph, *(graph for _, graph in _levels(around, graph))]
    for level, inner in zip(levels, [*around, step], strict=False):
        backwards = {name: [source for source, _ in edges] for name, edges in incoming(level).items()}
        waiting, seen = list(backwards.get(inner.name, [])), set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            found = level.steps[name]
            waiting.extend(backwards.get(name, []))
            if not branches_of(found):
                yield found
            for branch in branches_of(found).values():
                yield from (one for one, _, _ in steps_of(branch) if not branches_of(one) and not one.is_terminal)


def _levels(around: tuple[Step, ...], last: Graph) -> Iterator[tuple[Step, Graph]]:
    for at, step in enumerate(around):
        graphs = list(branches_of(step).values())
        inner = around[at + 1] if at + 1 < len(around) else None
        found = [graph for graph in graphs if graph is last or (inner is not None and inner in graph.steps.values())]
        yield step, found[0] if found else graphs[0]
