"""The option `overlay`: applies options of sbatch that have no option here, without I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.specs.errors import InvalidAppError

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
        "wait",
        "wrap",
    ]
)
"""Options that the launcher sets itself."""
_WHERE = frozenset(["cluster-constraint", "clusters"])
"""Options that may submit the job to another cluster, which this connection does not see."""
_WHETHER = frozenset(["help", "test-only", "usage", "version"])
"""Options with which sbatch submits nothing."""
_LIKE_OURS = frozenset(["gpus"])
"""Options that are a prefix of another option."""


def applied(options: list[str], overlay: Mapping[str, Any] | None) -> list[str]:
    """Return the options with the overlay: a value replaces, True is a flag, False and None remove, a list repeats.

    Refuses names that are not long options, or that the launcher sets itself, and values that are not plain.
    """
    result = list(options)
    for name, value in (overlay or {}).items():
        if not re.fullmatch(r"[a-z][a-z-]+", name):
            raise InvalidAppError(f"option overlay: {name!r} is not a valid long option; write 'nice', not '--nice'")
        _refuse_reserved(name)
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


def applied_to_step(options: list[str], overlay: Mapping[str, Any] | None) -> list[str]:
    """Return the options of a step with those overlay options that the step has, too."""
    names = {one.partition("=")[0].removeprefix("--") for one in options}
    return applied(options, {name: value for name, value in (overlay or {}).items() if name in names})


def _refuse_reserved(name: str) -> None:
    # sbatch accepts a prefix of a name.
    meant = {one for one in _OURS | _WHERE | _WHETHER if one.startswith(name) and name not in _LIKE_OURS}
    if meant & _WHERE:
        raise InvalidAppError(
            f"option overlay: {name!r} may submit the job to a cluster that this connection does not see; leave it "
            f"out, and use a connection with the slurm_conf or ssh_host of that cluster"
        )
    if meant & _WHETHER:
        raise InvalidAppError(f"option overlay: with {name!r} sbatch submits nothing; leave it out")
    if meant:
        raise InvalidAppError(f"option overlay: {name!r} is set by the scheduler 'slurm' itself; leave it out")
