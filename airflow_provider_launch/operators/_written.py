"""The part of a task that its authors wrote, noted before the task sees the first value of a run."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._task.mapped import arguments_of_airflow
from airflow_provider_launch.operators._authors import classes_of_authors, functions_of_map
from airflow_provider_launch.operators._masks import register_elements
from airflow_provider_launch.operators._sources import folders_of, is_mark, parts_of_arguments, strings_in

if TYPE_CHECKING:
    from airflow_provider_launch.operators._code import Code
    from airflow_provider_launch.operators.launch import LaunchAppOperator

_FIELDS = ("app", "workspace", "component", "component_args", "cfg", "op_args", "op_kwargs", "python_callable")
_FUNCTIONS = ("app", "python_callable")
_BY_NAME = ("component_args", "op_kwargs")
_ARGUMENTS = ("component_args", "op_args", "op_kwargs")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
"""A string in JSON."""


@dataclass
class Written:
    """Texts and functions of the authors of one task."""

    texts: set[str] = field(default_factory=set)
    """The strings in the fields of the task."""
    folders: set[str] = field(default_factory=set)
    """The directories of its workspaces, and marks such as `.` among its arguments."""
    emptied: set[str] = field(default_factory=set)
    """The options that it sets to nothing."""
    secrets: list[str] = field(default_factory=list)
    """The values of the file that are masked, then those with names in the file."""
    code: Code | None = None
    """The texts that a function could name which builds the app."""
    components: set[str] = field(default_factory=set)
    """The components of the task, and of each element if it is mapped."""
    args: list[Any] = field(default_factory=list)
    """Their arguments, if the file has all of them."""
    is_built: bool = False
    """Whether the constructor of an author's operator makes the fields of a mapped task."""
    pieces: set[str] = field(default_factory=set)
    """The texts of which it makes the name of a component."""
    is_app_made: bool = False
    """Whether the constructor, or a function of `.map()`, makes the app of a mapped task."""

    def has_component(self, name: object) -> bool:
        """Return whether a component is in the file, or code made its name of an argument: `f"own.{kind}:train"`."""
        if name in self.components or self.code is None or not isinstance(name, str):
            return name in self.components
        code = {"", *self.code.texts}
        parts = (name.partition(text) for text in self.texts if text and text in name)
        return name in code or any(before in code and after in code for before, _, after in parts)


def written_in(task: LaunchAppOperator) -> Written:
    """Return the authors' part of a task that is not rendered yet; only for one that is not mapped."""
    return _written(task, [{name: getattr(task, name, None) for name in _FIELDS}])


def written_in_mapped(task: LaunchAppOperator) -> Written:
    """Return the same for a task that Airflow made from a mapped one; nothing if that was not mapped by our code."""
    dag = task.get_dag()
    mapped = dag.task_dict.get(task.task_id) if dag else None
    given = getattr(mapped, "op_kwargs_expand_input", None) or getattr(mapped, "expand_input", None)
    found = getattr(given, "written", None) or Written()
    of_run = getattr(given, "of_run", None)
    if isinstance(task.component, str) and (of_run == [] or _may_make(found, task.component)):
        found.components.add(task.component)
    return found


def _may_make(written: Written, name: str) -> bool:
    """Return whether the constructor of an author could make the name of a component without a value of a run."""
    from airflow_provider_launch.operators._names import consists_of

    return written.is_built and consists_of(name, written.pieces)


def written_for_operator(task: Any, mapped: Any) -> Written:
    """Return the authors' part of a mapped task: its partial arguments, and the values of its input in the file."""
    return _written_in_partial(task, mapped, functions_of_map(mapped), of_function=False)


def written_for_function(task: Any, mapped: Any) -> Written:
    """Return the same for a function, whose arguments are mapped."""
    return _written_in_partial(task, mapped, [], of_function=True)


def _written_in_partial(task: Any, mapped: Any, functions: Sequence[Any], *, of_function: bool) -> Written:
    groups = [each for each in (task.dag, task.task_group) if each is not None]
    base = {name: value for each in groups for name, value in (each.default_args or {}).items()} | task.partial_kwargs
    base = {name: value for name, value in base.items() if name not in arguments_of_airflow()}
    base["python_callable"] = getattr(task, "python_callable", None)
    rows: list[Mapping[str, Any]]
    if isinstance(mapped, Mapping):
        rows = [{name: each} for name, values in mapped.items() for each in _elements(values)]
    else:
        rows = [each for each in mapped if isinstance(each, Mapping)] if isinstance(mapped, (list, tuple)) else []
    return _written(task, [base, *([{"op_kwargs": row} for row in rows] if of_function else rows)], functions)


