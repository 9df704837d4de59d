"""Convert an app to plain JSON and back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import islice
from typing import Any, TypeVar, cast

from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.specs.roles import (
    AppDef,
    BindMount,
    DeviceMount,
    MountType,
    RetryPolicy,
    Role,
    VolumeMount,
)
from airflow_provider_launch.specs.type_check import (
    MOST_PROBLEMS,
    SECRET_FIELDS,
    Problem,
    raise_problems,
    shown,
    type_problems,
)
from airflow_provider_launch.specs.workspaces import Workspace
from airflow_provider_launch.util.openapi_models import plain as without_models

_T = TypeVar("_T")
_Path = tuple[Any, ...]
_KEY_CHARS = 60
MOST_ITEMS = 100_000
"""Maximum items of all lists and dicts of an app: a thousand roles have about thirty each. A program of the app may
have written its record, and each item takes time while other apps wait."""
_ENV_DEPTH = len(("roles", 0, "env"))
_MOUNTS: dict[str, type[Any]] = {
    MountType.BIND.value: BindMount,
    MountType.VOLUME.value: VolumeMount,
    MountType.DEVICE.value: DeviceMount,
}


def app_to_dict(app: AppDef) -> dict[str, Any]:
    """Return the app as plain JSON that shares nothing with it; `app_from_dict` reads it back.

    Fields that a subclass adds are included, so that equal dicts mean equal apps; `app_from_dict` does not read them.

    Raises:
        InvalidAppError: a value, mostly in metadata, cannot be written as JSON, or there are too many.
    """
    problems: list[Problem] = []
    plain = _to_plain(app, (), problems)
    raise_problems(app.name, problems)
    _refuse_many_items(app.name, plain)
    return cast("dict[str, Any]", plain)


def app_from_dict(data: Mapping[str, Any]) -> AppDef:
    """Return the app that plain JSON describes; it shares nothing with `data`.

    `"type": "bind"` gives the kind of a mount; without it the kind must follow from the other keys.
    The types of all values are checked; `check_app` decides whether the app makes sense.

    Raises:
        InvalidAppError: keys are unknown or missing, or values have the wrong type; the first of them are listed.
    """
    _refuse_many_items(_name(data), data)
    problems: list[Problem] = []
    app = _read(AppDef, data, (), problems)
    raise_problems(_name(data), problems)
    assert app is not None
    raise_problems(app.name, type_problems(app))
    return app


def _refuse_many_items(name: object, data: Any) -> None:
    """Refuse a document with too many items, before anything else takes time for each of them."""
    left, waiting = MOST_ITEMS, [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (Mapping, list, tuple)):
            left -= len(value)
            if left < 0:
                text = f"its lists and dicts have more than {MOST_ITEMS} items together; keep large data in files"
                raise_problems(name, [((), text)])
            waiting.extend(value.values() if isinstance(value, Mapping) else value)


def _name(data: Any) -> object:
    return data.get("name") if isinstance(data, Mapping) else data


def _to_plain(value: Any, path: _Path, problems: list[Problem]) -> Any:
    if isinstance(value, Enum):
        return _to_plain(value.value, path, problems)
    value = without_models(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if not (field.metadata.get("later") and getattr(value, field.name) == field.default)
        }
        kinds = [kind for kind, cls in _MOUNTS.items() if isinstance(value, cls)]
        plain = {name: _to_plain(item, (*path, name), problems) for name, item in fields.items()}
        return {"type": kinds[0], **plain} if kinds else plain
    if isinstance(value, Mapping):
        problems.extend(
            (_below(path, key), f"{'a key' if _is_secret(path) else f'the key {shown(key)}'} must be text, as in JSON")
            for key in value
            if not isinstance(key, str)
        )
        return {key: _to_plain(item, _below(path, key), problems) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item, (*path, at), problems) for at, item in enumerate(value)]
    return _leaf(value, path, problems)


def _leaf(value: object, path: _Path, problems: list[Problem]) -> object:
    if isinstance(value, str):
        # Subclasses of str become plain str, as in JSON.
        return str(value)
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    found = "the value" if _is_secret(path) else shown(value)
    problems.append((path, f"{found} is of type {type(value).__name__}, which JSON cannot hold; use text or numbers"))
    return None


def _is_secret(path: _Path) -> bool:
    """Return whether error texts must not show the value at the path; a field of such values may be one itself."""
    return path[2:3] in SECRET_FIELDS


def _below(path: _Path, key: object) -> _Path:
    """Return the path to an item; the path stops at a secret value."""
    return path if _is_secret(path) and len(path) > _ENV_DEPTH else (*path, key)


def _read(cls: type[_T], data: object, path: _Path, problems: list[Problem]) -> _T | None:
    """Return the dataclass made of a dict, or None after noting the problem."""
    if not isinstance(data, Mapping):
        problems.append(
            (path, f"must be a dict with the fields of {cls.__name__}, but is of type {type(data).__name__}")
        )
        return None
    fields = {field.name: field for field in dataclasses.fields(cast("Any", cls))}
    before = len(problems)
    # An advice takes some time, and one problem more than are shown is enough.
    unknown = (key for key in data if key not in fields)
    problems.extend(
        ((*path, key), _unknown(key, list(fields), cls))
        for key in islice(unknown, max(0, MOST_PROBLEMS + 1 - len(problems)))
    )
    problems.extend(
        ((*path, name), f"is missing; {cls.__name__} needs it")
        for name, field in fields.items()
        if name not in data and field.default is field.default_factory is dataclasses.MISSING
    )
    values = {
        name: _READERS.get((cls, name), _copied)(data[name], (*path, name), problems) for name in fields if name in data
    }
    return cls(**values) if len(problems) == before and fields.keys() >= data.keys() else None


def _unknown(key: object, known: list[str], cls: type[Any]) -> str:
    # Imported here, because only errors need it.
    import difflib

    close = difflib.get_close_matches(str(key)[:_KEY_CHARS], known, n=1)
    if close:
        return f"{cls.__name__} has no such field; did you mean {close[0]!r}?"
    return f"{cls.__name__} has no such field; it has {', '.join(known)}"


def _read_roles(data: object, path: _Path, problems: list[Problem]) -> Any:
    if not isinstance(data, (list, tuple)):
        return data
    return [_read(Role, item, (*path, at), problems) for at, item in enumerate(data)]


def _read_mounts(data: object, path: _Path, problems: list[Problem]) -> Any:
    if not isinstance(data, (list, tuple)):
        return data
    return [_read_mount(item, (*path, at), problems) for at, item in enumerate(data)]


def _read_mount(data: object, path: _Path, problems: list[Problem]) -> object:
    if not isinstance(data, Mapping):
        return _read(BindMount, data, path, problems)
    rest = {key: value for key, value in data.items() if key != "type"}
    if "type" in data:
        kind = data["type"]
        if not isinstance(kind, str) or kind not in _MOUNTS:
            problems.append(((*path, "type"), f"{shown(kind)} is not a mount type; use one of {', '.join(_MOUNTS)}"))
            return None
        return _read(_MOUNTS[kind], rest, path, problems)
    fitting = [cls for cls in _MOUNTS.values() if set(rest) <= {field.name for field in dataclasses.fields(cls)}]
    if len(fitting) != 1:
        problems.append(((*path, "type"), f"is missing, and no key identifies it; use one of {', '.join(_MOUNTS)}"))
        return None
    return _read(fitting[0], rest, path, problems)


def _read_retry_policy(data: object, path: _Path, problems: list[Problem]) -> object:
    try:
        return RetryPolicy(data)
    except ValueError:
        problems.append((path, f"{shown(data)} is not a retry policy; use one of {', '.join(RetryPolicy.__members__)}"))
        return None


def _read_resource(data: object, path: _Path, problems: list[Problem]) -> object:
    return _read(Resource, data, path, problems)


def _read_workspace(data: object, path: _Path, problems: list[Problem]) -> object:
    if isinstance(data, Mapping) and not isinstance(projects := data.get("projects", {}), Mapping):
        found = type(projects).__name__
        problems.append(((*path, "projects"), f"must be a dict of path to sub-directory, but is of type {found}"))
        return None
    return None if data is None else _read(Workspace, data, path, problems)


def _copied(data: Any, path: _Path, problems: list[Problem]) -> Any:
    return _to_plain(data, path, problems)


_READERS: dict[tuple[type[Any], str], Callable[[Any, _Path, list[Problem]], Any]] = {
    (AppDef, "roles"): _read_roles,
    (Role, "mounts"): _read_mounts,
    (Role, "resource"): _read_resource,
    (Role, "retry_policy"): _read_retry_policy,
    (Role, "workspace"): _read_workspace,
}
