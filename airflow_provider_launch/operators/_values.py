"""The texts in values of a module, read without running code of their classes: a lazy object stays as it is."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import PurePath
from types import (
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
    SimpleNamespace,
)
from typing import Any

_MOST = 200_000
"""Most containers and objects that are read."""
_DEEPEST = 20
_SEQUENCES = (list, tuple, set, frozenset)
_NUMBERS = frozenset({int, float})
_OTHERS = frozenset({bool, complex, bytes, bytearray, NoneType})
_HOLDERS: dict[type, tuple[str, ...]] = {
    MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget",),
    functools.cached_property: ("func",),
    functools.partial: ("func", "args", "keywords"),
    functools.partialmethod: ("func", "args", "keywords"),
    type(functools.lru_cache(lambda: None)): ("__wrapped__",),
}
"""Attributes of objects of Python that hold a function, which is the first, and its arguments."""


def texts_in(
    values: Iterable[Any],
    is_of_author: Callable[[Any], bool],
    *,
    with_numbers: bool = False,
    seen: dict[int, Any] | None = None,
) -> set[str]:
    """Return all texts in values, in containers of them, in the attributes of settings, and in what functions hold.

    Args:
        values: any objects.
        is_of_author: whether an author wrote a function, or a class whose objects are settings.
        with_numbers: whether to return numbers, too, as texts.
        seen: objects by their `id()` that were read before, and are skipped; those of this call are added. It keeps
            them, because a later object may get the `id()` of one that is gone.
    """
    found: set[str] = set()
    seen = {} if seen is None else seen
    waiting, most = [(value, 0) for value in values], len(seen) + _MOST
    while waiting and len(seen) < most:
        value, depth = waiting.pop()
        # The class of an object may do anything.
        with contextlib.suppress(Exception):
            kind = type(value)
            if issubclass(kind, str):
                found.add(str.__str__(value))
            elif issubclass(kind, PurePath):
                found.add(PurePath.__str__(value))
            elif kind in _NUMBERS:
                found.update([str(value)] if with_numbers else ())
            elif kind not in _OTHERS and id(value) not in seen and depth < _DEEPEST:
                seen[id(value)] = value
                waiting += [(part, depth + 1) for part in _parts(value, kind, is_of_author)]
    return found


def _parts(value: Any, kind: type, is_of_author: Callable[[Any], bool]) -> Iterator[Any]:
    if issubclass(kind, Enum):
        yield object.__getattribute__(value, "__dict__").get("_value_")
    elif issubclass(kind, dict):
        for pair in [*dict.items(value)]:
            yield from pair
    elif kind is MappingProxyType:
        for pair in [*value.items()]:
            yield from pair
    elif base := next((each for each in _SEQUENCES if issubclass(kind, each)), None):
        yield from [*base.__iter__(value)]
    elif kind is FunctionType or kind in _HOLDERS or issubclass(kind, type):
        yield from _parts_of_code(value, kind, is_of_author)
    elif kind is SimpleNamespace or _is_dataclass(kind) or is_of_author(kind):
        yield from attributes_of(value)


def _parts_of_code(value: Any, kind: type, is_of_author: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield what a function holds, and the functions of a class."""
    if kind in _HOLDERS:
        yield from [getattr(value, name) for name in _HOLDERS[kind]]
    elif kind is FunctionType:
        yield value.__dict__.get("__wrapped__")
        yield from held_by(value) if is_of_author(value) else ()
    elif is_of_author(value):
        members = [*type.__getattribute__(value, "__dict__").values()]
        yield from [each for each in members if type(each) is FunctionType or type(each) in _HOLDERS]


def attributes_of(value: object) -> Iterator[Any]:
    """Yield the values of the attributes of an object, without calling its properties."""
    kind = type(value)
    if any("__dict__" in vars(base) for base in kind.__mro__):
        attributes = object.__getattribute__(value, "__dict__")
        yield from [*attributes.values()] if type(attributes) is dict else ()
    for slot in [each for base in kind.__mro__ for each in vars(base).values() if type(each) is MemberDescriptorType]:
        with contextlib.suppress(AttributeError):  # it has no value
            yield slot.__get__(value)


def functions_in(value: Any) -> Iterator[FunctionType]:
    """Yield the function that a value is or holds, and those that this wraps."""
    for _ in range(_DEEPEST):
        kind = type(value)
        if kind is FunctionType:
            yield value
            value = value.__dict__.get("__wrapped__")
        else:
            value = getattr(value, _HOLDERS[kind][0]) if kind in _HOLDERS else None


def held_by(function: FunctionType) -> Iterator[Any]:
    """Yield the values that a function holds: its defaults, and the variables of functions around it."""
    yield from (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            yield cell.cell_contents


def _is_dataclass(kind: type) -> bool:
    return any("__dataclass_fields__" in vars(base) for base in kind.__mro__)


def variables_of(module: object) -> dict[str, Any]:
    """Return the variables of a module, also of one that is loaded at its first use; empty for other objects."""
    return object.__getattribute__(module, "__dict__") if issubclass(type(module), ModuleType) else {}


def file_of(module: object) -> str:
    """Return the file of a module; empty if it has none."""
    file = variables_of(module).get("__file__")
    return file if type(file) is str else ""


def module_of(value: object) -> object:
    """Return the module in which a function, a class or the class of an object is; a module itself."""
    kind = type(value)
    if issubclass(kind, ModuleType):
        return value
    name = getattr(value if kind is FunctionType or issubclass(kind, type) else kind, "__module__", None)
    return sys.modules.get(name) if type(name) is str else None
