"""Entry points of installed distributions: how plug-ins are found."""

from __future__ import annotations

from importlib.metadata import Distribution, EntryPoint, distribution, distributions
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["find", "load", "load_group"]

_RAISE = object()
_FILE = "entry_points.txt"


def find(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; nothing is imported."""
    found: dict[str, EntryPoint] = {}
    for candidate in distributions():
        # `entry_points` of the standard library parses those of all distributions, which takes three times as long.
        text = candidate.read_text(_FILE) or ""
        if group in text and not _is_shadowed(candidate, text):
            found |= {entry.name: entry for entry in candidate.entry_points if entry.group == group}
    return found


def _is_shadowed(candidate: Distribution, text: str) -> bool:
    """Of two of one name the first on the path is the one that is imported."""
    try:
        return distribution(candidate.name).read_text(_FILE) != text
    except (ImportError, LookupError, OSError, ValueError, TypeError):
        # What a broken installation has left has no name; the backport, where it is loaded, has errors of its own.
        return False


def load(group: str, name: str, default: Any = _RAISE) -> Any:
    """Return the object that an entry point names, or `default` if there is none.

    Raises:
        KeyError: there is none, and no default was given.
    """
    entry_point = find(group).get(name)
    if entry_point is not None:
        return entry_point.load()
    if default is _RAISE:
        raise KeyError(f"entrypoint {group}.{name} not found")
    return default


def load_group(group: str) -> dict[str, Callable[..., Any]]:
    """Return name -> function that imports the entry point, then calls it with the arguments.

    An entry point that is a module is imported and returned, and arguments are ignored. Import errors surface at
    the call.
    """
    return {name: _deferred(entry_point) for name, entry_point in find(group).items()}


def _deferred(entry_point: EntryPoint) -> Callable[..., Any]:
    def load_and_call(*args: object, **kwargs: object) -> Any:
        loaded = entry_point.load()
        return loaded if isinstance(loaded, ModuleType) else loaded(*args, **kwargs)

    return load_and_call
