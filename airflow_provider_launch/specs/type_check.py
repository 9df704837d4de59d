"""Check that every field of an app has its declared type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.specs.roles import AppDef, BindMount, DeviceMount, RetryPolicy, Role, VolumeMount

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Problem = tuple[tuple[Any, ...], str]
"""The path to a value, and the problem with its fix."""

_MAX_SHOWN = 60
MOST_PROBLEMS = 20
"""Maximum problems that an error lists; a program can write a record of an app that has any number of them."""
_MOUNTS = {cls.__name__: cls for cls in (BindMount, VolumeMount, DeviceMount)}
_MOST_CHARS = 200
"""Maximum letters of one key in a path."""
SECRET_FIELDS = {("args",), ("env",)}
"""Fields of a role whose values are not shown."""
_EXPECTED = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be True or False",
    "list_type": "must be a list",
    "dict_type": "must be a dict",
}


def type_problems(app: AppDef) -> list[Problem]:
    """Return the first values of a wrong type, one more than are shown; the app is neither copied nor changed."""
    # Most apps are plain: pydantic would read the model for longer than a small task takes to launch one.
    if type(app) is AppDef and _is_plain(app):
        return []
    from pydantic import ValidationError

    try:
        # The validated copy is discarded: subclasses of Role must keep their class.
        _adapter().validate_python([app])
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=True)
        own = (entry for entry in found if not _is_of_other_mount(app, entry["loc"][1:]))
        return [_problem(entry) for entry in islice(own, MOST_PROBLEMS + 1)]
    return []


def raise_problems(app_name: object, problems: Sequence[Problem]) -> None:
    """Raise one error that lists the first problems, each on a line that starts with its path, if there are any."""
    if problems:
        lines = "".join(f"\n  {path_text(path)}: {text}" for path, text in problems[:MOST_PROBLEMS])
        if len(problems) > MOST_PROBLEMS:
            lines += "\n  and more"
        msg = f"app {shown(app_name)} is not valid:{lines}"
        raise InvalidAppError(msg)


def path_text(path: Sequence[Any]) -> str:
    """Return the path as users write it, such as `roles.0.args.1`."""
    names = (part if len(part) <= _MOST_CHARS else f"{part[:_MOST_CHARS]}..." for part in map(str, path))
    parts = (part if part.isprintable() else repr(part) for part in names)
    return ".".join(parts) or "app"


def shown(value: object) -> str:
    """Return a short form of a value for an error message."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _is_plain(item: Any) -> bool:
    """Return whether every field is sure to have its type; False if only pydantic knows."""
    # A loop, because each parse of each DAG file checks all its apps.
    for name, default, is_valid in _fields_of(type(item)):  # type: ignore[arg-type]
        value = getattr(item, name, ...)
        if value is not default and not is_valid(value):
            return False
    return True


@cache
def _fields_of(cls: type) -> list[tuple[str, Any, Callable[[Any], bool]]]:
    return [(field.name, field.default, _PLAIN.get(str(field.type), _is_none)) for field in fields(cls)]


def _is_none(value: object) -> bool:
    return value is None


def _is_text(value: object) -> bool:
    # Text with a surrogate is not valid.
    return type(value) is str and value.isascii()


def _is_whole(value: object) -> bool:
    return type(value) is int


def _mapping(is_item: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: type(value) is dict and all(map(_is_text, value)) and all(map(is_item, value.values()))


_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "str | None": lambda value: value is None or _is_text(value),
    "int": _is_whole,
    "int | None": lambda value: value is None or _is_whole(value),
    "float": lambda value: type(value) in (int, float),
    "bool": lambda value: type(value) is bool,
    "list[str]": lambda value: type(value) is list and all(map(_is_text, value)),
    "dict[str, str]": _mapping(_is_text),
    "dict[str, int]": _mapping(_is_whole),
    "dict[str, Any]": _mapping(lambda _: True),
    "dict[str, object]": _mapping(lambda _: True),
    "list[Mount]": lambda value: type(value) is list and not value,
    "RetryPolicy": lambda value: type(value) is RetryPolicy,
    "Resource": lambda value: type(value) is Resource and _is_plain(value),
    "list[Role]": lambda value: type(value) is list and all(type(role) is Role and _is_plain(role) for role in value),
}
"""Annotation of a field to a check that is never True for a value that pydantic refuses; others must be None."""


