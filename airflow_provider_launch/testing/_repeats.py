"""How often what happens by chance is tried: a few times, and many times with `LAUNCH_SOAK=1`."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

SOAK = os.environ.get("LAUNCH_SOAK", "0") not in ("", "0")


def often(few: T, many: T) -> T:
    """Return `many` with `LAUNCH_SOAK=1`, else `few`."""
    return many if SOAK else few
