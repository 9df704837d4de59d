"""Run independent calls in parallel threads, and limit the time of a call that has no timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

_PARALLEL = 4

T = TypeVar("T")


def for_each_parallel(call: Callable[[T], object], items: Iterable[T]) -> None:
    """Call for each item, up to four at once; raise the first error when all are done."""
    todo = list(items)
    if len(todo) < 2:  # noqa: PLR2004 - one call needs no thread
        for item in todo:
            call(item)
        return
    with ThreadPoolExecutor(min(_PARALLEL, len(todo)), thread_name_prefix="launch-each") as pool:
        for future in [pool.submit(call, item) for item in todo]:
            future.result()


def limited(limit_s: float, step: Callable[[], object], end: Callable[[], object]) -> None:
    """Run a call that has no timeout; if it takes longer than the limit, `end` makes it fail: TimeoutError."""
    late = threading.Event()

    def stop() -> None:
        late.set()
        with suppress(Exception):  # the step may have ended in the meantime; a timer would print the error
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
    # Not inside `except`: the error of the ended step would be shown as the cause.
    raise TimeoutError(f"no answer by ssh within {limit_s} s")
