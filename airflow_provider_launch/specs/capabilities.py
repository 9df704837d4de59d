"""Typed keys of `Resource.capabilities`."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from airflow_provider_launch.specs.resources import Resource

V = TypeVar("V")


@dataclass(frozen=True)
class CapabilityKey(Generic[V]):
    """One hardware fact, stored under the plain string `namespace.name`, with a fixed type.

    `MEMORY: CapabilityKey[int] = CapabilityKey("acme", "memory", int)`.
    """

    namespace: str
    name: str
    type: builtins.type[V]

    @property
    def key(self) -> str:
        """The key in `Resource.capabilities`."""
        return f"{self.namespace}.{self.name}"

    def set(self, resource: Resource, value: V) -> None:
        """Store `value` in the capabilities of `resource`."""
        resource.capabilities[self.key] = value

    def get(self, resource: Resource, default: V | None = None) -> V | None:
        """Return the stored value, or `default`.

        Raises:
            TypeError: the stored value has another type; a bool is not an int.
        """
        if self.key not in resource.capabilities:
            return default
        value = resource.capabilities[self.key]
        if not isinstance(value, self.type) or (isinstance(value, bool) and self.type is int):
            raise TypeError(
                f"capability {self.key!r}: expected `{self.type.__name__}`, got `{type(value).__name__}` ({value!r})"
            )
        return value
