"""The model of a pipeline. The text below a field is its help, and becomes the reference page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from airflow_provider_launch.pipelines.fields import Count, Flag, Key, Named, Seconds, Text, as_list
from airflow_provider_launch.pipelines.objects import FOLDER
from airflow_provider_launch.pipelines.parameters import REDUCERS, is_name
from airflow_provider_launch.pipelines.problems import Place


def _inside(path: str) -> str:
    """Return a path or a pattern of the task's folder.

    Raises:
        ValueError: it leads outside.
    """
    parts = PurePosixPath(path).parts
    reason = "is the folder of objects" if FOLDER in parts else "leads outside" if ".." in parts else ""
    if path.startswith(("/", "~")):
        reason = "starts outside"
    if reason:
        raise ValueError(f"{reason}; it must stay inside the task's folder")
    return path


def _variable(name: str) -> str:
    if not is_name(name):
        raise ValueError("is not a valid name of an environment variable; write a mapping")
    return name


Patterns = Annotated[
    tuple[Annotated[str, Field(min_length=1), AfterValidator(_inside)], ...],
    BeforeValidator(as_list),
    Field(description="a string or a list of strings"),
]
_Folder = Annotated[Text, AfterValidator(_inside)]
_GONE_COMMANDS = {
    "python-lambda": "write a function in a module",
    "python-function": "write python",
    "container": "write shell, and name the image in the executor's config",
}
_CatalogType = Annotated[
    Literal["file-system", "do-nothing", "object-storage"],
    BeforeValidator(lambda kind: "file-system" if kind == "" else kind),
    Field(description="a type of catalog"),
    Key(gone={"": "use object-storage, with a URL as its location"}),
]
_CommandType = Annotated[
    Literal["python", "shell", "notebook", "app"],
    BeforeValidator(lambda kind: "python" if kind in ("", "async-python") else kind),
    Field(description="a type of command"),
    Key(gone=_GONE_COMMANDS),
]
_Secrets = Annotated[
    dict[Annotated[str, AfterValidator(_variable)], str],
    BeforeValidator(lambda given: {str(name): name for name in given} if isinstance(given, list) else given),
    Field(description="a list of names, or a mapping of variable to name"),
]
_Reducer = Annotated[str, Field(pattern=rf"^({'|'.join(REDUCERS)}|\w+(\.\w+)+)$")]
_Reducers = Annotated[
    _Reducer | dict[str, _Reducer],
    Field(
        description=f"{', '.join(REDUCERS)}, or module.function (no lambda), or a mapping of parameter to one of them"
    ),
]
_IterateOn = Annotated[str | tuple[Any, ...], Field(description="a parameter, or a list")]


@dataclass(frozen=True)
class Step:
    """Fields of every step."""

    name: str
    """Name in the file: letters, digits, spaces and most signs. It becomes the display name of the task."""
    next: Annotated[Text, Key(("next_node",), "name the step that follows, or 'next: success'")] = ""
    """The step that follows a success; required, except for `success` and `fail`."""
    on_failure: Text = ""
    """The step that follows a failure. Without it, a failure fails the run."""
    place: Place = field(default_factory=Place, repr=False)

    @property
    def is_terminal(self) -> bool:
        """True for `success` and `fail`."""
        return isinstance(self, (SuccessStep, FailStep))

    @property
    def targets(self) -> tuple[str, ...]:
        """The steps that follow this one."""
        return tuple(name for name in (self.next, self.on_failure) if name)


@dataclass(frozen=True)
class Return:
    """One value that a task returns."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    """Name of the parameter."""
    kind: Literal["json", "metric", "object"] = "json"
    """`json`, `metric` (also recorded as a metric of the attempt), or `object`: any Python object, which the task
    pickles into the catalog and later functions and notebooks unpickle."""


_Returns = Annotated[
    tuple[Annotated[Return, BeforeValidator(lambda item: {"name": item} if isinstance(item, str) else item)], ...],
    BeforeValidator(as_list),
    Field(description="a list of names, or of mappings with 'name' and 'kind'"),
]


@dataclass(frozen=True)
class Catalog:
    """Files that a task reads from and stores in the catalog of the run."""

    get: Patterns = ()
    """Patterns of files to copy into the task's folder before it starts; `**` crosses folders."""
    put: Patterns = ()
    """Patterns of files to store after the task has ended."""
    project: Patterns = ()
    """Patterns of files of the project to copy into the task's folder before `get`: `scripts/**`. A pattern that ends
    in `/` also makes the folder. Paths start in `code_dir`, by default in the folder of the file."""
    compute_data_folder: _Folder = ""
    """Folder in the task's folder where the paths of `get` and `put` start; it exists when the task starts. Default:
    that of the pipeline's `catalog`, else the task's folder."""

    def below(self, folder: str) -> Catalog:
        """Return the catalog with `get` and `put` as paths of the task's folder, which start in one of its folders."""
        get, put = (tuple(str(PurePosixPath(folder, path)) for path in paths) for paths in (self.get, self.put))
        return replace(self, get=get, put=put, compute_data_folder=folder) if folder else self

    def __bool__(self) -> bool:
        return bool(self.get or self.put or self.project)


