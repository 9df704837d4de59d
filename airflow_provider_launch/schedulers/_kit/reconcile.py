"""The loop in which an observer brings an app on: read it, decide, do one step, read it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def reconcile(read: Callable[[], T | None], act: Callable[[T], bool], *, rounds: int) -> T | None:
    """Return the app as it was read last; None: it is gone.

    Args:
        read: reads the app and decides what it needs, whatever an earlier round found.
        act: does one step; False: nothing is left to do now, or others must do it.
        rounds: how many steps at most; what is left is for the next poll.
    """
    found: T | None = None
    for _ in range(rounds):
        found = read()
        if found is None or not act(found):
            break
    return found
