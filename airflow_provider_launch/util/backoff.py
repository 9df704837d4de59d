"""Pauses between attempts, with exponential backoff."""

from __future__ import annotations

from collections.abc import Iterator


def backoff(first_s: float, max_s: float) -> Iterator[float]:
    """Yield pauses in seconds, without end: each is twice the previous one, up to `max_s`."""
    pause_s = first_s
    while True:
        yield min(pause_s, max_s)
        pause_s = min(2 * pause_s, max_s)