@dataclass(frozen=True)
class CatalogSection:
    """The catalog of a pipeline."""

    type: _CatalogType = "file-system"
    location: Annotated[Text, Key(("catalog_location", "path"))] = ""
    conn_id: Text = ""
    project: Patterns = ()
    compute_data_folder: _Folder = ""


@dataclass(frozen=True)
class ExecutorSection:
    """An executor and its settings."""

    type: Annotated[Text, Key(cure="name an executor, such as local")] = "local"
    """`local`, `local-container`, `kubernetes`, `aws-batch`, `slurm`, `mocked`, or the name of a plug-in."""
    config: Named = field(default_factory=dict)
    """Settings of the executor (see the table), and options of its scheduler by name."""
    place: Place = field(default_factory=Place, repr=False)


@dataclass(frozen=True)
class TaskStep(Step):
    """Runs a command or an app on an executor."""

    command: Text = ""
    """The command: `module.function`, a shell script or the path of a notebook, by `command_type`."""
    command_type: _CommandType = "python"
    """`python`, `shell`, `notebook` or `app`."""
    app: Named | None = None
    """The app to launch, in the format of `app_to_dict`; only for `command_type: app`. Templates are allowed."""
    component: Text = ""
    """Instead of `app`: a function that returns an `AppDef`, as `module.function` or as the name of a component."""
    args: Named = field(default_factory=dict)
    """Arguments of the component, or additional parameters of another command, by name; templates are allowed:
    `{day: "{{ ds }}"}`. A value `$name` is replaced by the parameter of that name."""
    template: Flag = True
    """False: the command is not an Airflow template. For shell such as `${#name}`, where `{#` opens a comment."""
    returns: _Returns | None = None
    """Names of the values that the task returns. Without it: all its values."""
    secrets: _Secrets = field(default_factory=dict)
    """Environment variable to its source: the name of an Airflow Variable, or `conn:` and a connection id. A list means
    that both have the same name."""
    catalog: Annotated[Catalog, Key()] = field(default_factory=Catalog)
    """Files from and to the catalog of the run: `get` and `put`, each a pattern or a list of patterns."""
    executor: Annotated[ExecutorSection | None, Key()] = None
    """Executor of this step, if different from that of the pipeline: a type, or `type` and `config`."""
    overrides: Annotated[Named, Key(("executor_config", "mode_config"))] = field(default_factory=dict)
    """Settings of this step by type of executor: a mapping, or the name of a placeholder that holds one."""
    max_attempts: Annotated[Count | None, Key(("retry",))] = None
    """Maximum number of tries of the task. Default: from `default_args` of the DAG."""
    retry_delay_s: Seconds | None = None
    """Seconds between two tries. Default: 0 if `max_attempts` is set."""
    airflow: Named = field(default_factory=dict)
    """Arguments of the Airflow task: `pool`, `queue`, `priority_weight`, `deferrable`, `time_limit_s` and so on."""
    notebook_output_path: Annotated[Text, AfterValidator(_inside)] = ""
    """Path of the notebook with its outputs, in the task's folder. Default: `name_out.ipynb`. It is stored in the
    catalog if the executor sees the files of the workers, also after a failure."""
    output_cell_tag: Text = ""
    """Tag of the notebook cell whose last value, a dict, is returned."""


