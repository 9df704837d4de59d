"""Executors by type, and where a step runs, with which settings."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.pipelines.layers import ConnectionPlaceholders, mapping_of, resolve
from airflow_provider_launch.pipelines.model import ExecutorSection, PipelineModel, TaskStep
from airflow_provider_launch.pipelines.problems import PipelineError, Place, Problem, closest
from airflow_provider_launch.specs.mounts import parse_mount
from airflow_provider_launch.util.entrypoints import find

PLUGINS_GROUP = "airflow_provider_launch.executors"
MOCKED = "mocked"
_GONE = {
    "argo": "kubernetes",
    "kfp": "kubernetes",
    "k8s-job": "kubernetes",
    "mini-k8s-job": "kubernetes",
    "local-aws-batch": "aws-batch",
    "slurm-job": "slurm",
    "docker": "local-container",
    "demo-renderer": "local",
    "emulator": "local",
}


@dataclass(frozen=True)
class Backend:
    """A scheduler, as pipelines name it."""

    name: str
    """Its name in the registry of schedulers."""
    conn_id: str
    """The connection that is used when none is named."""
    in_containers: bool
    """True if a task runs in an image, and does not see the files of the worker."""
    shares_files: bool
    """True if a folder of the worker is seen by the task: the same host, or a mount from it."""


BACKENDS: Mapping[str, Backend] = {
    "local": Backend("local", "launch_local_default", in_containers=False, shares_files=True),
    "local-container": Backend("docker", "launch_docker_default", in_containers=True, shares_files=True),
    "kubernetes": Backend("kubernetes", "launch_kubernetes_default", in_containers=True, shares_files=False),
    "aws-batch": Backend("aws_batch", "launch_aws_batch_default", in_containers=True, shares_files=False),
    "slurm": Backend("slurm", "launch_slurm_default", in_containers=False, shares_files=False),
}
"""Type of an executor to the scheduler that runs its tasks."""


@dataclass(frozen=True)
class ExecutorSettings:
    """Settings that every executor has; further ones are options of its scheduler."""

    conn_id: str = ""
    """The Airflow connection. Without it the default one of the type."""
    image: str = ""
    """Image of the tasks; also spelled `docker_image`. Executors with containers need one."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the tasks; also spelled `environment`."""
    cpu: int | None = None
    """Cores of one replica."""
    gpu: int | None = None
    """GPUs of one replica."""
    memory_mb: int | None = None
    """Memory of one replica in MB."""
    replicas: int = 1
    """How many equal processes run; the first one hands back parameters."""
    python: str = ""
    """The Python that runs functions and notebooks. Without it the worker's own, or `python3` in containers."""
    shell: str = "sh"
    """The shell that runs commands."""
    shell_options: str = ""
    """Options of that shell: `-eu` ends a command at its first error."""
    code_dir: str = ""
    """Folder in which tasks start and from which functions are imported, relative to the file; in containers an
    absolute path. Without it the folder of the file, or that of the image."""
    mounts: Sequence[str] = ()
    """Folders in the containers: `/path/of/host:/path`, or `volume:/path`; `:ro` at the end makes one read-only."""
    data_dir: str = ""
    """Folder that the workers and the executor both see, for the files of tasks with a `catalog`. Without it a folder
    below `LAUNCH_HOME`, where worker and executor share a host."""
    data_volume: str = ""
    """The volume that the workers see as `data_dir`: a claim of Kubernetes, a file system of EFS, a volume of Docker.
    Without it `data_dir` has the same path on the hosts of the executor."""
    run_in_local: bool = False
    """True runs the step on local processes instead; for `local-container`."""
    enable_parallel: bool = True
    """False runs one task of the run at a time."""
    parallelism: int | None = None
    """How many tasks of a run there are at a time."""
    patches: Mapping[str, Any] = field(default_factory=dict)
    """For `mocked`: step to the `command` and `command_type` that runs instead; all other tasks do nothing."""
    placeholders: Mapping[str, Any] = field(default_factory=dict)
    """Values for settings that a step leaves empty, by their name. Of one without a value, the connection has it, in
    `placeholders` of its extra."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings by a name of your own, to which `overrides` of a step refer."""
    auto_remove_container: bool = True
    """Accepted for files of magnus; what becomes of ended containers is decided by the connection."""


