"""What plug-ins have registered in this process; here, because specs may look while only plug-ins write."""

from __future__ import annotations

import threading
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["PluginRegistry", "PluginType", "registry"]


class PluginType(str, Enum):
    """What can be plugged in; the value is the group of its entry points."""

    SCHEDULER = "airflow_provider_launch.schedulers"
    COMPONENT = "airflow_provider_launch.components"
    NAMED_RESOURCE = "airflow_provider_launch.named_resources"
    TRACKER = "airflow_provider_launch.tracker"


class PluginRegistry:
    """Factories by kind and name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._factories: dict[PluginType, dict[str, Callable[..., Any]]] = {kind: {} for kind in PluginType}

    def get(self, kind: PluginType) -> Mapping[str, Callable[..., Any]]:
        """Return the factories of a kind by name, as they are now."""
        with self._lock:
            return MappingProxyType(dict(self._factories[kind]))

    def add(self, kind: PluginType, factories: Mapping[str, Callable[..., Any]]) -> None:
        """Register factories; either all of them or, when a name is taken, none.

        Raises:
            ValueError: a name belongs to another function. The same function may come again: its module was reloaded.
        """
        with self._lock:
            known = self._factories[kind]
            for name, factory in factories.items():
                if name in known and _origin(known[name]) != _origin(factory):
                    raise ValueError(f"{kind.name.lower()} {name!r} is already registered by {_origin(known[name])}")
            known.update(factories)

    def clear(self) -> None:
        """Forget everything; for tests."""
        with self._lock:
            for factories in self._factories.values():
                factories.clear()


def _origin(factory: Callable[..., Any]) -> str:
    # functools.wraps keeps the names of what a plug-in's author wrote.
    return f"{factory.__module__}.{factory.__qualname__}"


registry = PluginRegistry()