@dataclass(frozen=True)
class StubStep(Step):
    """Does nothing and succeeds; other fields are allowed and ignored, so that a task can be turned off."""


@dataclass(frozen=True)
class SuccessStep(Step):
    """Ends the graph as a success; added automatically if missing."""


@dataclass(frozen=True)
class FailStep(Step):
    """Ends the graph as a failure; added automatically if missing."""


@dataclass(frozen=True)
class ParallelStep(Step):
    """Runs branches in parallel. All run to their end; a failed branch fails the step."""

    branches: Annotated[Mapping[str, Graph], Key(cure="add at least one")] = field(default_factory=dict)
    """Graphs by name; each is a `start_at` and `steps`."""


@dataclass(frozen=True)
class MapStep(Step):
    """Runs a branch once for each element of a list."""

    iterate_on: Annotated[_IterateOn, Key(cure="name a parameter that holds a list, or write the list")] = ""
    """The parameter that holds the list; or the list itself."""
    iterate_as: Annotated[Text, Key(cure="name the parameter that holds the element")] = ""
    """The parameter that holds the element in the branch."""
    branch: Annotated[Graph | None, Key(cure="add the graph that runs for each element")] = None
    """The graph that runs for each element."""
    reducer: _Reducers = "list"
    """Reduces the values that the branches return: `list`, `min`, `max`, `sum`, `last`, or a `module.function` of
    the list; or a mapping of parameter to reducer."""
    parallelism: Count | None = None
    """Maximum number of elements that run at the same time. Default: Airflow's limits."""


@dataclass(frozen=True)
class DagStep(Step):
    """Runs the graph of another file."""

    dag_definition: Annotated[Text, Key(cure="name the file")] = ""
    """Path of the file, relative to this one."""
    branch: Graph | None = None


@dataclass(frozen=True)
class ConditionalStep(Step):
    """Runs one of several branches, chosen by the value of a parameter."""

    parameter: Annotated[Text, Key(cure="name the parameter that decides")] = ""
    """The parameter that decides."""
    branches: Annotated[Mapping[str, Graph], Key(cure="add at least one")] = field(default_factory=dict)
    """Graphs by value; values are compared as text."""
    default: Annotated[Graph | None, Key()] = None
    """The graph for all other values. Without it, any other value fails the step."""


@dataclass(frozen=True)
class Graph:
    """Steps and the edges between them."""

    start_at: Annotated[Text, Key(cure="name the first step")]
    """The first step."""
    steps: Mapping[str, Step]
    """The steps by name."""
    description: Text = ""
    """Description of the DAG."""
    place: Place = field(default_factory=Place, repr=False)


@dataclass(frozen=True)
class PipelineModel:
    """A pipeline: a file with all files that it includes."""

    graph: Graph
    """The steps, under `dag:`."""
    name: str
    """The DAG's id, unless another one is given."""
    folder: Path
    """Folder of the file, to which its paths are relative."""
    executor: ExecutorSection = field(default_factory=ExecutorSection)
    """Default executor of the steps."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters by name, with their default values; shown in the trigger form."""
    catalog: str = ""
    """Location of the catalog: a path, or a URL that Airflow's object storage supports."""
    catalog_conn_id: str = ""
    """The connection for the catalog, if it needs one."""
    project: tuple[str, ...] = ()
    """`project` of all tasks with a catalog that have none of their own, as `catalog: {project: [...]}`."""
    file: str = ""
    """Name of the file in messages."""

    def folders_of(self, step: Step) -> tuple[Path, ...]:
        """Return the folder of the file, and that of the included file in which the step is."""
        # Only the path of an included file is sure to be absolute.
        path = Path(step.place.file)
        return (self.folder, path.parent) if path.is_absolute() else (self.folder,)

    def reducer_folders(self, step: MapStep) -> tuple[Path, ...]:
        """Return the folders in which the module of a reducer may be."""
        code_dir = self.executor.config.get("code_dir")
        return (*([self.folder / code_dir] if isinstance(code_dir, str) else []), *self.folders_of(step))


def steps_of(graph: Graph, around: tuple[Step, ...] = ()) -> Iterator[tuple[Step, tuple[Step, ...], Graph]]:
    """Yield each step with its enclosing steps and its graph; depth first, in the order of the file."""
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