def setting_names() -> list[str]:
    """Return the names of the settings that every executor has."""
    return [item.name for item in dataclasses.fields(ExecutorSettings)]


@dataclass(frozen=True)
class Placement:
    """Where one task runs, with settings resolved."""

    type: str
    backend: Backend | None
    """None for `mocked`, and for executors of plug-ins."""
    settings: ExecutorSettings
    options: Mapping[str, Any]
    """Options of the scheduler, for the `cfg` of the launch; all settings for a plug-in."""
    left_to_connection: tuple[str, ...] = ()
    """Placeholders whose value only the connection knows: what they set is missing until the task runs."""

    @property
    def conn_id(self) -> str:
        """The connection."""
        return self.settings.conn_id or (self.backend.conn_id if self.backend else "")


def task_limit(model: PipelineModel) -> int | None:
    """Return how many tasks of a run there are at a time; None for Airflow's own limit."""
    if model.executor.config.get("enable_parallel", True) is False:
        return 1
    return model.executor.config.get("parallelism")


def placement(model: PipelineModel, step: TaskStep, connection: ConnectionPlaceholders | None = None) -> Placement:
    """Return where a step runs.

    Args:
        model: the pipeline.
        step: a task of it.
        connection: placeholders of the connection; None while a file is read, when no connection is.

    Raises:
        PipelineError: a setting is wrong, or a placeholder has no value.
    """
    problems: list[Problem] = []
    found = _placement(model, step, problems, connection)
    if problems or found is None:
        raise PipelineError(problems)
    return found


def executor_problems(model: PipelineModel, steps: list[TaskStep]) -> Iterator[Problem]:
    """Yield what is wrong with executors and settings, of the pipeline and of each step."""
    problems: list[Problem] = []
    _check_type(model.executor, problems)
    if model.executor.type == MOCKED:
        names = {step.name for step in steps}
        problems.extend(
            Problem(f"'patches' names {name!r}, which is no task; {closest(name, names)}", model.executor.place)
            for name in mapping_of(model.executor.config.get("patches"))
            if name not in names
        )
    seen = {str(problem) for problem in problems}
    for step in steps:
        own: list[Problem] = []
        if step.executor is not None:
            _check_type(step.executor, own)
        if not own:
            _placement(model, step, own)
        for problem in own:
            if str(problem) not in seen:
                seen.add(str(problem))
                problems.append(problem)
    yield from problems


def _check_type(section: ExecutorSection, problems: list[Problem]) -> None:
    known = [*BACKENDS, MOCKED, *find(PLUGINS_GROUP)]
    if section.type in known:
        return
    cure = f"use {_GONE[section.type]!r}" if section.type in _GONE else closest(section.type, known)
    problems.append(Problem(f"{section.type!r} is no executor; {cure}", section.place))


def _placement(
    model: PipelineModel,
    step: TaskStep,
    problems: list[Problem],
    connection: ConnectionPlaceholders | None = None,
) -> Placement | None:
    section = step.executor or model.executor
    patched = model.executor.type == MOCKED
    if patched:
        # A mocked pipeline runs nothing but its patches, wherever their steps would run.
        section = model.executor
    kind = section.type
    left: list[str] = []
    merged = resolve(model, step, kind, problems, connection=connection, left=left)
    if merged.pop("run_in_local", False) and kind == "local-container":
        kind = "local"
        merged.pop("image", None)
    if patched:
        kind = "local"
    backend = BACKENDS.get(kind)
    # An error of the pipeline is no fault of a step, and is shown once.
    own = step.executor is not None or kind in step.overrides
    place = step.place if own or not section.place.line else section.place
    settings, options = _split(merged, place, problems)
    if settings is None:
        return None
    if backend is None:
        problems.extend(Problem(text, step.place) for text in _plugin_problems(kind, step, left))
        return Placement(kind, None, settings, merged)
    # What the connection's placeholders set is seen when the task runs.
    is_known = connection is not None or not left
    if is_known and backend.in_containers and not settings.image and step.command_type != "app":
        problems.append(Problem(f"executor {kind!r} needs an 'image' in its config", place))
    if settings.mounts and not backend.in_containers:
        problems.append(Problem(f"has 'mounts', and executor {kind!r} has none: its tasks see the host's files", place))
    if step.catalog and is_known:
        problems.extend(Problem(text, step.place) for text in _data_problems(kind, backend, settings))
    _check_options(kind, backend, options, place, problems)
    return Placement(kind, backend, settings, options, tuple(left))


