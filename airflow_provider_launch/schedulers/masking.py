"""Hide the values of variables whose names look like secrets, before a request is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["MASK", "masked_env"]

MASK = "***"
_SENSITIVE = re.compile(
    r"passw|secret|token|api_?key|access_?key|private|credential|(^|_)(auth|pwd|dsn|conn)(_|$)", re.IGNORECASE
)


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `env` in which values under sensitive-looking names are replaced by `***`."""
    return {name: MASK if value and _SENSITIVE.search(name) else value for name, value in env.items()}
