"""Logging handlers for events."""

from __future__ import annotations

import logging


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return the handler of a destination: `console` writes to stderr, `null` nowhere.

    Raises:
        ValueError: the destination does not exist.
    """
    if destination == "null":
        return logging.NullHandler()
    if destination == "console":
        return logging.StreamHandler()
    raise ValueError(f"unknown event destination {destination!r}; use `console` or `null`")
