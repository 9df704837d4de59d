"""How far an app was followed: passed from one part of a task to the next, and stored as JSON."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.specs.roles import MAX_REPLICAS
from airflow_provider_launch.util.untrusted import parse_json

_MOST_SECONDS = 1e12
FIRE_AFTER_S = 10.0
"""Shortest time in seconds from a deferral until its trigger fires. See [launch] trigger_fire_after_s."""


@dataclass(frozen=True)
class FollowProgress:
    """How far an app was followed.

    A worker passes it to its trigger, a trigger to the next one and to the worker that resumes, and a rescheduled
    sensor to its next run.
    """

    cursors: Mapping[str, Any] = field(default_factory=dict)
    """`role/replica` to where its log continues."""
    state: str = ""
    """The last state that was logged."""
    tails: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Last lines by `role/replica`; if the app has ended, only of the replica that failed first."""
    shown_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes shown by `role/replica`, if there is a limit."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """The last attempt that was logged by `role/replica`, unless it is the first."""
    url: str | None = None
    """The page of the app in its scheduler's user interface, if there is one."""
    began: float | None = None
    """Epoch seconds of the first state after PENDING that the task has seen."""
    deadline: float | None = None
    """Epoch seconds until which a restarted trigger waits."""

    since: float | None = None
    """Epoch seconds of the app's first submission, by any try; its start limit counts from then."""
    roles: Mapping[str, int] = field(default_factory=dict)
    """Number of replicas by role, for schedulers that may not report roles."""
    has_gap: bool = False
    """Whether lines may be missing in the task log."""

    def start_by(self, limit_s: float | None, since: float) -> float | None:
        """Return the epoch seconds by which the app must have started; None if it has started, or has no limit."""
        return None if limit_s is None or self.began is not None else since + limit_s

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON without empty fields."""
        values = {
            "cursors": pack(self.cursors) if self.cursors else None,
            "state": self.state,
            "tails": {key: [*tail] for key, tail in self.tails.items()},
            "shown_bytes": dict(self.shown_bytes),
            "attempts": dict(self.attempts),
            "url": self.url,
            "began": self.began,
            "deadline": self.deadline,
            "since": self.since,
            "roles": dict(self.roles),
            "has_gap": self.has_gap,
        }
        return {name: value for name, value in values.items() if value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FollowProgress:
        """Return what `to_json` gave; missing or invalid fields are empty, because users can edit the stored value."""
        names = ("tails", "shown_bytes", "attempts", "roles")
        tails, shown, attempts, roles = (_mapping(value.get(name)) for name in names)
        return cls(
            unpack(value.get("cursors")),
            str(value.get("state") or ""),
            {str(key): [str(line) for line in tail] for key, tail in tails.items() if isinstance(tail, Sequence)},
            {str(key): size for key, size in shown.items() if isinstance(size, int)},
            {str(key): number for key, number in attempts.items() if isinstance(number, int)},
            str(value.get("url") or "") or None,
            _number(value.get("began")),
            _number(value.get("deadline")),
            _number(value.get("since")),
            _replicas(roles),
            has_gap=bool(value.get("has_gap")),
        )


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return value if abs(value) < _MOST_SECONDS else None  # larger values are not valid times


def _replicas(roles: Mapping[Any, Any]) -> dict[str, int]:
    """Return the number of replicas of each role, up to the limit of an app, because each takes memory."""
    found: dict[str, int] = {}
    left = MAX_REPLICAS
    for name, count in roles.items():
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= left > 0:
            found[str(name)] = count
            left -= max(1, count)
    return found


MAX_PACKED = 60_000
_MAX_PACKED_TEXT, _MAX_TEXT = 1024 * 1024, 4 * 1024 * 1024
_MAX_PARTS = 500_000
"""Lists, objects and values in the text: about twenty for each replica."""


def pack(cursors: Mapping[str, Any]) -> str:
    """Return the cursors as short text."""
    text = json.dumps(cursors, separators=(",", ":"), sort_keys=True)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpack(packed: object) -> dict[str, Any]:
    """Return the cursors; empty if the text is not valid, because users can edit the store in the UI."""
    if not isinstance(packed, str) or len(packed) > _MAX_PACKED_TEXT:
        return {}
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(base64.b64decode(packed), _MAX_TEXT)
        if inflater.unconsumed_tail:
            return {}  # not packed here: 60 KB can expand to a thousand times as much text
        if sum(map(text.count, (b",", b"[", b"{"))) > _MAX_PARTS:
            return {}
        cursors = parse_json(text, _MAX_TEXT)
    except (ValueError, zlib.error):
        return {}
    return cursors if isinstance(cursors, dict) else {}
