"""Executors by type, and the executor and settings of each step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from airflow_provider_launch.pipelines.fields import Count, Flag, Named, rules_of
from airflow_provider_launch.pipelines.layers import ConnectionPlaceholders, mapping_of, resolve
from airflow_provider_launch.pipelines.model import ExecutorSection, PipelineModel, TaskStep
from airflow_provider_launch.pipelines.objects import object_names
from airflow_provider_launch.pipelines.problems import PipelineError, Place, Problem, closest
from airflow_provider_launch.schedulers import backends
from airflow_provider_launch.schedulers.backends import BackendInfo
from airflow_provider_launch.schedulers.structured_opts import checked_options
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.roles import parse_mount
from airflow_provider_launch.specs.type_check import shown
from airflow_provider_launch.util.entrypoints import find

PLUGINS_GROUP = "airflow_provider_launch.executors"
MOCKED = "mocked"
BACKENDS: Mapping[str, BackendInfo] = {info.executor: info for info in backends.BACKENDS.values()}
"""The scheduler of each executor type."""
LOCAL = next(iter(BACKENDS))
_ON_THIS_HOST = [name for name, info in BACKENDS.items() if info.in_containers and info.shares_files]
_TEMPLATES = ("image", "mounts", "python", "shell", "shell_options", "code_dir", "data_dir", "data_volume")
_NUMBERS = ("cpu", "gpu", "memory_mb", "replicas")
"""Settings that are templates, besides `env` and the options of the scheduler. The others shape the DAG."""
_MOST_DIGITS = 18
"""Maximum digits of a number that a run gives; Python refuses to read thousands of them."""
_GONE = {name: info.executor for info in BACKENDS.values() for name in info.executors[1:]}


def _mount(text: str) -> str:
    parse_mount(text)
    return text


_Word = Annotated[str, Field(description="text")]
_Mounts = Annotated[
    tuple[Annotated[str, AfterValidator(_mount)], ...],
    Field(description="a list of strings such as /host:/path or volume:/path:ro"),
]
_Env = Annotated[Named, AfterValidator(lambda env: {name: str(value) for name, value in env.items()})]
_Gpus = Annotated[int, Field(strict=True, ge=0, description="a whole number of at least 0")]


@dataclass(frozen=True)
class ExecutorSettings:
    """Settings of every executor; other names are options of its scheduler."""

    conn_id: _Word = ""
    """The Airflow connection. Default: that of the executor type."""
    image: _Word = ""
    """Image of the tasks, required for executors with containers. Alias: `docker_image`."""
    env: _Env = field(default_factory=dict)
    """Environment variables of the tasks. Alias: `environment`."""
    # Until they are rendered, numbers may be templates.
    cpu: Count | None = None
    """Cores of one replica."""
    gpu: _Gpus | None = None
    """GPUs of one replica."""
    memory_mb: Count | None = None
    """Memory of one replica in MB."""
    replicas: Count = 1
    """Number of equal processes; the first one returns parameters."""
    python: _Word = ""
    """Python that runs functions and notebooks. Default: the worker's own, or `python3` in containers."""
    shell: _Word = "sh"
    """The shell that runs commands."""
    shell_options: _Word = ""
    """Options of the shell: `-eu` stops a command at its first error."""
    code_dir: _Word = ""
    """Folder in which tasks start and from which functions are imported, relative to the file; in containers an
    absolute path. Default: the folder of the file, or the nearest folder above it in its project (marked by `.git`,
    `pyproject.toml` or `setup.py`) that has the module or notebook of the step; in containers the working directory of
    the image."""
    mounts: _Mounts = ()
    """Folders in the containers: `/path/of/host:/path`, or `volume:/path`; `:ro` at the end makes one read-only."""
    data_dir: _Word = ""
    """Folder that the workers and the executor both see, for the files of tasks with a `catalog`. Default: a folder
    below `LAUNCH_HOME`, if worker and executor share a host."""
    data_volume: _Word = ""
    """The volume that the workers see as `data_dir`: a Kubernetes claim, an EFS file system, a Docker volume.
    Without it `data_dir` must have the same path on the hosts of the executor."""
    run_in_local: Flag = False
    """For `local-container`: True runs the step as local processes instead."""
    enable_parallel: Flag = True
    """False runs the tasks of a run one at a time."""
    parallelism: Count | None = None
    """Maximum number of tasks of a run at the same time."""
    patches: Named = field(default_factory=dict)
    """For `mocked`: step name to the `command` and `command_type` that runs instead; other tasks do nothing."""
    placeholders: Named = field(default_factory=dict)
    """Values for settings that a step leaves empty, by name. A placeholder without a value takes it from `placeholders`
    in the extra of the connection."""
    overrides: Named = field(default_factory=dict)
    """Named groups of settings, to which `overrides` of a step refer."""
    auto_remove_container: Flag = True
    """Accepted for files of magnus and ignored; the connection decides whether ended containers are removed."""


