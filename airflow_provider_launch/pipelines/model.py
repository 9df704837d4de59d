"""What a pipeline is made of. The text below a field is its help; the reference page is made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_launch.pipelines.problems import Place


@dataclass(frozen=True)
class Step:
    """What every step has."""

    name: str
    """Its name in the file; letters, digits, spaces and most signs. It becomes the task's display name."""
    next: str = ""
    """The step that follows a success. Every step but `success` and `fail` needs it."""
    on_failure: str = ""
    """The step that follows a failure. Without it a failure fails the run."""
    place: Place = field(default_factory=Place, repr=False)

    @property
    def is_terminal(self) -> bool:
        """True for `success` and `fail`."""
        return isinstance(self, (SuccessStep, FailStep))

    @property
    def targets(self) -> tuple[str, ...]:
        """The steps that this one names."""
        return tuple(name for name in (self.next, self.on_failure) if name)


@dataclass(frozen=True)
class Return:
    """One value that a task hands on."""

    name: str
    """Name of the parameter."""
    kind: str = "json"
    """`json`, or `metric`: a parameter that is also kept among the metrics of the attempt."""


@dataclass(frozen=True)
class Catalog:
    """Files that a task takes from, and gives to, the catalog of the run."""

    get: tuple[str, ...] = ()
    """Patterns of files that are copied into the task's folder before it starts; `**` crosses folders."""
    put: tuple[str, ...] = ()
    """Patterns of files that are stored when the task has ended."""

    def __bool__(self) -> bool:
        return bool(self.get or self.put)


@dataclass(frozen=True)
class ExecutorSection:
    """Which executor, and how."""

    type: str = "local"
    """`local`, `local-container`, `kubernetes`, `aws-batch`, `slurm`, `mocked`, or the name of a plug-in."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Its settings: those of the table of executors, and options of the scheduler by name."""
    place: Place = field(default_factory=Place, repr=False)


@dataclass(frozen=True)
class TaskStep(Step):
    """Runs something on an executor."""

    command: str = ""
    """What runs: `module.function`, a shell script, or the path of a notebook; by `command_type`."""
    command_type: str = "python"
    """`python`, `shell`, `notebook` or `app`."""
    app: Mapping[str, Any] | None = None
    """The app to launch, as `app_to_dict` gives it; only for `command_type: app`. Its texts may hold templates."""
    component: str = ""
    """Instead of `app`: a function that returns an `AppDef`, as `module.function` or as the name of a component."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the component by name. A value that is `$name` is the parameter of that name."""
    returns: tuple[Return, ...] | None = None
    """Names of the values that the task hands on. Without it: all that it gives."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable of the task's environment to the Airflow Variable, or `conn:` and the connection, that holds its
    value. A list means that both have the same name."""
    catalog: Catalog = field(default_factory=Catalog)
    """Files from and to the catalog of the run: `get` and `put`, each a pattern or a list of patterns."""
    executor: ExecutorSection | None = None
    """Where this step runs, if elsewhere than the pipeline: a type, or `type` and `config`."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings of this step by type of executor: a mapping, or the name of a placeholder that holds one."""
    max_attempts: int | None = None
    """How often the task is tried, in all. Without it: as `default_args` of the DAG has it."""
    retry_delay_s: float | None = None
    """Seconds between two tries. Without it none, if `max_attempts` is set."""
    airflow: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the Airflow task: `pool`, `queue`, `priority_weight`, `deferrable`, `time_limit_s` and so on."""
    notebook_output_path: str = ""
    """Where the notebook is kept with its outputs, below the task's folder. Without it: not at all."""
    output_cell_tag: str = ""
    """Tag of the notebook's cell whose last value, a dict, is handed on."""


@dataclass(frozen=True)
class StubStep(Step):
    """Does nothing and succeeds; other fields are allowed and ignored, so that a task can be silenced."""


@dataclass(frozen=True)
class SuccessStep(Step):
    """Ends the graph as a success; added by itself where it is missing."""


@dataclass(frozen=True)
class FailStep(Step):
    """Ends the graph as a failure; added by itself where it is missing."""


@dataclass(frozen=True)
class ParallelStep(Step):
    """Runs branches side by side; all run to their end, and one that fails fails the step."""

    branches: Mapping[str, Graph] = field(default_factory=dict)
    """Graphs by name; each is a `start_at` and `steps`."""


@dataclass(frozen=True)
class MapStep(Step):
    """Runs a branch once for each element of a list."""

    iterate_on: str | tuple[Any, ...] = ""
    """The parameter that holds the list; or the list itself."""
    iterate_as: str = ""
    """The parameter that holds the element in the branch."""
    branch: Graph | None = None
    """The graph that runs for each element."""
    reducer: Any = "list"
    """What becomes of the values that the branches return: `list`, `min`, `max`, `sum`, `last`, or `module.function`
    that takes the list; or a mapping of such by parameter."""
    parallelism: int | None = None
    """How many elements run at a time. Without it: Airflow's limits."""


@dataclass(frozen=True)
class DagStep(Step):
    """Runs the graph of another file."""

    dag_definition: str = ""
    """Path of the file, relative to this one."""
    branch: Graph | None = None


@dataclass(frozen=True)
class ConditionalStep(Step):
    """Runs one of several branches, by the value of a parameter."""

    parameter: str = ""
    """The parameter that decides."""
    branches: Mapping[str, Graph] = field(default_factory=dict)
    """Graphs by value, which is compared as text."""
    default: Graph | None = None
    """The graph for all other values. Without it such a value fails the step."""


@dataclass(frozen=True)
class Graph:
    """Steps that lead from one to the next."""

    start_at: str
    """The first step."""
    steps: Mapping[str, Step]
    """The steps by name."""
    description: str = ""
    """What it is for."""
    place: Place = field(default_factory=Place, repr=False)


@dataclass(frozen=True)
class PipelineModel:
    """A pipeline: a file, with all files that it includes."""

    graph: Graph
    """The steps, under `dag:`."""
    name: str
    """The DAG's id, unless another one is given."""
    folder: Path
    """Where the file is: paths in it are relative to that."""
    executor: ExecutorSection = field(default_factory=ExecutorSection)
    """Where the steps run."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters by name, with their first values; the trigger form shows them."""
    catalog: str = ""
    """Where the catalog is: a path or a URL that Airflow's object storage knows."""
    catalog_conn_id: str = ""
    """The connection for it, if it needs one."""
    file: str = ""
    """The file, as messages name it."""


def steps_of(graph: Graph, around: tuple[Step, ...] = ()) -> Iterator[tuple[Step, tuple[Step, ...], Graph]]:
    """Yield each step, with the steps around it and the graph it stands in; depth first, in the file's order."""
    for step in graph.steps.values():
        yield step, around, graph
        for branch in branches_of(step).values():
            yield from steps_of(branch, (*around, step))


def branches_of(step: Step) -> dict[str, Graph]:
    """Return the graphs inside a step, by name."""
    if isinstance(step, ParallelStep):
        return dict(step.branches)
    if isinstance(step, ConditionalStep):
        return {**step.branches, **({"default": step.default} if step.default is not None else {})}
    if isinstance(step, (MapStep, DagStep)) and step.branch is not None:
        return {"each" if isinstance(step, MapStep) else "dag": step.branch}
    return {}
