"""Labels that name the task of an app, in the form of the operators of other providers: pure.

Their users select by them: `kubectl get pods -l dag_id=...`, `docker ps -f label=dag_id=...`, cost reports, policies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.schedulers.ids import make_stable
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.owner import owner_of

_OURS = "launch.io/"
_LENGTH = 63
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_PART = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_PREFIX = re.compile(rf"(?=.{{1,253}}/){_PART}(?:\.{_PART})*/")


def task_labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return `dag_id`, `task_id`, `run_id`, `try_number` and, of a mapped task, `map_index`, with their full values."""
    owner = owner_of(metadata)
    names = ("dag_id", "task_id", "run_id", "map_index", "try_number")
    return {name: owner[name] for name in names if name in owner and (name != "map_index" or owner[name] != "-1")}


def safe_label(value: str) -> str:
    """Return the value in the form that Kubernetes takes; one that had to be changed ends in a hash of the whole.

    Up to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
    """
    kept = _UNSAFE.sub("_", value).strip("-_.")
    if kept == value and len(kept) <= _LENGTH:
        return kept
    return make_stable(kept[: _LENGTH - 14].rstrip("-_."), value, _LENGTH)


def safe_label_name(name: str) -> str:
    """Return the name of a label in the form that Kubernetes takes; one that had to be changed ends in a hash.

    A prefix such as `example.com/` is kept where it is a host name; else it becomes a part of the name.
    """
    found = _PREFIX.match(name)
    prefix = found[0] if found else ""
    rest = name[len(prefix) :]
    return prefix + (safe_label(rest) or make_stable("", name, _LENGTH))


def refuse_own_labels(what: str, names: Mapping[str, Any] | None, *others: str) -> None:
    """Refuse labels that the launcher itself finds apps by.

    Raises:
        InvalidAppError: with the name.
    """
    for name in names or {}:
        if name.startswith(_OURS) or name in others:
            raise InvalidAppError(f"{what}: {name!r} belongs to the launcher; rename it")
