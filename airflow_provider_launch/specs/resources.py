"""The resources that one replica needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GiB = 1024
"""One GiB in the unit of `Resource.memMB`."""

_NAME_TAG = "torchx/named_resources.name"
_FRACTIONAL_TAG = "torchx/named_resources.is_fractional"


@dataclass
class Resource:
    """CPUs, GPUs and MiB of memory of one replica; -1 means unspecified."""

    cpu: int
    """CPUs."""
    gpu: int
    """GPUs, not shared with other replicas."""
    memMB: int  # noqa: N815 - a name of the launcher model
    """MiB of memory."""
    capabilities: dict[str, Any] = field(default_factory=dict)
    """Facts about the hardware, for the scheduler."""
    devices: dict[str, int] = field(default_factory=dict)
    """Named devices with their counts."""
    tags: dict[str, object] = field(default_factory=dict)
    """Notes that schedulers ignore."""

    @staticmethod
    def copy(original: Resource, **capabilities: Any) -> Resource:
        """Return an equal resource with its own dicts; the given capabilities are added and win."""
        return Resource(
            cpu=original.cpu,
            gpu=original.gpu,
            memMB=original.memMB,
            capabilities={**original.capabilities, **capabilities},
            devices=dict(original.devices),
            tags=dict(original.tags),
        )

    def is_fractional(self) -> bool:
        """Return whether this is a fraction of a larger named resource."""
        return bool(self.tags.get(_FRACTIONAL_TAG, False))

    def get_resource_name(self) -> str | None:
        """Return the name under which this resource was looked up; None if it has none."""
        name = self.tags.get(_NAME_TAG)
        return None if name is None else str(name)


NULL_RESOURCE = Resource(cpu=-1, gpu=-1, memMB=-1)
"""All values unspecified. Compare with `==`, and never change it."""
