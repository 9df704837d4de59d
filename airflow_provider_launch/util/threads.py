"""Threads for requests that need not wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["for_each_parallel"]

_PARALLEL = 4

T = TypeVar("T")


def for_each_parallel(call: Callable[[T], object], items: Iterable[T]) -> None:
    """Call for each item, up to four at once; the first error is raised when all have been tried."""
    todo = list(items)
    if len(todo) < 2:  # noqa: PLR2004 - one needs no thread
        for item in todo:
            call(item)
        return
    with ThreadPoolExecutor(min(_PARALLEL, len(todo)), thread_name_prefix="launch-each") as pool:
        for future in [pool.submit(call, item) for item in todo]:
            future.result()
