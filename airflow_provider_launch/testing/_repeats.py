"""Number of repetitions of random tests: few by default, many with `LAUNCH_SOAK=1`."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

SOAK = os.environ.get("LAUNCH_SOAK", "0") not in ("", "0")


def often(few: T, many: T) -> T:
    """Return `many` with `LAUNCH_SOAK=1`, else `few`."""
    return many if SOAK else few
