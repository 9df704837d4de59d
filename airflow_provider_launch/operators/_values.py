"""The texts in values of a module, read without running code of their classes: a lazy object stays as it is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import PurePath
from types import FunctionType, MappingProxyType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any

_MOST = 200_000
"""Most values that are read."""
_DEEPEST = 20
_SEQUENCES = (list, tuple, set, frozenset)


def texts_in(values: Iterable[Any], is_of_author: Callable[[type], bool]) -> set[str]:
    """Return all texts in values, in containers of them, and in the attributes of settings.

    Args:
        values: any objects.
        is_of_author: whether objects of a class are settings of an author.
    """
    found: set[str] = set()
    waiting, seen = [(value, 0) for value in values], set[int]()
    while waiting and len(seen) < _MOST:
        value, depth = waiting.pop()
        # The class of an object may do anything.
        with contextlib.suppress(Exception):
            kind = type(value)
            if issubclass(kind, str):
                found.add(str.__str__(value))
            elif issubclass(kind, PurePath):
                found.add(PurePath.__str__(value))
            elif id(value) not in seen and depth < _DEEPEST:
                seen.add(id(value))
                waiting += [(part, depth + 1) for part in _parts(value, kind, is_of_author)]
    return found


def _parts(value: Any, kind: type, is_of_author: Callable[[type], bool]) -> Iterator[Any]:
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
    elif kind is SimpleNamespace or _is_dataclass(kind) or is_of_author(kind):
        yield from attributes_of(value)


def attributes_of(value: object) -> Iterator[Any]:
    """Yield the values of the attributes of an object, without calling its properties."""
    kind = type(value)
    if any("__dict__" in vars(base) for base in kind.__mro__):
        attributes = object.__getattribute__(value, "__dict__")
        yield from [*attributes.values()] if type(attributes) is dict else ()
    for slot in [each for base in kind.__mro__ for each in vars(base).values() if type(each) is MemberDescriptorType]:
        with contextlib.suppress(AttributeError):  # it has no value
            yield slot.__get__(value)


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
