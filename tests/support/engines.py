"""Which engines the environment asks for: `LAUNCH_REQUIRE_ENGINES=all`, or names with commas between."""

from __future__ import annotations

import os

__all__ = ["required"]


def required(engine: str) -> bool:
    """Return whether a machine without the engine is an error; root may then install it."""
    wanted = os.environ.get("LAUNCH_REQUIRE_ENGINES", "")
    return wanted == "all" or engine in wanted.split(",")
