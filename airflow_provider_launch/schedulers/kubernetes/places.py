"""The clusters and namespaces that tasks may choose from, as the connection lists them, without I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from airflow_provider_launch.specs.errors import InvalidAppError

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection


@dataclass(frozen=True)
class Place:
    """A context and a namespace. None means that of the connection."""

    context: str | None = None
    namespace: str | None = None

    def __str__(self) -> str:
        return f"namespace {self.namespace or 'of the connection'}" + (f", context {self.context}" * bool(self.context))


def place_of(connection: KubernetesConnection, context: str | None, namespace: str | None) -> Place:
    """Return the place that a launch names.

    Raises:
        InvalidAppError: the connection does not allow it.
    """
    given = {"context": (context, connection.contexts), "namespace": (namespace, connection.namespaces)}
    chosen = {}
    for name, (value, others) in given.items():
        own = getattr(connection, name)
        if value not in {None, own} and value not in (others or ()):
            allowed = [each for each in dict.fromkeys([own, *(others or ())]) if each is not None]
            raise InvalidAppError(
                f"option {name}={value!r}: the connection allows {', '.join(map(repr, allowed)) or 'only its own'}; "
                f"leave it out, or ask the administrator of the connection to add it to its field '{name}s'"
            )
        chosen[name] = None if value == own else value
    return Place(**chosen)


def places_of(connection: KubernetesConnection) -> list[Place]:
    """Return all places that tasks may choose, that of the connection first."""
    contexts, namespaces = connection.contexts or (), connection.namespaces or ()
    pairs = product([None, *contexts], [None, *namespaces])
    return list(dict.fromkeys(place_of(connection, context, namespace) for context, namespace in pairs))


def connection_to(connection: KubernetesConnection, place: Place) -> KubernetesConnection:
    """Return the connection to one place, from which nothing else can be chosen."""
    return replace(
        connection,
        context=place.context or connection.context,
        namespace=place.namespace or connection.namespace,
        contexts=None,
        namespaces=None,
    )
