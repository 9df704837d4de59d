"""Where events go."""

from __future__ import annotations

import logging


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return the handler of a destination: `console` writes to stderr, `null` nowhere.

    Raises:
        ValueError: there is no such destination.
    """
    if destination == "null":
        return logging.NullHandler()
    if destination == "console":
        return logging.StreamHandler()
    raise ValueError(f"no event destination {destination!r}; there are `console` and `null`")
