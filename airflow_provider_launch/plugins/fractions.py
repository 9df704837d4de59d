"""Fractions of a named resource, such as half a host, and their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_launch.specs.resources import Resource

WHOLE = 1.0
HALF = WHOLE / 2
QUARTER = WHOLE / 4
EIGHTH = WHOLE / 8
SIXTEENTH = WHOLE / 16

_MIB_PER_GIB = 1024


def powers_of_two_gpus(resource: Resource) -> dict[float, str]:
    """Return the fractions with half, a quarter, ... of the GPUs, named by their count, down to one GPU.

    Raises:
        ValueError: the number of GPUs is not a power of two, so that it cannot be halved evenly.
    """
    gpus = resource.gpu
    if gpus < 1 or gpus & (gpus - 1):
        raise ValueError(f"{gpus} GPUs cannot be halved down to one; use a number that is a power of two")
    return {WHOLE / 2**halvings: str(gpus >> halvings) for halvings in range(gpus.bit_length())}


def halve_mem_down_to(*, minGiB: int) -> Callable[[Resource], dict[float, str]]:  # noqa: N803 - a name of the launcher model
    """Return a function that computes the fractions with half, a quarter, ... of the memory, down to `minGiB`.

    Each is named by its GiB. The function raises a `ValueError` if the memory is less than `minGiB`, or if one of
    the halves is not a whole number of GiB.
    """
    if minGiB < 1:
        raise ValueError(f"minGiB must be at least 1, not {minGiB}")

    def fractions(resource: Resource) -> dict[float, str]:
        found: dict[float, str] = {}
        fraction, mib = WHOLE, float(resource.memMB)
        while mib >= minGiB * _MIB_PER_GIB:
            if mib % _MIB_PER_GIB:
                raise ValueError(
                    f"{resource.memMB} MB cannot be halved down to {minGiB} GiB: {mib / _MIB_PER_GIB:g} GiB is not a "
                    f"whole number; give another minGiB, or memory that is a power of two"
                )
            found[fraction] = str(int(mib) // _MIB_PER_GIB)
            fraction, mib = fraction / 2, mib / 2
        if not found:
            raise ValueError(f"{resource.memMB} MB is less than minGiB={minGiB}; lower minGiB")
        return found

    return fractions


RESOURCE_NAME = "torchx/named_resources.name"
IS_FRACTIONAL = "torchx/named_resources.is_fractional"
