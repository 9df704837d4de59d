"""The tasks of a step, and those of maps: a mapped group, or for a map in a map a group for each of its elements."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup

from airflow_provider_launch.pipelines.gates import FanIn, FanOut, Scope, Source, StubOperator
from airflow_provider_launch.pipelines.ids import folder_of
from airflow_provider_launch.pipelines.model import Graph, MapStep

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.sdk import BaseOperator

    from airflow_provider_launch.pipelines.render import Renderer


@dataclass
class Part:
    """The tasks of one step or graph."""

    entry: BaseOperator
    exits: list[BaseOperator]
    """Tasks that all succeed if the step succeeds."""
    ends: list[BaseOperator]
    """Other last tasks: those that fail."""
    members: list[str]
    """All tasks that run as often as the entry."""
    inner: list[str] = field(default_factory=list)
    """Tasks in a mapped group inside."""
    outputs: list[Source] = field(default_factory=list)
    """Sources of parameters after a success."""

    def add(self, part: Part) -> None:
        """Add the tasks of a parallel part."""
        self.exits += part.exits
        self.ends += part.ends
        self.members += part.members
        self.inner += part.inner


def mapped(renderer: Renderer, step: MapStep, branch: Graph, scope: Scope, sources: list[Source]) -> Part:
    """Make a group that Airflow runs once for each element of the list."""
    # Imported here, because each start of a task pays for the decorators of Airflow, which only a map needs.
    from airflow.sdk import task_group

    order = renderer.next_order()
    fan_out = FanOut(task_id="fan_out", iterate_on=step.iterate_on, sources=sources, scope=scope, do_xcom_push=True)
    made: list[Part] = []
    outer = Source(fan_out.task_id, scope.group)

    def each(value: Any) -> None:  # noqa: ARG001 - Airflow maps over it
        group = f"{fan_out.task_id.rpartition('.')[0]}.each"
        inside = Scope(
            group, fan_out.task_id, step.iterate_as, order, scope.fixed, scope.folders, parallelism=step.parallelism
        )
        made.append(renderer.graph(branch, inside, [outer]))

    task_group(group_id="each")(each).expand(value=fan_out.output)
    part = made[0]
    fan_in = FanIn(
        task_id="fan_in",
        sources=[outer],
        branches=[[source for source in part.outputs if source != outer]],
        reducer=step.reducer,
        folders=renderer.model.reducer_folders(step),
        order=order,
        hidden=[step.iterate_as],
        fan_out=fan_out.task_id,
        scope=scope,
    )
    # An edge past the group: an empty list skips the group and is a success.
    fan_out >> fan_in
    for task in dict.fromkeys([*part.exits, *part.ends]):
        task >> fan_in
    return Part(
        fan_out,
        [fan_in],
        [],
        [fan_out.task_id, fan_in.task_id],
        [*part.members, *part.inner],
        [Source(fan_in.task_id, scope.group)],
    )


def unrolled(
    renderer: Renderer, step: MapStep, branch: Graph, items: Iterable[Any], scope: Scope, sources: list[Source]
) -> Part:
    """Make a group for each element of a list in the file."""
    order = renderer.next_order()
    entry = StubOperator(task_id="fan_out")
    made = Part(entry, [], [], [entry.task_id])
    branches = []
    for at, item in enumerate(items):
        inside = _in_element(replace(scope, fixed={**scope.fixed, step.iterate_as: (item, order)}), entry.task_id, at)
        with TaskGroup(str(at), group_display_name=str(item)):
            part = renderer.graph(branch, inside, sources)
        entry >> part.entry
        made.add(part)
        branches.append([source for source in part.outputs if source not in sources])
    fan_in = FanIn(
        task_id="fan_in",
        sources=sources,
        branches=branches,
        reducer=step.reducer,
        folders=renderer.model.reducer_folders(step),
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


def _in_element(scope: Scope, fan_out: str, at: int) -> Scope:
    """Return a scope with the catalog folder of an element of a list in the file."""
    folder = f"{folder_of(fan_out)}/{at}"
    if not scope.group:
        return replace(scope, folders=(*scope.folders, folder))
    inner = folder.removeprefix(f"{scope.group.replace('.', '/')}/")
    return replace(scope, inner_folders=(*scope.inner_folders, inner))