def _plugin_problems(kind: str, step: TaskStep, left: list[str]) -> Iterator[str]:
    """Yield what the executor of a plug-in cannot do."""
    if step.command_type == "app":
        yield f"executor {kind!r} of a plug-in runs commands, and no apps"
    if left:
        names = ", ".join(map(repr, left))
        yield f"leaves {names} to a connection, and executor {kind!r} of a plug-in has none; give it a value"


def _data_problems(kind: str, backend: Backend, settings: ExecutorSettings) -> Iterator[str]:
    """Yield why the files of a step with a catalog would not reach its executor."""
    if not settings.data_dir and not backend.shares_files:
        cure = "name a folder that both see as 'data_dir'"
        if backend.in_containers:
            cure += ", and the volume it is on as 'data_volume'"
        yield f"has a catalog, and executor {kind!r} does not see the files of the workers; {cure}"
    if settings.data_volume and not backend.in_containers:
        yield f"has 'data_volume', and executor {kind!r} has no volumes; mount it where it runs, and leave this out"
    elif settings.data_volume and not settings.data_dir:
        yield "has 'data_volume'; name the folder where the workers have it mounted as 'data_dir'"


# ---- checks ---------------------------------------------------------------------------------------------------


def _split(
    merged: dict[str, Any], place: Place, problems: list[Problem]
) -> tuple[ExecutorSettings | None, dict[str, Any]]:
    names = set(setting_names())
    own = {name: value for name, value in merged.items() if name in names}
    options = {name: value for name, value in merged.items() if name not in names and name != "cfg"}
    options.update(mapping_of(merged.get("cfg")))
    before = len(problems)
    kinds = {name: _expected(name, value) for name, value in own.items()}
    problems.extend(
        Problem(f"setting {name!r} must be {expected}, not {own[name]!r}", place)
        for name, (expected, right) in kinds.items()
        if not right
    )
    if kinds.get("mounts", ("", False))[1]:
        problems.extend(Problem(text, place) for text in _mount_problems(own["mounts"]))
    if len(problems) > before:
        return None, options
    if "env" in own:
        own["env"] = {str(name): str(value) for name, value in own["env"].items()}
    return ExecutorSettings(**own), options


def _expected(name: str, value: Any) -> tuple[str, bool]:
    if name in ("env", "patches", "placeholders", "overrides"):
        return "a mapping", isinstance(value, Mapping)
    if name == "mounts":
        right = isinstance(value, Sequence) and all(isinstance(item, str) for item in value)
        return "a list of texts such as /host:/path or volume:/path:ro", right and not isinstance(value, str)
    if name in ("enable_parallel", "run_in_local", "auto_remove_container"):
        return "true or false", isinstance(value, bool)
    if name == "gpu":
        return "a whole number from 0 on", _is_number(value, (int,)) and value >= 0
    if name in ("cpu", "memory_mb", "replicas", "parallelism"):
        return "a whole number from 1 on", _is_number(value, (int,)) and value >= 1
    return "text", isinstance(value, str)


def _mount_problems(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        try:
            parse_mount(text)
        except ValueError as error:
            yield f"the mount {text!r} of setting 'mounts' {error}"


def _is_number(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _check_options(
    kind: str, backend: Backend, options: Mapping[str, Any], place: Place, problems: list[Problem]
) -> None:
    """Refuse options that the scheduler does not know, where its options can be read without its client."""
    try:
        module = importlib.import_module(f"airflow_provider_launch.schedulers.{backend.name}.options")
    except ModuleNotFoundError:
        return
    prefix = "".join(part.capitalize() for part in backend.name.split("_"))
    schema = getattr(module, f"{prefix}Opts").as_runopts()
    known = [*setting_names(), *(name for name, _ in schema)]
    problems.extend(
        Problem(f"{name!r} is no setting of executor {kind!r}; {closest(name, known)}", place)
        for name in options
        if schema.registered_name(name) is None
    )
