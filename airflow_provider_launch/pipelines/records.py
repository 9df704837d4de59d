"""Records of attempts: the executor, code, inputs and outcome of each attempt of a task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from airflow_provider_launch.util.untrusted import clean_json

KEY = "launch_attempts"
"""Key in Airflow's task state store."""
MAX_ATTEMPTS, MAX_BYTES = 50, 48 * 1024


@dataclass
class AttemptRecord:
    """One attempt. Times are ISO 8601 in UTC; likely secrets are masked."""

    try_number: int
    executor: str
    """Type of the executor."""
    started: str
    ended: str = ""
    state: str = "RUNNING"
    """`RUNNING`, `SUCCEEDED`, `FAILED`, `SKIPPED`, or the state that the scheduler reports."""
    handle: str = ""
    exit_codes: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    error: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Input parameters of the task."""
    returned: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Returned values of kind `metric`."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The resolved settings."""
    code: Sequence[Mapping[str, Any]] = ()
    """Identities of the code: see `identities`."""
    catalog: Sequence[Mapping[str, Any]] = ()
    """The copied files, with their hashes."""
    data_dir: str = ""

    @classmethod
    def from_json(cls, value: object) -> AttemptRecord | None:
        """Return the stored record; None if it is not valid, because users can edit the store in the UI."""
        if not isinstance(value, Mapping):
            return None
        known = {item.name: value[item.name] for item in fields(cls) if item.name in value}
        if not all(_is_of(name, found) for name, found in known.items()) or not {"executor", "started"} <= {*known}:
            return None
        return cls(**{"try_number": 0, **known})

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        document: dict[str, Any] = clean_json(asdict(self))
        return document


def _is_of(name: str, value: object) -> bool:
    """Return whether a value has the type of this field of a record."""
    if name == "try_number":
        return isinstance(value, int)
    if name in {"exit_codes", "parameters", "returned", "metrics", "config"}:
        return isinstance(value, Mapping)
    if name == "code":
        return isinstance(value, list) and all(
            isinstance(one, Mapping) and {"type", "identifier", "dependable", "message"} <= {*one} for one in value
        )
    if name == "catalog":
        return isinstance(value, list) and all(isinstance(one, Mapping) for one in value)
    return isinstance(value, str)


def appended(stored: object, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the stored attempts with this one added, or replacing the one of the same start.

    At most 50 are kept, in at most 48 KB: parameters, values and files of the oldest are dropped first, then
    the oldest records.
    """
    known = [dict(one) for one in stored if isinstance(one, Mapping)] if isinstance(stored, list) else []
    if known and known[-1].get("started") == record.get("started"):
        known.pop()
    known = [*known, dict(record)][-MAX_ATTEMPTS:]
    for one in known:
        if _size(known) <= MAX_BYTES:
            break
        one |= {"parameters": {}, "returned": {}, "catalog": []}
    while len(known) > 1 and _size(known) > MAX_BYTES:
        known.pop(0)
    return known


def _size(value: object) -> int:
    return len(json.dumps(value, default=str))


def summary(record: AttemptRecord) -> str:
    """Return an attempt as one line for the task log."""
    code = ", ".join(map(_code_text, record.code))
    files = f"; {len(record.catalog)} files of the catalog" if record.catalog else ""
    return f"attempt {record.try_number} on {record.executor} {record.state}; code: {code or 'unknown'}{files}"


def _code_text(one: Mapping[str, Any]) -> str:
    """Return an identity in a few words: the start of a hash, and why it is not dependable."""
    text = str(one["identifier"])
    name, has_hash, digest = text.rpartition("sha256:")
    shown = f"{name}{has_hash}{digest[:12]}" if has_hash else text[:12] if one["type"] == "git" else text
    if one["dependable"]:
        return f"{one['type']} {shown}"
    return f"{one['type']} {shown} ({one['message'] if one['type'] == 'git' else 'may have changed'})"
