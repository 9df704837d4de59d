"""Options of sbatch that have no option here: pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.specs.errors import InvalidAppError

__all__ = ["applied"]

_OURS = frozenset(
    [
        "array",
        "batch",
        "chdir",
        "comment",
        "cpus-per-task",
        "dependency",
        "deadline",
        "error",
        "export",
        "export-file",
        "get-user-env",
        "gpus-per-task",
        "hold",
        "input",
        "job-name",
        "no-requeue",
        "ntasks",
        "open-mode",
        "output",
        "parsable",
        "quiet",
        "requeue",
        "signal",
        "test-only",
        "wait",
        "wrap",
    ]
)
"""What the launcher itself relies on."""


def applied(options: list[str], overlay: Mapping[str, Any] | None) -> list[str]:
    """Return the options with the overlay: a value replaces, True is a flag, False and None remove, a list repeats.

    Raises:
        InvalidAppError: a name is none of a long option, is the launcher's own, or has no plain value.
    """
    result = list(options)
    for name, value in (overlay or {}).items():
        if not re.fullmatch(r"[a-z][a-z-]+", name):
            raise InvalidAppError(f"option overlay: {name!r} is no long option of sbatch; write 'nice', not '--nice'")
        if name in _OURS:
            raise InvalidAppError(f"option overlay: {name!r} is set by the scheduler 'slurm' itself; leave it out")
        result = [one for one in result if one.partition("=")[0] != f"--{name}"]
        for item in value if isinstance(value, list) else [value]:
            if item is True:
                result.append(f"--{name}")
            elif isinstance(item, str | int | float) and not isinstance(item, bool):
                result.append(f"--{name}={item}")
            elif item not in (None, False):
                raise InvalidAppError(
                    f"option overlay: {name!r} has {type(item).__name__} as value; write text, a number or true"
                )
    return result
