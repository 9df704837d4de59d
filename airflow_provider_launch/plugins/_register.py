"""Decorators that register a plug-in's factories."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from airflow_provider_launch.plugins.fractions import WHOLE
from airflow_provider_launch.plugins.resource_tags import IS_FRACTIONAL, RESOURCE_NAME
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.util.plugin_registry import PluginRegistry, PluginType, registry

__all__ = ["Fractionals", "Register", "register"]

F = TypeVar("F", bound=Callable[..., Any])
Fractionals = Mapping[float, str] | Callable[[Resource], Mapping[float, str]]


class Register:
    """The decorators `@register.scheduler()`, `.component()`, `.tracker()` and `.named_resource()`."""

    def __init__(self, target: PluginRegistry) -> None:
        self._target = target

    def scheduler(self, name: str | None = None) -> Callable[[F], F]:
        """Register a factory `(session_name, **kwargs) -> Scheduler` under its own name or the given one."""
        return self._plain(PluginType.SCHEDULER, name)

    def component(self, name: str | None = None) -> Callable[[F], F]:
        """Register a function that returns an app under its own name or the given one, such as `team.train`."""
        return self._plain(PluginType.COMPONENT, name)

    def tracker(self, name: str | None = None) -> Callable[[F], F]:
        """Register a factory of trackers under its own name or the given one."""
        return self._plain(PluginType.TRACKER, name)

    def named_resource(
        self,
        name: str | None = None,
        aliases: Iterable[str] | None = None,
        fractionals: Fractionals | None = None,
    ) -> Callable[[Callable[..., Resource]], Callable[..., Resource]]:
        """Register a function that returns a `Resource`; its results are tagged with their name.

        `fractionals` tells for each fraction the suffix of a variant `<name>_<suffix>`, which calls the function with
        that number as `fractional`; a callable is given the whole resource and returns the same.

        Raises:
            ValueError: a name is taken or given twice.
        """

        def decorate(function: Callable[..., Resource]) -> Callable[..., Resource]:
            main = name or function.__name__
            whole = _tagged(function, main)
            parts = fractionals(function()) if callable(fractionals) else fractionals or {}
            factories: dict[str, Callable[..., Resource]] = {}
            for prefix in (main, *(aliases or ())):
                _add(factories, prefix, whole)
                for fraction, suffix in parts.items():
                    _add(factories, f"{prefix}_{suffix}", _tagged(function, f"{main}_{suffix}", fraction))
            self._target.add(PluginType.NAMED_RESOURCE, factories)
            return whole

        return decorate

    def _plain(self, kind: PluginType, name: str | None) -> Callable[[F], F]:
        def decorate(factory: F) -> F:
            self._target.add(kind, {name or factory.__name__: factory})
            return factory

        return decorate


def _add(factories: dict[str, Callable[..., Resource]], name: str, factory: Callable[..., Resource]) -> None:
    if name in factories:
        raise ValueError(f"named resource {name!r} is given twice; names, aliases and suffixes must differ")
    factories[name] = factory


def _tagged(function: Callable[..., Resource], name: str, fraction: float | None = None) -> Callable[..., Resource]:
    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Resource:
        if fraction is not None:
            kwargs["fractional"] = fraction
        # A copy: the function may return one object again and again.
        resource = Resource.copy(function(*args, **kwargs))
        resource.tags[RESOURCE_NAME] = name
        if fraction is not None and fraction != WHOLE:
            resource.tags[IS_FRACTIONAL] = True
        return resource

    return make


register = Register(registry)
