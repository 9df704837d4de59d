"""What one follower of a task leaves to the next: from the trigger to the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch._task.cursors import pack, unpack

__all__ = ["FIRE_AFTER_S", "Handover"]

FIRE_AFTER_S = 10.0
"""How long after a deferral a trigger fires at the earliest. See [launch] trigger_fire_after_s."""


@dataclass(frozen=True)
class Handover:
    """How far the log was told."""

    places: Mapping[str, Any] = field(default_factory=dict)
    """`role/replica` to where its log goes on."""
    state: str = ""
    """The state that was told last."""
    tails: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Last lines of the replica that failed first."""
    told: Mapping[str, int] = field(default_factory=dict)
    """Bytes shown by `role/replica`, where there is a limit."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """The attempt that was told of last by `role/replica`, where that is not the first."""
    url: str | None = None
    """The page of the app, if one was named."""
    began: float | None = None
    """Since when the app runs, in epoch seconds, as far as the task has seen."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "places": pack(self.places),
            "state": self.state,
            "tails": {key: [*tail] for key, tail in self.tails.items()},
            "told": dict(self.told),
            "attempts": dict(self.attempts),
            "url": self.url,
            "began": self.began,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Handover:
        """Return what `to_json` gave; what is missing or no such thing is empty."""
        tails, told, attempts = (value.get(name) for name in ("tails", "told", "attempts"))
        return cls(
            unpack(value.get("places")),
            str(value.get("state") or ""),
            {str(key): [str(line) for line in tail] for key, tail in tails.items()}
            if isinstance(tails, Mapping)
            else {},
            dict(told) if isinstance(told, Mapping) else {},
            dict(attempts) if isinstance(attempts, Mapping) else {},
            str(value.get("url") or "") or None,
            began if isinstance(began := value.get("began"), (int, float)) else None,
        )