def setting_names() -> list[str]:
    """Return the names of the settings of every executor."""
    return [item.name for item in dataclasses.fields(ExecutorSettings)]


@dataclass(frozen=True)
class Placement:
    """The executor of one task, with resolved settings."""

    type: str
    backend: BackendInfo | None
    """None for `mocked` and for executors of plug-ins."""
    settings: ExecutorSettings
    options: Mapping[str, Any]
    """Options of the scheduler, for the `cfg` of the launch; for a plug-in all settings."""
    left_to_connection: tuple[str, ...] = ()
    """Placeholders whose values are in the connection; their settings are missing until the task runs."""

    @property
    def sees_files(self) -> bool:
        """True if a task can see a folder of the worker."""
        return self.backend is None or self.backend.shares_files or bool(self.settings.data_dir)

    @property
    def conn_id(self) -> str:
        """The connection id."""
        return self.settings.conn_id or (self.backend.default_conn_id if self.backend else "")


def task_limit(model: PipelineModel) -> int | None:
    """Return the maximum number of tasks of a run at the same time; None for Airflow's own limit."""
    if model.executor.config.get("enable_parallel", True) is False:
        return 1
    return model.executor.config.get("parallelism")


def patched(model: PipelineModel, step: TaskStep) -> TaskStep | None:
    """Return what a mocked pipeline runs instead of a step; None: nothing."""
    patches = mapping_of(model.executor.config.get("patches"))
    if step.name not in patches:
        return None
    patch = mapping_of(patches[step.name])
    command_type = patch.get("command_type", step.command_type)
    return dataclasses.replace(step, command=patch.get("command", step.command), command_type=command_type)


def placement(model: PipelineModel, step: TaskStep, connection: ConnectionPlaceholders | None = None) -> Placement:
    """Return the executor and the settings of a step.

    Args:
        model: the pipeline.
        step: a task of it.
        connection: placeholders of the connection; None while a file is parsed, which reads no connections.

    Raises:
        PipelineError: a setting is invalid, or a placeholder has no value.
    """
    problems: list[Problem] = []
    found = _placement(model, step, problems, connection)
    if problems or found is None:
        raise PipelineError(problems)
    return found


