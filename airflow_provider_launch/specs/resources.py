"""The resources that one replica needs."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

LATER = MappingProxyType({"later": True})
"""Metadata of fields that older versions do not have: records and hashes leave them out if they have their default."""

GiB = 1024
"""One GiB in the unit of `Resource.memMB`."""

_NAME_TAG = "torchx/named_resources.name"
_FRACTIONAL_TAG = "torchx/named_resources.is_fractional"


@dataclass
class Resource:
    """CPUs, GPUs and MiB of memory of one replica; -1 means unspecified."""

    cpu: float
    """CPUs: a number, a fraction such as `0.5`, or text in the notation of Kubernetes, `"500m"`. AWS Batch on EC2 and
    Slurm round it up."""
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
    # Not part of `repr`, which plug-ins compare.
    cpu_request: float | None = field(default=None, repr=False, metadata=LATER)
    """CPUs that are reserved, if fewer than `cpu`, which is then only the limit. None reserves `cpu`."""
    memMB_request: int | None = field(default=None, repr=False, metadata=LATER)  # noqa: N815 - as `memMB`
    """MiB that are reserved, if fewer than `memMB`, which is then only the limit. None reserves `memMB`."""

    def __post_init__(self) -> None:
        """Convert CPUs in the notation of Kubernetes to a number."""
        for name in ("cpu", "cpu_request"):
            setattr(self, name, _cpus(getattr(self, name)))

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
            cpu_request=original.cpu_request,
            memMB_request=original.memMB_request,
        )

    def is_fractional(self) -> bool:
        """Return whether this is a fraction of a larger named resource."""
        return bool(self.tags.get(_FRACTIONAL_TAG, False))

    def get_resource_name(self) -> str | None:
        """Return the name under which this resource was looked up; None if it has none."""
        name = self.tags.get(_NAME_TAG)
        return None if name is None else str(name)


def _cpus(given: Any) -> Any:
    """Return the number that a text such as `500m` means, a whole number as int; anything else stays for the checks."""
    found = given
    if isinstance(given, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)(m?)", given.strip())):
        found = float(match[1]) / (1000 if match[2] else 1)
    if isinstance(found, float):
        # Equal resources have equal hashes and requests: 2.0 is 2.
        with contextlib.suppress(OverflowError, ValueError):
            return int(found) if found == int(found) else found
    return found


NULL_RESOURCE = Resource(cpu=-1, gpu=-1, memMB=-1)
"""All values unspecified. Compare with `==`, and never change it."""
