"""Typed keys of `Resource.capabilities`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_launch.specs.resources import Resource

__all__ = ["CapabilityKey"]


@dataclass(frozen=True)
class CapabilityKey:
    """One hardware fact: stored under the plain string `namespace.name`, always of one type."""

    namespace: str
    name: str
    type: type

    @property
    def key(self) -> str:
        """The key in `Resource.capabilities`."""
        return f"{self.namespace}.{self.name}"

    def set(self, resource: Resource, value: Any) -> None:
        """Store `value` in the capabilities of `resource`."""
        resource.capabilities[self.key] = value

    def get(self, resource: Resource, default: Any = None) -> Any:
        """Return the stored value, or `default`.

        Raises:
            TypeError: the stored value is of another type; a bool is no int.
        """
        if self.key not in resource.capabilities:
            return default
        value = resource.capabilities[self.key]
        if not isinstance(value, self.type) or (isinstance(value, bool) and self.type is int):
            raise TypeError(
                f"capability {self.key!r}: expected `{self.type.__name__}`, got `{type(value).__name__}` ({value!r})"
            )
        return value
