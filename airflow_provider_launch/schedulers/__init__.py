"""Which schedulers there are, found by name without importing any of them."""

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
    "local_cwd": "airflow_provider_launch.schedulers.local.cwd",
    "local_docker": "airflow_provider_launch.schedulers.docker.local_docker",
}
"""Backend name to module; the first is the default scheduler."""

SCHEDULER_ALIASES: Mapping[str, str] = {
    "local_cwd": "local",
    "local_docker": "docker",
}
"""What an older name means where no scheduler of that name is given."""


class SchedulerFactory(Protocol):
    """Makes a scheduler; called with the session name as first positional argument."""

    def __call__(self, session_name: str, **kwargs: Any) -> Scheduler[Any]:
        """Return a new scheduler; keywords that it does not know are ignored."""
        ...


def get_scheduler_factories(
    group: str = SCHEDULERS_GROUP,
    skip_defaults: bool = False,
) -> dict[str, SchedulerFactory]:
    """Return backend name to factory: builtin, of plug-ins, registered in this process; later ones win.

    Nothing is imported before a factory is called.

    Args:
        group: the entry points that plug-ins register; what a decorator registers belongs to the default.
        skip_defaults: leave the builtin ones out.
    """
    factories = {} if skip_defaults else get_builtin_scheduler_factories()
    factories.update(load_group(group))
    if group == SCHEDULERS_GROUP:
        factories.update(registry.get(PluginType.SCHEDULER))
    return factories


def get_builtin_scheduler_factories() -> dict[str, SchedulerFactory]:
    """Return backend name to factory of the builtin schedulers, without a search for plug-ins."""
    return {name: _deferred(module) for name, module in DEFAULT_SCHEDULER_MODULES.items()}


def get_default_scheduler_name() -> str:
    """Return the name of the scheduler that is used when none is named."""
    return next(iter(get_scheduler_factories()))


def resolve_scheduler_name(name: str, known: Mapping[str, object]) -> str:
    """Return the registered name that `name` means; an older name only if it is not registered itself."""
    current = SCHEDULER_ALIASES.get(name, name)
    return current if name not in known and current in known else name


def _deferred(module: str) -> SchedulerFactory:
    def create(session_name: str, **kwargs: Any) -> Scheduler[Any]:
        factory: Callable[..., Scheduler[Any]] = importlib.import_module(module).create_scheduler
        return factory(session_name, **kwargs)

    return create