@cache
def _adapter() -> TypeAdapter[list[AppDef]]:
    from pydantic import ConfigDict, TypeAdapter

    # A list around the app, because pydantic takes no config for a dataclass itself.
    # Without "always" pydantic trusts every instance, because the dataclass was already built.
    return TypeAdapter(list[AppDef], config=ConfigDict(strict=True, revalidate_instances="always"))


def _problem(entry: Mapping[str, Any]) -> Problem:
    path, kind, value = tuple(entry["loc"][1:]), entry["type"], entry["input"]
    path = tuple(part for at, part in enumerate(path) if not (at and path[at - 2] == "mounts" and part in _MOUNTS))
    if kind == "missing":
        return path, "is not set on this object"
    if kind == "dataclass_exact_type":
        name = entry["ctx"]["class_name"]
        expected = f"must be {'an' if name[0] in 'AEIOU' else 'a'} {name}"
        if len(path) > 1 and path[-2] == "mounts":
            expected = f"must be one of {', '.join(_MOUNTS)}"
    elif kind == "is_instance_of":
        expected = f"must be a member of {entry['ctx']['class']}"
    else:
        expected = _EXPECTED.get(kind, str(entry["msg"]))
    if path and path[-1] == "[key]":
        path, expected = path[:-1], f"the key {expected}"
        return path, f"{expected}, but {shown(value)} is of type {type(value).__name__}"
    return path, f"{expected}, but {_found(path, value)}{_cure(path, kind, value)}"


def _found(path: tuple[Any, ...], value: object) -> str:
    kind = type(value).__name__
    # These may be secrets, and error texts end up in logs.
    if path[2:3] in SECRET_FIELDS or isinstance(value, (dict, list, tuple)):
        return f"is of type {kind}"
    return f"{shown(value)} is of type {kind}"


def _cure(path: tuple[Any, ...], kind: str, value: object) -> str:
    cure = ""
    if kind == "string_type" and isinstance(value, (int, float)):
        cure = "; use str()" if path[2:3] in SECRET_FIELDS else f'; write "{value}"'
    elif path[-1:] in {("cpu",), ("cpu_request",)} and isinstance(value, str) and "{" not in value:
        cure = "; write CPUs as 2, 0.5 or '500m'"
    elif kind in ("int_type", "float_type") and isinstance(value, str):
        cure = (
            "; a number takes no text and no template: have a function make the app, or @task.launch, which gets the "
            "params"
        )
    elif kind in ("int_type", "float_type") and isinstance(value, bool):
        cure = f"; write {int(value)}"
    elif kind == "list_type" and isinstance(value, (tuple, str)):
        cure = "; write [...]"
    elif kind == "is_instance_of" and value in list(RetryPolicy):
        cure = f"; write RetryPolicy.{value}"
    elif kind == "dataclass_exact_type" and isinstance(value, dict):
        cure = "; app_from_dict reads dicts"
    return cure


def _is_of_other_mount(app: AppDef, path: tuple[Any, ...]) -> bool:
    """Return whether the error is about one of the other classes that the mount could have."""
    if "mounts" not in path or len(path) <= path.index("mounts") + 2:
        return False
    at = path.index("mounts")
    role = app.roles[path[1]]
    tried = path[at + 2]
    mount = role.mounts[path[at + 1]] if isinstance(role, Role) else None
    actual = [name for name, cls in _MOUNTS.items() if isinstance(mount, cls)]
    return tried not in (actual or list(_MOUNTS)[:1])
