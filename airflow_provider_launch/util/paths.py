"""Paths that people write."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """Return the path with the home directory in place of `~`; that of an unknown user stays as it is.

    `Path.expanduser` raises a RuntimeError for it, but callers have an error for a path that does not exist.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111 - see above
