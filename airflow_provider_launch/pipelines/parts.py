"""What a step, or a graph, of a pipeline becomes in its DAG."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import BaseOperator

    from airflow_provider_launch.pipelines.gates import Scope, Source
    from airflow_provider_launch.pipelines.model import Graph


@dataclass
class Part:
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

    def add(self, part: Part) -> None:
        """Take the tasks of a part that runs beside the others."""
        self.exits += part.exits
        self.ends += part.ends
        self.members += part.members
        self.inner += part.inner


class GraphRenderer(Protocol):
    """Makes the tasks of the graphs of one pipeline."""

    def next_order(self) -> int:
        """Return the place in the pipeline of the next step."""

    def graph(self, graph: Graph, scope: Scope, sources: Sequence[Source]) -> Part:
        """Make the tasks of a graph, and the ways between them."""
