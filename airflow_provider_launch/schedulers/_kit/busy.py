"""Repeating a request for which a server was too busy."""

from __future__ import annotations

import time

from airflow_provider_launch.util.backoff import backoff


class BusyRetry:
    """The pauses of one request, each twice as long as the one before.

    Args:
        first_s: the first pause.
        longest_s: the longest one.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._began = time.monotonic()
        self._pauses = backoff(first_s, longest_s)

    def pause(self, limit_s: float, wanted_s: float | None = None) -> bool:
        """Wait until the request may be repeated; False, at once: that would be too late.

        Args:
            limit_s: how long the request is repeated, from its beginning.
            wanted_s: the pause that the server asks for. None: it does not.
        """
        pause_s = next(self._pauses) if wanted_s is None else wanted_s
        if time.monotonic() + pause_s > self._began + limit_s:
            return False
        time.sleep(pause_s)
        return True
