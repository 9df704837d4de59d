"""The app of a task that names a component: checked when the DAG is parsed, built when the task runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.hooks.connections import deployment
from airflow_provider_launch.operators._data import settled_app
from airflow_provider_launch.operators._sources import Sources, folders_of, parts_of_arguments, strings_in
from airflow_provider_launch.settings import IMAGE
from airflow_provider_launch.specs.builders import build_app
from airflow_provider_launch.specs.check import check_app
from airflow_provider_launch.specs.component_args import bound_args, gives_text
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.finder import get_component
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.util.paths import expanded

if TYPE_CHECKING:
    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.specs.roles import AppDef

_BUILTIN = "airflow_provider_launch.components."
_TEMPLATE_MARKS = ("{{", "{%", "{#")
_LATER = "{{ later }}"
_CONFIG = ("config_dir", "config_name")
_UNSET = "\0"


def component_app(task: LaunchAppOperator, args: Any) -> AppDef:
    """Return the app that the component builds from the rendered arguments.

    In the arguments each `$` of data may be marked, as in `_data`.

    Raises:
        InvalidAppError: the component does not exist, its arguments are wrong, or its app is not valid.
    """
    function = function_of(task)
    _check_configs(task, function)
    _mask_defaults(task, function)
    app: AppDef = settled_app(build_app(function, _arguments(args), _defaults(task)))
    check_app(app)
    return app


def check_name(task: LaunchAppOperator) -> None:
    """Refuse a component that a run names, before it is imported; an operator of an author may name any in its code.

    Raises:
        InvalidAppError: as above.
    """
    written, name = task._written, task.component  # noqa: SLF001 - part of the operator
    if written is None or name is None or name in written.components:
        return
    if not written.has_component(name):
        raise InvalidAppError(
            f"component {name!r} is not written in the DAG file or in the class of the operator: it may come from a "
            f"run, and the worker would import it; write it there"
        )
    if written.code is not None:
        written.code.read(function_of(task, name))


def _mask_defaults(task: LaunchAppOperator, function: Callable[..., AppDef]) -> None:
    """Mask the arguments with names of secrets, also those that the task does not give."""
    from airflow_provider_launch._task.secrets import hidden_in_arguments, register

    if task._written is None:  # noqa: SLF001 - part of the operator
        return  # while the DAG is parsed
    with contextlib.suppress(InvalidAppError):  # the component itself reports it
        bound = bound_args(function, _arguments(task.component_args), _defaults(task))
        register(hidden_in_arguments({**bound.positional_args, **bound.kwargs}))


def _check_configs(task: LaunchAppOperator, function: Callable[..., AppDef]) -> None:
    written = task._written  # noqa: SLF001 - part of the operator
    if written is None or not is_hydra(function):
        return
    of_deployment = _defaults(task)
    arguments = _arguments(task.component_args)
    # A run may also restore a default over the author's argument.
    given = bound_args(function, arguments, dict.fromkeys(_CONFIG, _UNSET)).kwargs
    of_code = written.code.texts if written.is_built and written.code else set()
    texts = {*written.texts, *of_code, *parts_of_arguments(of_code)}
    check_configs(function, {name: value for name, value in given.items() if value != _UNSET}, texts, written.folders)
    if written.code is not None:
        config = written_config(function, arguments, of_deployment, written.texts)
        written.code.texts.update(strings_in(config))
        written.folders.update(folders_of(None, config))


def check_configs(
    function: Callable[..., AppDef], given: Mapping[str, Any], written: Collection[str], folders: Collection[str]
) -> None:
    """Refuse configs of Hydra that a run names, because the worker calls the functions in them.

    Args:
        function: a component.
        given: its arguments by name.
        written: the texts in the file of the DAG or pipeline.
        folders: marks such as `.` that the file has for a folder.

    Raises:
        InvalidAppError: directory or name is not written in the file.
    """
    for name in _CONFIG if is_hydra(function) else ():
        if name in given:
            text = str(given[name])
            # As the component opens it. A name in its default directory is in no allowed folder.
            location = str(expanded(str(given.get("config_dir", ""))).resolve())
            if name == "config_name":
                location = f"{location}/{text.removesuffix('.yaml')}.yaml" if "config_dir" in given else f"name:{text}"
            Sources(written, folders=folders).check(text, location, f"argument {name} of component 'utils.hydra'")


def written_config(
    function: Callable[..., AppDef],
    arguments: Mapping[str, Any] | list[Any],
    defaults: Mapping[str, str],
    literals: Collection[str],
) -> Any:
    """Return the app in the config of `utils.hydra`, as far as no data of a run changes it; None if it is not valid.

    Args:
        function: the component.
        arguments: its arguments.
        defaults: arguments in the configuration of the deployment.
        literals: the strings in the file of the DAG or pipeline, to know which overrides are written there.
    """
    from airflow_provider_launch.components._hydra import written_part

    # The component itself reports a config or override that cannot be used, or that Hydra is missing.
    with contextlib.suppress(Exception):
        given = bound_args(function, arguments, defaults)
        return written_part(**given.kwargs, overrides=given.var_args, written=literals)
    return None


def is_hydra(function: Callable[..., AppDef]) -> bool:
    """Return whether the component is `utils.hydra`, which calls functions that its config names."""
    return (function.__module__, function.__name__) == (f"{_BUILTIN}utils", "hydra")


def check_component(task: LaunchAppOperator) -> None:
    """Refuse what the task would refuse at run time; call the component only if no argument is a template.

    Raises:
        InvalidAppError: as in `component_app`.
    """
    function = function_of(task)
    if is_open(task.component_args):
        return
    arguments = _arguments(task.component_args)
    if not _has_open(arguments):
        component_app(task, task.component_args)
        return
    if isinstance(arguments, list):
        arguments = [
            argument if isinstance(argument, str) or not is_open(argument) else _LATER for argument in arguments
        ]
    bound_args(function, arguments, _defaults(task), is_open)


def refuse_missing_script(task: LaunchAppOperator, app: AppDef) -> None:
    """Refuse a relative script of a built-in component that is not where local processes start.

    Containers may have it in their image.

    Raises:
        InvalidAppError: names the directory, and the workspace that is missing.
    """
    function, role = function_of(task), app.roles[0]
    if task.workspace or role.workspace or not function.__module__.startswith(_BUILTIN):
        return
    script = bound_args(function, _arguments(task.component_args), _defaults(task)).kwargs.get("script") or ""
    image = "" if role.image in {NONE, IMAGE} else role.image
    directory = expanded(image).absolute()
    is_relative = "$" not in script and not Path(script).is_absolute()
    if script and is_relative and directory.is_dir() and not (directory / script).is_file():
        raise InvalidAppError(
            f"component {task.component!r}: there is no script {script!r} in {directory}, where the program starts on "
            f"this scheduler; add workspace='.' to the task for one next to the DAG file, or give an absolute path"
        )


def takes_text(task: LaunchAppOperator, name: str, value: object) -> bool:
    """Return whether templates in this argument are rendered to a string: "3.10" must not become 3.1."""
    return gives_text(function_of(task), name, value)


def is_open(value: object) -> bool:
    """Return whether the value gets its content at run time: a template, or the output of a task."""
    if isinstance(value, str):
        return any(mark in value for mark in _TEMPLATE_MARKS)
    return hasattr(value, "resolve") and not isinstance(value, Path)


def _has_open(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_has_open(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_open(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not is_open(value):
        return any(_has_open(getattr(value, field.name)) for field in dataclasses.fields(value))
    return is_open(value)


def _arguments(args: object) -> Mapping[str, Any] | list[Any]:
    given: object = {} if args is None else args
    if isinstance(given, Mapping):
        return given
    if isinstance(given, (list, tuple)):
        return [*given]
    hint = "; a template of a whole mapping needs render_template_as_native_obj=True in the DAG"
    raise InvalidAppError(
        f"component_args must be a mapping of arguments or a list of strings, not {type(given).__name__}"
        f"{hint if isinstance(given, str) else ''}"
    )


def _defaults(task: LaunchAppOperator) -> dict[str, str]:
    return deployment().component_defaults(str(task.component))


def function_of(task: LaunchAppOperator, component: object = None) -> Callable[..., AppDef]:
    """Return the component of a task, or one that the task may have if it is mapped.

    Raises:
        InvalidAppError: there is no such component.
    """
    if component is None:
        # Before the import, also while templates are rendered.
        check_name(task)
    name = task.component if component is None else component
    if not isinstance(name, str):
        raise InvalidAppError(f"component must be a name such as 'dist.ddp', not {type(name).__name__}")
    path, colon, function = name.rpartition(":")
    dag = task.get_dag()
    # Relative to the DAG file, like every relative path in it, and not to the directory where Airflow was started.
    if colon and path.endswith(".py") and dag is not None and dag.fileloc:
        module = Path(dag.fileloc).parent / expanded(path)
        if module.is_file():
            name = f"{module}:{function}"
    return get_component(name).fn
