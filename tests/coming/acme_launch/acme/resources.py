"""A named resource, and what programs can read of it."""

from __future__ import annotations

from torchx.specs import Resource


def small() -> Resource:
    """Return the smallest host."""
    return Resource(cpu=1, gpu=0, memMB=256, tags={"room": "acme"})
