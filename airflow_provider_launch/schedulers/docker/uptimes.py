"""Which containers somebody else has restarted: only the uptime in the list of the engine shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cachetools import LRUCache

__all__ = ["Uptimes"]

_KEPT_CONTAINERS = 50_000
_UP = re.compile(r"Up (?:(?P<number>\d+)|Less than a|About an?) (?P<unit>[a-z]+?)s?(?: \(|$)")
_SECONDS = {
    "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 2_592_000, "year": 31_536_000,
}  # fmt: skip


class Uptimes:
    """Compares the uptimes of two lists; may be used from several threads at once."""

    def __init__(self) -> None:
        self._seen: LRUCache[str, tuple[int, int]] = LRUCache(_KEPT_CONTAINERS)

    def restarts(self, row: Mapping[str, Any]) -> int:
        """Return how often the container of a row was seen to begin anew.

        Its program begins once; an observer that sees it run for a shorter time than before sees another start.
        """
        found = _UP.match(row.get("Status") or "")
        known = self._seen.get(row["Id"])
        if found is None or found["unit"] not in _SECONDS:
            return known[1] if known else 0
        up_s = int(found["number"] or 1) * _SECONDS[found["unit"]]
        if found["unit"] == "second" and found["number"] is None:
            up_s = 0
        before_s, restarts = known or (up_s, 0)
        restarts += up_s < before_s
        self._seen[row["Id"]] = up_s, restarts
        return restarts
