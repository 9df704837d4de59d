"""Objects between tasks: pickles in the catalog, written and read by tasks. The worker copies and never unpickles them.

A pickle can run code where it is read. So a task reads only the pickle of a task that declares it as `kind: object`,
from the place in the catalog where only that task can store files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_launch.pipelines.model import TaskStep

FOLDER = ".launch-objects"
"""In the folder of a task. Patterns of users do not match its files."""
KEY = "$object"
_SUFFIX = ".pickle"


@dataclass(frozen=True)
class Objects:
    """The objects that a task may read."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Parameters by name; objects are `{"$object": file}`, or a list of these after a map."""
    names: Sequence[str] = ()
    """The parameters that are objects."""
    files: Sequence[str] = ()
    """Their files in the catalog."""


def object_names(step: TaskStep) -> list[str]:
    """Return the names of the objects that a task returns."""
    return [item.name for item in step.returns or () if item.kind == "object"]


def notebook_copy(step: TaskStep) -> str:
    """Return the file in the task's folder that holds a notebook with its outputs; empty for other commands."""
    if step.command_type != "notebook":
        return ""
    return step.notebook_output_path or f"{PurePosixPath(step.command).stem}_out.ipynb"


def file_of(task_id: str, name: str) -> str:
    """Return the file of an object in the folder of its task."""
    return f"{FOLDER}/{task_id}/{name}{_SUFFIX}"


def reference(task_id: str, name: str, scope: str) -> dict[str, str]:
    """Return the value that stands for an object in parameters.

    Args:
        task_id: the task that returned it.
        name: the name of the object.
        scope: folder of the element of the innermost map; empty outside of maps.
    """
    path = file_of(task_id, name)
    return {KEY: f"{scope}/{path}" if scope else path}


def is_reference(value: object) -> bool:
    """Return whether a parameter stands for objects."""
    if isinstance(value, list):
        return any(map(is_reference, value))
    return isinstance(value, Mapping) and set(value) == {KEY}


def readable(values: Mapping[str, Any], tasks: Mapping[str, Any], scopes: Iterable[str]) -> Objects:
    """Return the objects among the parameters of a task.

    Args:
        values: the parameters by name.
        tasks: the tasks of the DAG by id.
        scopes: folders of the enclosing maps of the task, outermost first.
    """
    names: list[str] = []
    files: list[str] = []
    found = dict(values)
    for name, value in values.items():
        own: list[str] = []
        if is_reference(value) and _collect(value, tasks, own):
            shown = {path: _inside(path, scopes) for path in own}
            found[name] = _replaced(value, shown)
            names.append(name)
            files += shown.values()
    return Objects(found, names, list(dict.fromkeys(files)))


def _collect(value: Any, tasks: Mapping[str, Any], files: list[str]) -> bool:
    """Collect the files of a value; return False unless each one is the object of a task that declares it."""
    if value is None:
        return True
    if isinstance(value, list):
        return all(_collect(item, tasks, files) for item in value)
    path = value.get(KEY) if isinstance(value, Mapping) and set(value) == {KEY} else None
    parts = path.split("/") if isinstance(path, str) else []
    if parts[-3:-2] != [FOLDER] or ".." in parts:
        return False
    task_id, file = parts[-2:]
    files.append("/".join(parts))
    step = getattr(tasks.get(task_id), "step", None)
    return step is not None and file in {f"{name}{_SUFFIX}" for name in object_names(step)}


def _replaced(value: Any, shown: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_replaced(item, shown) for item in value]
    return None if value is None else {KEY: shown[value[KEY]]}


def _inside(path: str, scopes: Iterable[str]) -> str:
    """Return the name of a file as a task in these scopes sees it."""
    own = [scope for scope in scopes if scope and path.startswith(f"{scope}/")]
    return path.removeprefix(f"{own[-1]}/") if own else path
