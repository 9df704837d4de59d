"""Builds the app of a pipeline task. Pure: the same inputs give the same app."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shlex
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_launch.pipelines.executors import LOCAL, ExecutorSettings, Placement
from airflow_provider_launch.pipelines.model import MapStep, PipelineModel, TaskStep, steps_of
from airflow_provider_launch.pipelines.objects import file_of, is_reference, notebook_copy, object_names
from airflow_provider_launch.pipelines.parameters import add_to_path, as_text, is_name
from airflow_provider_launch.pipelines.program import hints_of
from airflow_provider_launch.pipelines.shell import shell_arguments
from airflow_provider_launch.schedulers.environment import FIELD_PATH
from airflow_provider_launch.specs import AppDef, Resource, Role, macros
from airflow_provider_launch.specs.app_dict import app_from_dict
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.roles import BindMount, Mount, VolumeMount, parse_mount
from airflow_provider_launch.util.types import decode, decode_optional

ROLE = "task"
DATA_DIR = "/launch/data"
"""Path in the container of the files of a task with a catalog."""
LARGEST_VARIABLE = 64 * 1024
"""Bytes of one variable; Linux starts no program with one of more than 128 KB."""
# Names that shells, loaders and this package act on, which the author of a file rarely intends. The list is not a
# security boundary, because programs act on many more names: only declared names become variables at all.
_TAKEN = (
    "PATH", "HOME", "USER", "SHELL", "LANG", "TZ", "TMPDIR", "IFS", "PWD", "ENV", "CDPATH", "PS4", "SHELLOPTS",
    "BASHOPTS", "GCONV_PATH", "GLIBC_TUNABLES",
)  # fmt: skip
_TAKEN_PREFIXES = ("LD_", "DYLD_", "LC_", "BASH_", "PYTHON", "AIRFLOW", "LAUNCH_", "TORCHX_", "MAGNUS_", "RUNNABLE_")


@dataclass(frozen=True)
class Inputs:
    """Values of a task that exist only when it runs."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters by name, including those of the enclosing maps."""
    map_variables: Mapping[str, Any] = field(default_factory=dict)
    """The element of each enclosing map, by `iterate_as`."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Environment variables with their values."""
    run: Mapping[str, str] = field(default_factory=dict)
    """Variables that name the run: `LAUNCH_RUN_ID` and so on."""
    data_dir: Path | None = None
    """The folder of a task with a catalog or objects, as the worker sees it."""
    check_arguments: Callable[[Callable[..., Any], Mapping[str, Any]], object] = lambda _component, _given: None
    """Refuses arguments of a component that let the worker read what an earlier step names."""
    objects: tuple[str, ...] = ()
    """The parameters that are objects, whose files are in the folder."""
    references: Mapping[str, str] = field(default_factory=dict)
    """The parameters that arguments of the step name, by argument: those of `references_of`."""


def references_of(step: TaskStep) -> dict[str, str]:
    """Return the parameters that arguments of a step name as `$name`, by argument.

    Args:
        step: as in the file, because the value of a template is data, also if it looks like `$name`.
    """
    texts = {name: value for name, value in step.args.items() if isinstance(value, str)}
    return {name: text[1:] for name, text in texts.items() if text.startswith("$") and is_name(text[1:])}


