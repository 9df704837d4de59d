"""Parts of a host: which fractions of a named resource exist, and how each is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_launch.specs.resources import Resource

__all__ = ["EIGHTH", "HALF", "QUARTER", "SIXTEENTH", "WHOLE", "halve_mem_down_to", "powers_of_two_gpus"]

WHOLE = 1.0
HALF = WHOLE / 2
QUARTER = WHOLE / 4
EIGHTH = WHOLE / 8
SIXTEENTH = WHOLE / 16

_MIB_PER_GIB = 1024


def powers_of_two_gpus(resource: Resource) -> dict[float, str]:
    """Return the fractions with half, a quarter, ... of the GPUs, named by their count, down to one GPU."""
    fractions: dict[float, str] = {}
    fraction, gpus = WHOLE, resource.gpu
    while gpus >= 1:
        fractions[fraction] = str(gpus)
        if gpus % 2:
            break
        fraction, gpus = fraction / 2, gpus // 2
    return fractions


def halve_mem_down_to(*, minGiB: int) -> Callable[[Resource], dict[float, str]]:  # noqa: N803 - a name of the launcher model
    """Return a function that gives the fractions with half, a quarter, ... of the memory, down to `minGiB`.

    Each is named by its GiB.
    """
    if minGiB < 1:
        raise ValueError(f"minGiB must be at least 1, not {minGiB}")

    def fractions(resource: Resource) -> dict[float, str]:
        found: dict[float, str] = {}
        fraction, gib = WHOLE, resource.memMB // _MIB_PER_GIB
        while gib >= minGiB:
            found[fraction] = str(gib)
            fraction, gib = fraction / 2, gib // 2
        return found

    return fractions
