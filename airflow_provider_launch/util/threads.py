"""Threads for requests that need not wait for each other, and for an end of those that have no limit of time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

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


def limited(limit_s: float, step: Callable[[], object], end: Callable[[], object]) -> None:
    """Take a step that waits without a limit; if it takes longer, `end` makes it fail.

    Raises:
        TimeoutError: it took longer.
    """
    late = threading.Event()

    def stop() -> None:
        late.set()
        with suppress(Exception):  # what has ended meanwhile cannot be ended; a timer would print it
            end()

    timer = threading.Timer(limit_s, stop)
    timer.daemon = True
    timer.start()
    try:
        step()
    except Exception:
        if not late.is_set():
            raise
    else:
        return
    finally:
        timer.cancel()
    # Not within `except`: the error of the end would be taken for its cause.
    raise TimeoutError(f"no answer by ssh within {limit_s} s")
