"""Types of connections that plug-ins register by entry points."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts
from airflow_provider_launch.specs.errors import InvalidAppError, MissingDependencyError
from airflow_provider_launch.util import entrypoints

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CONNECTIONS_GROUP = "airflow_provider_launch.connections"
"""Entry points: the type of the connection to the class of its scheduler, `launch_tsp = "launch_tsp:TspScheduler"`."""


def plugin_types() -> dict[str, EntryPoint]:
    """Return the types by name; nothing is imported."""
    return _types_on(tuple(sys.path))


@lru_cache(maxsize=4)
def _types_on(path: tuple[str, ...]) -> dict[str, EntryPoint]:  # noqa: ARG001 - what is found depends on it
    # Each search reads all installed distributions, and each task and trigger asks for its connection.
    return entrypoints.find(CONNECTIONS_GROUP)


@lru_cache(maxsize=64)
def plugin_scheduler(conn_type: str) -> type[Any] | None:
    """Return the class of the scheduler of a type; None if no plug-in has registered the type.

    Refuses an entry point that cannot be imported, or that is not a class with options.
    """
    found = plugin_types().get(conn_type)
    if found is None:
        return None
    try:
        scheduler = found.load()
    except ImportError as error:
        raise MissingDependencyError(
            f"the plug-in of connection type {conn_type!r} cannot be imported: {error}"
        ) from error
    for name in ("connection_type", "opts_type"):
        options = getattr(scheduler, name, None)
        if not (isinstance(options, type) and issubclass(options, StructuredOpts)):
            raise InvalidAppError(
                f"connection type {conn_type!r}: {found.value!r} must be a class of a scheduler whose {name!r} is a "
                f"subclass of StructuredOpts; fix the entry point of the plug-in"
            )
    if not isinstance(getattr(scheduler, "name", None), str):
        raise InvalidAppError(
            f"connection type {conn_type!r}: {found.value!r} must have the attribute 'name', under which its "
            f"scheduler is registered; fix the plug-in"
        )
    kind: type[Any] = scheduler
    return kind
