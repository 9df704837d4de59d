"""The tasks that one step or graph of a pipeline becomes in its DAG."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from airflow.sdk import BaseOperator

    from airflow_provider_launch.pipelines.gates import Scope, Source
    from airflow_provider_launch.pipelines.model import Graph


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


class GraphRenderer(Protocol):
    """Makes the tasks of the graphs of one pipeline."""

    folders: tuple[Path, ...]
    """Folders with modules of the pipeline."""

    def next_order(self) -> int:
        """Return the position of the next step in the pipeline."""

    def graph(self, graph: Graph, scope: Scope, sources: Sequence[Source]) -> Part:
        """Make the tasks of a graph and the edges between them."""
