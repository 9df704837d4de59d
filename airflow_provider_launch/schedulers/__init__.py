"""Registry of schedulers: finds them by name without importing them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_launch.schedulers.api import Scheduler
from airflow_provider_launch.schedulers.backends import BACKENDS
from airflow_provider_launch.util.entrypoints import load_group
from airflow_provider_launch.util.plugin_registry import PluginType, registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "DEFAULT_SCHEDULER_MODULES",
    "SCHEDULER_ALIASES",
    "Scheduler",
    "SchedulerFactory",
    "get_builtin_scheduler_factories",
    "get_default_scheduler_name",
    "get_scheduler_factories",
    "resolve_scheduler_name",
]

SCHEDULERS_GROUP = PluginType.SCHEDULER.value

DEFAULT_SCHEDULER_MODULES: Mapping[str, str] = {
    **{info.name: info.scheduler_module for info in BACKENDS.values()},
    "local_cwd": "airflow_provider_launch.schedulers.local_scheduler",
    "local_docker": "airflow_provider_launch.schedulers.docker_scheduler",
}
"""Backend name to module; the first is the default scheduler."""

SCHEDULER_ALIASES: Mapping[str, str] = {
    "local_cwd": "local",
    "local_docker": "docker",
}
"""Older name to current name; used only if no scheduler is registered under the older one."""


class SchedulerFactory(Protocol):
    """Creates a scheduler; called with the session name as first positional argument."""

    def __call__(self, session_name: str, **kwargs: Any) -> Scheduler[Any]:
        """Return a new scheduler; a plug-in refuses unknown keywords."""
        ...


def get_scheduler_factories(
    group: str = SCHEDULERS_GROUP,
    skip_defaults: bool = False,
) -> dict[str, SchedulerFactory]:
    """Return factories by backend name: built-in, then plug-ins, then registered in this process; later ones win.

    Nothing is imported before a factory is called.

    Args:
        group: entry-point group of the plug-ins; decorators register in the default group.
        skip_defaults: leave out the built-in ones.
    """
    factories = {} if skip_defaults else get_builtin_scheduler_factories()
    factories.update(load_group(group))
    if group == SCHEDULERS_GROUP:
        factories.update(registry.get(PluginType.SCHEDULER))
    return factories


def get_builtin_scheduler_factories() -> dict[str, SchedulerFactory]:
    """Return the factories of the built-in schedulers by backend name, without a search for plug-ins."""
    return {name: _deferred(module) for name, module in DEFAULT_SCHEDULER_MODULES.items()}


def get_default_scheduler_name() -> str:
    """Return the name of the default scheduler."""
    return next(iter(get_scheduler_factories()))


def resolve_scheduler_name(name: str, known: Mapping[str, object]) -> str:
    """Return the current name for an older one, unless the older one is registered itself."""
    current = SCHEDULER_ALIASES.get(name, name)
    return current if name not in known and current in known else name


def _deferred(module: str) -> SchedulerFactory:
    def create(session_name: str, **kwargs: Any) -> Scheduler[Any]:
        factory: Callable[..., Scheduler[Any]] = importlib.import_module(module).create_scheduler
        return factory(session_name, **kwargs)

    return create