def executor_problems(model: PipelineModel, steps: list[TaskStep]) -> Iterator[Problem]:
    """Yield problems of executors and settings, of the pipeline and of each step."""
    problems: list[Problem] = []
    _check_type(model.executor, problems)
    if model.executor.type == MOCKED:
        names = {step.name for step in steps}
        problems.extend(
            Problem(f"'patches' names {name!r}, which is not a task; {closest(name, names)}", model.executor.place)
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
    if section.type in BACKENDS or section.type == MOCKED:
        return
    # Only for others: a search in all installed packages takes as long as the rest of a task's start.
    known = [*BACKENDS, MOCKED, *find(PLUGINS_GROUP)]
    if section.type in known:
        return
    cure = f"use {_GONE[section.type]!r}" if section.type in _GONE else closest(section.type, known)
    problems.append(Problem(f"{section.type!r} is not a valid executor; {cure}", section.place))


def _placement(
    model: PipelineModel,
    step: TaskStep,
    problems: list[Problem],
    connection: ConnectionPlaceholders | None = None,
) -> Placement | None:
    section = step.executor or model.executor
    patched = model.executor.type == MOCKED
    if patched:
        # A mocked pipeline runs only its patches, whatever executor their steps have.
        section = model.executor
    kind = section.type
    left: list[str] = []
    merged = resolve(model, step, kind, problems, connection=connection, left=left)
    if merged.pop("run_in_local", False) and kind in _ON_THIS_HOST:
        kind = LOCAL
        merged.pop("image", None)
    if patched:
        kind = LOCAL
    backend = BACKENDS.get(kind)
    # An error in the settings of the pipeline is reported once, at the pipeline.
    own = step.executor is not None or kind in step.overrides
    place = step.place if own or not section.place.line else section.place
    settings, options = _split(merged, place, problems)
    if settings is None:
        return None
    if backend is None:
        problems.extend(Problem(text, step.place) for text in _plugin_problems(kind, step, left))
        return Placement(kind, None, settings, merged)
    # Settings from the connection's placeholders are checked when the task runs.
    is_known = connection is not None or not left
    if patched:
        # Files of runnable may give any settings to this executor.
        options = {}
    if is_known and backend.in_containers and not settings.image and step.command_type != "app":
        problems.append(Problem(f"executor {kind!r} needs an 'image' in its config", place))
    if settings.mounts and not backend.in_containers:
        problems.append(
            Problem(f"has 'mounts', but executor {kind!r} has no mounts: its tasks see the host's files", place)
        )
    if (step.catalog or object_names(step)) and is_known:
        problems.extend(Problem(text, step.place) for text in _data_problems(kind, backend, settings))
    _check_options(kind, backend, options, place, problems)
    return Placement(kind, backend, settings, options, tuple(left))


def _plugin_problems(kind: str, step: TaskStep, left: list[str]) -> Iterator[str]:
    """Yield reasons why a plug-in executor cannot run the step."""
    if step.command_type == "app":
        yield f"executor {kind!r} of a plug-in runs only commands, not apps"
    if left:
        names = ", ".join(map(repr, left))
        yield f"leaves {names} to a connection, but executor {kind!r} of a plug-in has no connection; give it a value"


def _data_problems(kind: str, backend: BackendInfo, settings: ExecutorSettings) -> Iterator[str]:
    """Yield why the files of a step with a catalog would not reach its executor."""
    if not settings.data_dir and not backend.shares_files:
        cure = "set 'data_dir' to a folder that both see"
        if backend.in_containers:
            cure += ", and 'data_volume' to its volume"
        yield f"has a catalog or an object, but executor {kind!r} does not see the files of the workers; {cure}"
    if settings.data_volume and not backend.in_containers:
        yield f"has 'data_volume', but executor {kind!r} has no volumes; mount it on the hosts and remove this setting"
    elif settings.data_volume and not settings.data_dir:
        yield "has 'data_volume' without 'data_dir'; set 'data_dir' to its mount path on the workers"


# ---- checks ---------------------------------------------------------------------------------------------------


def _split(
    merged: dict[str, Any], place: Place, problems: list[Problem]
) -> tuple[ExecutorSettings | None, dict[str, Any]]:
    rules = rules_of(ExecutorSettings)
    options = {name: value for name, value in merged.items() if name not in rules and name != "cfg"}
    options.update(mapping_of(merged.get("cfg")))
    own = {name: value for name, value in merged.items() if name in rules}
    before = len(problems)
    for name, value in own.items():
        if name not in _NUMBERS or not isinstance(value, str) or "{{" not in value:
            own[name], reasons = rules[name].check(value)
            problems.extend(Problem(f"setting {name!r} {reason}", place) for reason, _ in reasons)
    return (None if len(problems) > before else ExecutorSettings(**own)), options


def rendered_settings(settings: ExecutorSettings, render: Callable[[Any], Any]) -> ExecutorSettings:
    """Return settings whose templates are rendered, except `env`.

    Raises:
        InvalidAppError: the template of a number does not give a valid one.
    """
    found = {name: render(getattr(settings, name)) for name in _TEMPLATES}
    for name, value in found.items():
        # In a native DAG an expression has any type.
        if isinstance(getattr(settings, name), str):
            found[name] = "" if value is None else str(value)
    for name in _NUMBERS:
        value = getattr(settings, name)
        if not isinstance(value, str):
            continue
        text = str(render(value)).strip()
        rule = rules_of(ExecutorSettings)[name]
        found[name], reasons = rule.check(int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else text)
        if reasons:
            raise InvalidAppError(
                f"setting {name!r} must be {rule.expected}; its template {value!r} gave {shown(text)}"
            )
    return dataclasses.replace(settings, **found)


def _check_options(
    kind: str, backend: BackendInfo, options: Mapping[str, Any], place: Place, problems: list[Problem]
) -> None:
    """Refuse options that the scheduler does not have."""
    schema = checked_options(backend.launch_options())
    known = [*setting_names(), *(name for name, _ in schema)]
    problems.extend(
        Problem(f"{name!r} is not a setting of executor {kind!r}; {closest(name, known)}", place)
        for name in options
        if schema.registered_name(name) is None
    )
