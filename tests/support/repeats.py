"""How often what happens by chance is tried: a few times by `make test`, as often as it takes by `make soak`."""

from __future__ import annotations

import os
from typing import TypeVar

__all__ = ["SOAK", "often"]

T = TypeVar("T")

SOAK = os.environ.get("LAUNCH_SOAK", "0") not in ("", "0")


def often(few: T, many: T) -> T:
    """Return `many` in `make soak`, else `few`."""
    return many if SOAK else few
