"""Decorators that register a plug-in's factories."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from airflow_provider_launch.plugins.fractions import IS_FRACTIONAL, RESOURCE_NAME, WHOLE
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.util.plugin_registry import PluginRegistry, PluginType, RegistrationError, registry

F = TypeVar("F", bound=Callable[..., Any])
Fractionals = Mapping[float, str] | Callable[[Resource], Mapping[float, str]]


class Register:
    """The decorators `@register.scheduler()`, `.component()`, `.tracker()` and `.named_resource()`."""

    def __init__(self, target: PluginRegistry) -> None:
        self._target = target

    def scheduler(self, name: str | None = None) -> Callable[[F], F]:
        """Register a factory `(session_name, **kwargs) -> Scheduler` under its own name, or under `name`."""
        return self._plain(PluginType.SCHEDULER, name)

    def component(self, name: str | None = None) -> Callable[[F], F]:
        """Register a function that returns an app under its own name, or under `name`, such as `team.train`."""
        return self._plain(PluginType.COMPONENT, name)

    def tracker(self, name: str | None = None) -> Callable[[F], F]:
        """Register a factory of trackers under its own name, or under `name`."""
        return self._plain(PluginType.TRACKER, name)

    def named_resource(
        self,
        name: str | None = None,
        aliases: Iterable[str] | None = None,
        fractionals: Fractionals | None = None,
    ) -> Callable[[Callable[..., Resource]], Callable[..., Resource]]:
        """Register a function that returns a `Resource`; its results are tagged with its name.

        `fractionals` maps fractions to the suffix of a variant `<name>_<suffix>`, which calls the function with that
        number as `fractional`. It may also be a callable that gets the whole resource and returns this mapping.

        Raises:
            ValueError: a name is already registered, or given twice.
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
            module = sys.modules.get(function.__module__)
            for variant, factory in factories.items():
                _mark(factory, PluginType.NAMED_RESOURCE, variant)
                # Makes `their_module.host_4` the variant, as if it were written there.
                if module is not None and variant.isidentifier() and factory is not whole:
                    setattr(module, variant, factory)
            return _mark(whole, PluginType.NAMED_RESOURCE, main)

        return decorate

    def _plain(self, kind: PluginType, name: str | None) -> Callable[[F], F]:
        def decorate(factory: F) -> F:
            self._target.add(kind, {name or factory.__name__: factory})
            return _mark(factory, kind, name or factory.__name__)

        return decorate


def _mark(factory: F, kind: PluginType, name: str) -> F:
    """Store kind and name on the function, so that a package can collect its plug-ins."""
    factory._plugin_type, factory._plugin_name = kind, name  # type: ignore[attr-defined]  # noqa: SLF001 - a name of TorchX
    return factory


def _add(factories: dict[str, Callable[..., Resource]], name: str, factory: Callable[..., Resource]) -> None:
    if name in factories:
        raise RegistrationError(f"named resource {name!r} is given twice; names, aliases and suffixes must differ")
    factories[name] = factory


def _tagged(function: Callable[..., Resource], name: str, fraction: float | None = None) -> Callable[..., Resource]:
    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Resource:
        if fraction is not None:
            kwargs["fractional"] = fraction
        # A copy, because the function may return the same object each time.
        resource = Resource.copy(function(*args, **kwargs))
        resource.tags[RESOURCE_NAME] = name
        resource.tags[IS_FRACTIONAL] = fraction is not None and fraction != WHOLE
        return resource

    return make


register = Register(registry)
