"""Which task an app belongs to, as each backend keeps it beside the app."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.util.untrusted import UntrustedError, parse_json

__all__ = ["OWNER", "TRY", "owner_from", "owner_of", "owner_text"]

OWNER = "airflow"
"""The key in `AppDef.metadata` under which the operator writes the task."""
TRY = "try_number"
"""Which try of the task has launched the app; a later one may adopt it, so it is no part of what was asked for."""
_MAX_TEXT = 64 * 1024
_FIELDS = ("dag_id", "run_id", "task_id", "map_index", TRY)


def owner_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return `dag_id`, `run_id`, `task_id`, `map_index` and `try_number` of the task, as far as they are known."""
    found = metadata.get(OWNER)
    if not isinstance(found, Mapping):
        return {}
    return {name: str(found[name]) for name in _FIELDS if name in found}


def owner_text(metadata: Mapping[str, Any]) -> str:
    """Return the same as one line of JSON; empty for an app without a task."""
    owner = owner_of(metadata)
    return json.dumps(owner, separators=(",", ":")) if owner else ""


def owner_from(text: str | None) -> dict[str, str]:
    """Return what `owner_text` gave; empty if it is no such text: anybody can write a label."""
    try:
        found = parse_json(text or "{}", _MAX_TEXT)
    except UntrustedError:
        return {}
    return owner_of({OWNER: found})
