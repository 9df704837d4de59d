"""One named resource."""

from __future__ import annotations

from torchx.specs import Resource


def small() -> Resource:
    return Resource(cpu=1, gpu=0, memMB=128)
