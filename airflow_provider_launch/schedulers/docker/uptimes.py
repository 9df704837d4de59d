"""Which containers somebody else has restarted: only the uptime in the list of the engine shows it."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

from cachetools import LRUCache

_KEPT_CONTAINERS = 50_000
_UP = re.compile(r"Up (?:(?P<number>\d{1,9})|Less than a|About an?) (?P<unit>[a-z]+?)s?(?: \(|$)")
_SECONDS = {
    "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 2_592_000, "year": 31_536_000,
}  # fmt: skip


class Uptimes:
    """Compares the uptimes of two lists; may be used from several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: LRUCache[str, tuple[float, int, int]] = LRUCache(_KEPT_CONTAINERS)

    def restarts(self, row: Mapping[str, Any], at: float) -> int:
        """Return how often the container of a row was seen to begin anew.

        Its program begins once; an observer that sees it run for a shorter time than before sees another start.

        Args:
            row: of the list.
            at: the engine's time of the list in epoch seconds; an older list of another thread may come later.
        """
        up_s = _up_s(row.get("Status") or "")
        with self._lock:
            seen_at, before_s, restarts = self._seen.get(row["Id"], (0.0, up_s or 0, 0))
            if up_s is None or at <= seen_at:
                return restarts
            restarts += up_s < before_s
            self._seen[row["Id"]] = at, up_s, restarts
            return restarts


def _up_s(status: str) -> int | None:
    found = _UP.match(status)
    if found is None or found["unit"] not in _SECONDS:
        return None
    if found["unit"] == "second" and found["number"] is None:
        return 0
    return int(found["number"] or 1) * _SECONDS[found["unit"]]
