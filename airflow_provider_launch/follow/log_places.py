"""Places in the logs of replicas, as cursors between the chunks of a scheduler, and the steps from one to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_launch.follow.events import AttemptEnded, LogGap, LogLines, Unfinished
    from airflow_provider_launch.schedulers.api import JsonValue

_FROM, _SKIP, _PIECES = "launch_from", "launch_skip", "launch_pieces"


@lru_cache(maxsize=4096)
def replica_key(role: str, replica: int) -> str:
    """Return the name of a replica among the cursors."""
    return f"{role}/{replica}"


def place_after(cursor: JsonValue, lines: int, pieces: int = 0) -> JsonValue:
    """Return the place so many lines after a cursor of the scheduler, which knows only the ends of its chunks.

    Args:
        cursor: of the scheduler.
        lines: after it.
        pieces: of the line that follows them, which were written already.
    """
    if pieces:
        return {_FROM: cursor, _SKIP: lines, _PIECES: pieces}
    return {_FROM: cursor, _SKIP: lines} if lines else cursor


def with_pieces(place: JsonValue, pieces: int) -> JsonValue:
    """Return the place with the pieces of the line there that were written already."""
    return place_after(*cursor_in(place), pieces)


def pieces_in(place: JsonValue) -> int:
    """Return how many pieces of the line at a place were written already."""
    found = place.get(_PIECES) if isinstance(place, Mapping) and _FROM in place else None
    return found if isinstance(found, int) else 0


def cursor_in(place: JsonValue) -> tuple[JsonValue, int]:
    """Return the cursor of the scheduler before a place, and how many lines after it the place is."""
    if isinstance(place, Mapping) and set(place) - {_PIECES} == {_FROM, _SKIP}:
        skip = place[_SKIP]
        return place[_FROM], skip if isinstance(skip, int) else 0
    return place, 0


@dataclass(slots=True)
class LogItem:
    """One step of the log: what to report, and the cursor once it was reported."""

    event: LogLines | Unfinished | AttemptEnded | LogGap | None
    key: str | None = None
    cursor: JsonValue = None
    size: int = 0
    is_streamed: bool = False
    start: JsonValue = None
    """Cursor from which the lines were read; the first `start_skip` after it are not among them."""
    start_skip: int = 0