def build_app(model: PipelineModel, step: TaskStep, place: Placement, inputs: Inputs) -> tuple[AppDef, dict[str, Any]]:
    """Return the app of a task, and the options of its launch.

    Raises:
        InvalidAppError: a component or an app is invalid.
    """
    settings = place.settings
    if step.args and step.command_type != "app":
        own = _arguments(step, inputs)
        # An argument replaces the parameter of its name, also one whose object was allowed.
        objects = [name for name in inputs.objects if name not in own]
        objects += [name for name, source in inputs.references.items() if source in inputs.objects]
        inputs = replace(inputs, parameters={**inputs.parameters, **own}, objects=tuple(objects))
    environment = _environment(model, step, place, inputs)
    if step.command_type == "app":
        return _given_app(model, step, settings, environment, inputs), dict(place.options)
    program, args = _program(step, place, inputs)
    in_containers = place.backend is not None and place.backend.in_containers
    cfg = dict(place.options)
    mounts: list[Mount] = [parse_mount(text) for text in settings.mounts]
    image = settings.image if in_containers else str(code_folder(model, settings, step))
    data_dir = _folder_in_app(place, inputs)
    if inputs.data_dir is not None and in_containers:
        is_volume = bool(settings.data_volume)
        mounts.append(
            VolumeMount(settings.data_volume, DATA_DIR) if is_volume else BindMount(str(inputs.data_dir), DATA_DIR)
        )
    if step.catalog and data_dir:
        if in_containers:
            cfg["working_dir"] = data_dir
        else:
            image = data_dir
    elif in_containers and settings.code_dir:
        cfg.setdefault("working_dir", settings.code_dir)
    role = Role(
        name=ROLE,
        image=image,
        entrypoint=program,
        # `${app_id}` in a command belongs to the command: it is not a macro.
        args=[macros.escape(text) for text in args],
        env={name: macros.escape(text) for name, text in environment.items()},
        num_replicas=settings.replicas,
        mounts=mounts,
    )
    if (settings.cpu, settings.gpu, settings.memory_mb) != (None, None, None):
        role.resource = Resource(
            cpu=settings.cpu if settings.cpu is not None else 1,
            gpu=settings.gpu or 0,
            memMB=settings.memory_mb if settings.memory_mb is not None else 512,
        )
    return AppDef(_app_name(step), [role]), cfg


