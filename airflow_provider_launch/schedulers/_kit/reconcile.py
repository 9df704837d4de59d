"""The reconcile loop: read the app, decide, do one step, read it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def reconcile(read: Callable[[], T | None], act: Callable[[T], bool], *, rounds: int) -> T | None:
    """Return the app as it was read last; None: it no longer exists.

    Args:
        read: reads the app and decides the next step, independent of earlier rounds.
        act: does one step; False: there is nothing to do now, or another process must do it.
        rounds: maximum number of steps; the rest is left to the next poll.
    """
    found: T | None = None
    for _ in range(rounds):
        found = read()
        if found is None or not act(found):
            break
    return found
