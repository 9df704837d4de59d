"""What one follower of a task leaves to the next: from the trigger to the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.hooks.cursors import pack, unpack

__all__ = ["Handover"]


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

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "places": pack(self.places),
            "state": self.state,
            "tails": {key: [*tail] for key, tail in self.tails.items()},
            "told": dict(self.told),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Handover:
        """Return what `to_json` gave; what is missing or no such thing is empty."""
        tails, told = value.get("tails"), value.get("told")
        return cls(
            unpack(value.get("places")),
            str(value.get("state") or ""),
            {str(key): [str(line) for line in tail] for key, tail in tails.items()}
            if isinstance(tails, Mapping)
            else {},
            dict(told) if isinstance(told, Mapping) else {},
        )