def _elements(values: object) -> list[Any]:
    """Return the elements of an argument of `.expand()`; none if a run has them."""
    if isinstance(values, Mapping):
        return [*values.items()]
    return [*values] if isinstance(values, (list, tuple)) else []


def _written(task: Any, elements: Sequence[Mapping[str, Any]], makers: Sequence[Any] = ()) -> Written:
    """Return the part of authors in sets of arguments; `makers` are functions that make an app of values of a run."""
    found = Written()
    found.secrets += register_elements(elements)
    for element in elements:
        for name, value in element.items():
            # The name of an argument is not a path.
            is_by_name = name in _BY_NAME and isinstance(value, Mapping)
            texts = {*strings_in([*value.values()] if is_by_name else value)}
            found.texts.update(_strings_in_json(texts) if name == "cfg" else ())
            texts.update([*parts_of_arguments(texts)] if name == "component_args" else ())
            found.texts.update(texts)
            found.folders.update(marks_in(texts) if name in _ARGUMENTS else ())
        found.folders.update(folders_of(element.get("workspace"), element.get("app")))
        found.emptied.update(emptied_in(element.get("cfg")))
    for group in task.iter_mapped_task_groups():
        given = group._expand_input.value  # noqa: SLF001 - Airflow has no other way
        texts = {*strings_in([*given.values()] if isinstance(given, Mapping) else given)}
        found.texts.update(texts, _strings_in_json(texts))
        found.folders.update(marks_in(texts))
    found.texts |= found.folders
    found.components = {each["component"] for each in elements if isinstance(each.get("component"), str)}
    found.args = [each.get("component_args") for each in elements if _is_plain(each.get("component_args"))]
    kind = getattr(task, "operator_class", type(task))
    functions: list[Any] = [*makers]
    if getattr(kind, "_builds_app", False):
        functions += [each[name] for each in elements for name in _FUNCTIONS if callable(each.get(name))]
    classes = classes_of_authors(kind) if kind is not type(task) else []
    functions += classes
    found.is_built, found.is_app_made = bool(classes), bool(classes or makers)
    # A component with written arguments is free, unless the task is mapped and may have others.
    is_free = kind is type(task) and len(found.args) == len(elements) and not any(map(_has_template, found.args))
    if functions or (found.components and not is_free):
        functions += _components_of(task, found.components)
        found.code = _code_of(functions, task, {*found.texts, *_defaults_of(found.components)})
    if classes and found.code is not None:
        from airflow_provider_launch.operators._names import pieces_of

        values = [task.task_id, *(value for element in elements for value in element.values())]
        found.pieces = pieces_of(classes, values, found.code.is_of_author)
    return found


def _strings_in_json(texts: Iterable[str]) -> Iterator[str]:
    """Yield the strings in texts that are JSON, such as the option `by_role`, also around a template."""
    for text in texts:
        if text.lstrip()[:1] in {"{", "["}:
            for found in _STRING.findall(text):
                with contextlib.suppress(ValueError):
                    yield from strings_in(json.loads(found))


def marks_in(texts: Iterable[str]) -> Iterator[str]:
    """Yield the marks that may stand for a folder."""
    return (text for text in texts if text and is_mark(text))


def emptied_in(cfg: object) -> Iterator[str]:
    """Yield the options that are set to nothing."""
    options = cfg.items() if isinstance(cfg, Mapping) else ()
    return (str(name) for name, value in options if value is None or value == "")


def _has_template(value: object) -> bool:
    return any("{" in text for text in strings_in(value))


def _defaults_of(components: Iterable[str]) -> Iterator[str]:
    from airflow_provider_launch.hooks.connections import deployment

    for name in components:
        yield from strings_in(deployment().component_defaults(name))


def _components_of(task: Any, names: Iterable[str]) -> list[Any]:
    # Imported here, as below, because most tasks have no component.
    from airflow_provider_launch.operators._component import function_of, is_hydra

    found = []
    for name in names:
        with contextlib.suppress(Exception):  # the task reports it when it builds the app
            function = function_of(task, name)
            found += [] if is_hydra(function) else [function]
    return found


def _code_of(functions: Sequence[Any], task: Any, texts: Iterable[str]) -> Code:
    from airflow_provider_launch.operators._code import Code

    dag = task.get_dag()
    return Code(functions, dag.fileloc if dag and dag.fileloc else "", texts)


def _is_plain(value: object) -> bool:
    """Return whether the value consists of texts, numbers, lists and dicts only."""
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or type(value) in {str, int, float, bool}
