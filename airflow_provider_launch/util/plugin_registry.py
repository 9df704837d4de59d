"""The plug-ins registered in this process; in `util`, because specs may read it."""

from __future__ import annotations

import threading
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.util.entrypoints import find

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.metadata import EntryPoint


class PluginType(str, Enum):
    """The kinds of plug-ins; the value is the group of their entry points."""

    SCHEDULER = "airflow_provider_launch.schedulers"
    COMPONENT = "airflow_provider_launch.components"
    NAMED_RESOURCE = "airflow_provider_launch.named_resources"
    TRACKER = "airflow_provider_launch.tracker"


class RegistrationError(ValueError):
    """A name is already registered, or was given twice."""


class PluginRegistry:
    """Factories by kind and name that were registered in this process, and a report of all plug-ins.

    `registry()` returns `registry` itself: plug-ins written for TorchX call it.
    """

    def __call__(self) -> PluginRegistry:
        """Return this registry."""
        return self

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._factories: dict[PluginType, dict[str, Callable[..., Any]]] = {kind: {} for kind in PluginType}

    def get(self, kind: PluginType) -> Mapping[str, Callable[..., Any]]:
        """Return the current factories of a kind by name."""
        with self._lock:
            return MappingProxyType(dict(self._factories[kind]))

    def add(self, kind: PluginType, factories: Mapping[str, Callable[..., Any]]) -> None:
        """Register factories; none of them if a name belongs to another function.

        The same function may be registered again, because its module may be reloaded.
        """
        with self._lock:
            known = self._factories[kind]
            for name, factory in factories.items():
                if name in known and _origin(known[name]) != _origin(factory):
                    raise RegistrationError(
                        f"{kind.name.lower()} {name!r} is already registered by {_origin(known[name])}"
                    )
            known.update(factories)

    def info(self, kind: PluginType | None = None) -> dict[PluginType, dict[str, str]]:
        """Return for each kind name -> origin of the plug-in; entry points are listed without importing them."""
        return {
            each: {
                **{name: f"entry point {entry.value} of {_package(entry)}" for name, entry in find(each.value).items()},
                **{name: f"registered by {_origin(factory)}" for name, factory in self.get(each).items()},
            }
            for each in (PluginType if kind is None else [kind])
        }

    def load_errors(self, kind: PluginType | None = None) -> dict[str, str]:
        """Import every entry point; return `group.name` -> error, for those that cannot be imported."""
        errors = {}
        for each in PluginType if kind is None else [kind]:
            for name, entry in find(each.value).items():
                try:
                    entry.load()
                except Exception as error:  # noqa: BLE001 - whatever a module raises while it is imported
                    errors[f"{each.value}.{name}"] = f"{type(error).__name__}: {error}"
        return errors

    @property
    def errors(self) -> dict[str, str]:
        """Return `load_errors()`; a name of TorchX."""
        return self.load_errors()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON: `{"plugins": {kind: {name: origin}}, "errors": {...}}`."""
        plugins = {kind.name.lower(): found for kind, found in self.info().items()}
        return {"plugins": plugins, "errors": self.load_errors()}

    def __str__(self) -> str:
        """Return the report as text."""
        lines = []
        for kind, found in self.info().items():
            lines.append(f"{kind.name.lower()}: {len(found) or 'none'}")
            lines += [f"  {name}: {origin}" for name, origin in found.items()]
        lines += [f"cannot be loaded: {name}: {error}" for name, error in self.load_errors().items()]
        return "\n".join(lines)

    def clear(self) -> None:
        """Remove all registrations; for tests."""
        with self._lock:
            for factories in self._factories.values():
                factories.clear()


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"


def _origin(factory: Callable[..., Any]) -> str:
    # functools.wraps keeps the names that the plug-in's author wrote.
    return f"{factory.__module__}.{factory.__qualname__}"


registry = PluginRegistry()
