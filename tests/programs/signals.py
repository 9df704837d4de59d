"""A program that counts its TERMs, for the tests of cancels on each engine."""

from __future__ import annotations

COUNTS = (
    'count() { n=0; trap \'n=$((n + 1)); echo "$1 TERM $n"\' TERM; echo "$1 up"; i=0; m=0; '
    "while test $i -lt 4000 && test $m -lt 300; do sleep 0.02; i=$((i + 1)); test $n = 0 || m=$((m + 1)); done; }; "
    "count child & count parent; wait"
)
"""Two processes that write a line for each TERM, and end six seconds or more after the first one."""
UP = {"child up\n", "parent up\n"}


def terms(lines: list[str], process: str) -> list[str]:
    """Return the lines about the TERMs of a process."""
    return [line for line in lines if line.startswith(f"{process} TERM")]
