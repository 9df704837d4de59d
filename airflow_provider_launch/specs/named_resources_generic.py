"""Resources by size, for schedulers that only need numbers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_launch.specs.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# name: cpu, gpu, memMB
_SIZES = {
    "gpu.small": (8, 1, 32768),
    "gpu.medium": (16, 2, 65536),
    "gpu.large": (32, 4, 131072),
    "gpu.xlarge": (64, 8, 262144),
    "cpu.nano": (1, 0, 512),
    "cpu.micro": (1, 0, 1024),
    "cpu.small": (1, 0, 2048),
    "cpu.medium": (2, 0, 4096),
    "cpu.large": (2, 0, 8192),
    "cpu.xlarge": (8, 0, 32768),
}

NAMED_RESOURCES: Mapping[str, Callable[[], Resource]] = {
    name: partial(Resource, cpu=cpu, gpu=gpu, memMB=mem_mb) for name, (cpu, gpu, mem_mb) in _SIZES.items()
}