def prefixed_only(model: PipelineModel, step: TaskStep, parameters: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the parameters that a shell command sees only as `LAUNCH_PARAM_x`: undeclared ones and reserved ones.

    A name is declared by the parameters of the pipeline, a `returns`, an `iterate_as` or `args` of the step. Other
    names were chosen by the program of a step, which must not set the environment of later programs.
    """
    declared = _declared(model, step)
    names = [name for name in parameters if is_name(name)]
    undeclared = [name for name in names if name not in declared]
    taken = [name for name in names if name in declared and _is_taken(name)]
    return undeclared, taken


def _is_taken(name: str) -> bool:
    return name in _TAKEN or name.startswith(_TAKEN_PREFIXES)


def _declared(model: PipelineModel, task: TaskStep) -> set[str]:
    """Return the parameter names that the file declares for a task."""
    declared = {*model.parameters, *task.args}
    for step, _, _ in steps_of(model.graph):
        if isinstance(step, TaskStep):
            declared.update(item.name for item in step.returns or ())
        elif isinstance(step, MapStep):
            declared.add(step.iterate_as)
    return declared


def code_folder(model: PipelineModel, settings: ExecutorSettings, step: TaskStep) -> Path:
    """Return the folder on the worker in which a task starts and from which functions are imported.

    By default that of the file, or that of the included file that has the step, or the nearest folder above it that
    has the module or the notebook of the step, up to the root of the project: there paths of magnus and runnable start.
    """
    if settings.code_dir:
        return (model.folder / settings.code_dir).resolve()
    if step.command_type not in {"python", "notebook"}:
        return model.folder
    if own := next((folder for folder in model.folders_of(step) if _has_code(folder, step)), None):
        return own
    around = [model.folder, *model.folder.parents]
    root = next((folder for folder in around if any((folder / mark).exists() for mark in _ROOT_MARKS)), None)
    inside = around[1 : around.index(root) + 1] if root is not None else []
    return next((folder for folder in inside if _is_ours(folder) and _has_code(folder, step)), model.folder)


# Only a local process is sure to have Python, which is started only for a large result.
_PACK = '[ "$(wc -c <"$LAUNCH_RESULT_PATH")" -le 2048 ] || {}'
_ROOT_MARKS = (".git", "pyproject.toml", "setup.py")


def _has_code(folder: Path, step: TaskStep) -> bool:
    if step.command_type == "notebook":
        return (folder / step.command).is_file()
    module = step.command.partition(".")[0]
    return (folder / f"{module}.py").is_file() or (folder / module).is_dir()


def _is_ours(folder: Path) -> bool:
    """Return whether no other user can put a module into a folder; `/tmp` may be above that of a file."""
    found = folder.stat()
    return found.st_uid in {0, os.geteuid()} and not found.st_mode & stat.S_IWOTH


def _app_name(step: TaskStep) -> str:
    text = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in step.name.lower())
    return "-".join(part for part in text.split("-") if part) or "task"


def _program(step: TaskStep, place: Placement, inputs: Inputs) -> tuple[str, list[str]]:
    settings = place.settings
    names = None if step.returns is None else [item.name for item in step.returns]
    if step.command_type == "shell":
        pack = _PACK.format(shlex.join([sys.executable, str(_program_path()), "pack"])) if place.type == LOCAL else ":"
        own = {*step.args, *settings.env}
        given = {name for name in inputs.parameters if name not in own or _is_taken(name)}
        script = shell_arguments(step.command, names, pack, {*given, *inputs.secrets})
        return settings.shell, [*shlex.split(settings.shell_options), *script]
    arguments = ["function", step.command]
    if step.command_type == "notebook":
        folder = _folder_in_app(place, inputs)
        copy = f"{folder}/{notebook_copy(step)}" if folder else step.notebook_output_path
        arguments = ["notebook", step.command, copy, step.output_cell_tag]
    arguments += names or []
    if place.type == LOCAL:
        return settings.python or sys.executable, [str(_program_path()), *arguments]
    # A cluster that shares files with the workers has Python at the same path.
    python = "python3" if place.backend is not None and place.backend.in_containers else sys.executable
    return settings.python or python, ["-c", _program_text(), *arguments]


def _program_path() -> Path:
    return Path(__file__).with_name("program.py")


@cache
def _program_text() -> str:
    """Return the program as one line, because AWS Batch limits a request, which holds it twice, to 24 KB."""
    _, text, code = _program_path().read_text(encoding="utf-8").split('"""', 2)
    # Without its docstring, but with the same line numbers.
    code = "\n" * text.count("\n") + code
    data = base64.b64encode(zlib.compress(code.encode(), 9)).decode()
    return f"import base64, zlib; exec(compile(zlib.decompress(base64.b64decode('{data}')), 'program.py', 'exec'))"


def _environment(model: PipelineModel, step: TaskStep, place: Placement, inputs: Inputs) -> dict[str, str]:
    parameters = inputs.parameters
    found: dict[str, str] = {}
    texts = {name: as_text(value) for name, value in parameters.items() if is_name(name) and not is_reference(value)}
    # The others are only in LAUNCH_PARAMETERS. A text of a program must not become a field of a pod.
    small = {
        name: text
        for name, text in texts.items()
        if len(text.encode()) <= LARGEST_VARIABLE and not text.startswith(FIELD_PATH)
    }
    # An app of the user gets only the document, because the size of its variables may be limited.
    for name, text in small.items() if step.command_type != "app" else ():
        found[f"LAUNCH_PARAM_{name}"] = found[f"MAGNUS_PRM_{name}"] = found[f"RUNNABLE_PRM_{name}"] = text
    if step.command_type == "shell":
        undeclared, taken = prefixed_only(model, step, parameters)
        hidden = {*undeclared, *taken}
        found |= {name: text for name, text in small.items() if name not in hidden}
    document = json.dumps(parameters, ensure_ascii=False).replace(FIELD_PATH, f"\\u005b{FIELD_PATH[1:]}")
    found |= _in_parts("LAUNCH_PARAMETERS", document)
    if step.command_type == "notebook":
        found["LAUNCH_DECLARED"] = json.dumps(sorted(_declared(model, step)))
    if inputs.data_dir is not None and step.catalog:
        found["LAUNCH_IN_DATA_DIR"] = "1"
    if inputs.data_dir is not None and (inputs.objects or object_names(step)):
        made = {name: file_of(inputs.run.get("LAUNCH_TASK_ID", step.name), name) for name in object_names(step)}
        folder = _folder_in_app(place, inputs)
        found["LAUNCH_OBJECTS"] = json.dumps({"folder": folder, "get": inputs.objects, "put": made})
    if inputs.map_variables:
        found["MAGNUS_MAP_VARIABLE"] = found["RUNNABLE_MAP_VARIABLE"] = json.dumps(dict(inputs.map_variables))
    found |= inputs.run
    found["LAUNCH_STEP"] = step.name
    if place.backend is None or not place.backend.in_containers:
        found["LAUNCH_CODE_DIR"] = str(code_folder(model, place.settings, step))
    elif place.settings.code_dir:
        found["LAUNCH_CODE_DIR"] = place.settings.code_dir
    # The file overrides our variables, and secrets override the file.
    return {**found, **place.settings.env, **inputs.secrets}


def _folder_in_app(place: Placement, inputs: Inputs) -> str:
    """Return the path of the task's folder as its program sees it; empty if it has none."""
    folder = inputs.data_dir
    if folder is None or place.backend is None or not place.backend.in_containers:
        return str(folder or "")
    return f"{DATA_DIR}/{folder.parent.name}/{folder.name}" if place.settings.data_volume else DATA_DIR


def _in_parts(name: str, text: str) -> dict[str, str]:
    """Return a text as one variable, or as `name_0`, `name_1` and so on if it is too large for one."""
    # A character has at most four bytes.
    size = LARGEST_VARIABLE // 4
    if len(text.encode()) <= LARGEST_VARIABLE:
        return {name: text}
    return {f"{name}_{at // size}": text[at : at + size] for at in range(0, len(text), size)}


# ---- apps of the user -----------------------------------------------------------------------------------------


def _given_app(
    model: PipelineModel, step: TaskStep, settings: ExecutorSettings, environment: Mapping[str, str], inputs: Inputs
) -> AppDef:
    if step.app is not None:
        app = app_from_dict(step.app)
    else:
        app = _from_component(step, inputs, code_folder(model, settings, step))
    for role in app.roles:
        # `$` is plain text in our variables; in those of the app it may start a macro.
        own = {name: macros.escape(text) for name, text in environment.items() if name != "LAUNCH_CODE_DIR"}
        role.env = {**own, **role.env}
    return app


def _from_component(step: TaskStep, inputs: Inputs, folder: Path) -> AppDef:
    function = _component(step.component, folder)
    hints = hints_of(function)
    arguments = {name: _converted(value, hints.get(name)) for name, value in _arguments(step, inputs).items()}
    inputs.check_arguments(function, arguments)
    try:
        app = function(**arguments)
    except TypeError as error:
        raise InvalidAppError(f"component {step.component!r} cannot be called: {error}") from error
    if not isinstance(app, AppDef):
        raise InvalidAppError(f"component {step.component!r} returned {type(app).__name__}; it must return an AppDef")
    return app


def _arguments(step: TaskStep, inputs: Inputs) -> dict[str, Any]:
    """Return the arguments of a step, with the values of the parameters that they name."""
    found = dict(step.args)
    for name, source in inputs.references.items():
        if source not in inputs.parameters:
            known = ", ".join(sorted(inputs.parameters)) or "none"
            raise InvalidAppError(f"argument '${source}' does not name a parameter; there are {known}")
        found[name] = inputs.parameters[source]
    return found


def _converted(value: Any, hint: Any) -> Any:
    """Return the number that a text, such as that of a template, stands for if the parameter takes one."""
    kind = decode_optional(hint)
    if isinstance(value, str) and kind in (int, float, bool):
        with contextlib.suppress(ValueError):  # left to the component
            return decode(value, kind)
    return value


def _component(name: str, folder: Path) -> Any:
    from airflow_provider_launch.specs.finder import get_component

    add_to_path(folder)
    return get_component(name).fn
