"""Following the log of one pod: lines as they come, from an exact place on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.schedulers.kubernetes.log_lines import STAMP, LineReader, LineSplitter
from airflow_provider_launch.schedulers.logs import LogLine

_NO_WATCHERS = "too many open files"
_CURE = "raise fs.inotify.max_user_instances on the node"


class StampedLines:
    """Lines of a followed log, see `LineParser`.

    Args:
        cursor: of a read of the pod; empty: from the first line on.
    """

    def __init__(self, cursor: Mapping[str, Any]) -> None:
        self._reader = LineReader(cursor)
        self._splitter = LineSplitter()

    @property
    def since(self) -> str | None:
        """The second from which on the server is asked for lines; None: from the first one on."""
        return self._reader.since

    def feed(self, data: bytes) -> list[LogLine]:
        """Return the lines that these bytes complete."""
        lines: list[LogLine] = []
        self._reader.take(iter(self._splitter.feed(data)), lines, sys.maxsize)
        return lines

    def is_placed(self) -> bool:
        """Whether the place was met from which to go on."""
        return not self._reader.seeking

    def cursor(self) -> dict[str, Any]:
        """Return the place after the last line returned."""
        return self._reader.cursor()

    def refusal(self) -> str:
        """Return what the node reports at the end: text without a time, and without a line feed."""
        text = self._splitter.rest
        if not text or self._reader.within or STAMP.match(text) or not self.is_placed():
            return ""
        message = " ".join(text[:300].decode("utf-8", "replace").split())
        if not message.startswith("failed to "):
            return ""  # the rest of a line that was cut off
        return f"{message}; {_CURE}" if _NO_WATCHERS in message else message
