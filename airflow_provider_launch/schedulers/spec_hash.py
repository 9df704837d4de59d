"""Hash of an app and its options, so that a repeated submit can detect a changed definition."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

from airflow_provider_launch.specs.owner import NOT_ASKED_FOR, OWNER
from airflow_provider_launch.specs.roles import AppDef

LINEAGE_PARENT = "OPENLINEAGE_PARENT_ID"
LINEAGE_ROOT_PARENT = "OPENLINEAGE_ROOT_PARENT_ID"
"""Variables with which OpenLineage's integrations find the parent run; they differ in each try."""


def spec_hash(app: AppDef, cfg: Mapping[str, Any], more: Mapping[str, str] | None = None) -> str:
    """Return 16 hex digits that identify the app, its options, and `more`, such as the content of its workspaces.

    Variables that the launcher adds to every role are left out: they differ between two launchers of the same app,
    and a retry on another worker must find its app.
    """
    document = {"app": _plain(_as_asked_for(app)), "cfg": _plain({**_given(cfg), **(more or {})})}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _given(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without later ones that have their defaults, because hashes of older apps must not change."""
    fields = getattr(cfg, "__dataclass_fields__", {})
    later = {name for name, item in fields.items() if item.metadata.get("later") and cfg.get(name) == item.default}
    return {name: value for name, value in cfg.items() if name not in later}


INJECTED = (
    "TORCHX_JOB_ID",
    "TORCHX_INTERNAL_SESSION_ID",
    "TORCHX_PARENT_RUN_ID",
    "TORCHX_TRACKERS",
    "LAUNCH_TRY",
    LINEAGE_PARENT,
    LINEAGE_ROOT_PARENT,
)


def _as_asked_for(app: AppDef) -> AppDef:
    owner = app.metadata.get(OWNER)
    if not isinstance(owner, Mapping) or NOT_ASKED_FOR.isdisjoint(owner):
        return app
    kept = {name: value for name, value in owner.items() if name not in NOT_ASKED_FOR}
    return dataclasses.replace(app, metadata={**app.metadata, OWNER: kept})


def _is_injected(name: str) -> bool:
    return name in INJECTED or (name.startswith("TORCHX_TRACKER_") and name.endswith("_CONFIG"))


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            item.name: _plain(getattr(value, item.name))
            for item in dataclasses.fields(value)
            # A retry after an upgrade must find the app that the older version launched.
            if not (item.metadata.get("later") and getattr(value, item.name) == item.default)
        }
        env = fields.get("env")
        if isinstance(env, dict):
            fields["env"] = {key: text for key, text in env.items() if not _is_injected(key)}
        return {"__type__": type(value).__name__, **fields}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
