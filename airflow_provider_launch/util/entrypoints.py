"""Find plug-ins by the entry points of installed distributions."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_RAISE = object()


def find(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; nothing is imported."""
    return {entry_point.name: entry_point for entry_point in entry_points(group=group)}


def load(group: str, name: str, default: Any = _RAISE) -> Any:
    """Return the object of an entry point, or `default` if it does not exist.

    Raises:
        KeyError: the entry point does not exist, and no default was given.
    """
    entry_point = find(group).get(name)
    if entry_point is not None:
        return entry_point.load()
    if default is _RAISE:
        raise KeyError(f"entrypoint {group}.{name} not found")
    return default


def load_group(group: str) -> dict[str, Callable[..., Any]]:
    """Return name -> function that imports the entry point and calls it with the arguments.

    An entry point that is a module is imported and returned, and arguments are ignored. Import errors surface at
    the call.
    """
    return {name: _deferred(entry_point) for name, entry_point in find(group).items()}


def _deferred(entry_point: EntryPoint) -> Callable[..., Any]:
    def load_and_call(*args: object, **kwargs: object) -> Any:
        loaded = entry_point.load()
        return loaded if isinstance(loaded, ModuleType) else loaded(*args, **kwargs)

    return load_and_call
