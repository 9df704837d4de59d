"""Names and labels derived from the names of apps, roles and tasks, without I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_launch.schedulers.ids import make_stable
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.owner import owner_of


def file_slug(name: str) -> str:
    """Return `name` with only the characters allowed in names of files and containers; may be empty."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")


def dns_slug(name: str) -> str:
    """Return `name` as a part of a host name: lower-case letters, digits and `-`; may be empty."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def unique_slugs(
    names: Sequence[str],
    slug: Callable[[int, str], str],
    *,
    clash: str,
    compared: Callable[[str], str] = str,
) -> list[str]:
    """Return the slug of each role, for the names of native objects; refuse two roles that would have the same objects.

    `slug` gets number and name of a role; `clash` is the conflict, for the error: `name their Job {} on 'kubernetes'`;
    `compared` returns the text that must be unique, for engines that ignore differences such as case.
    """
    found: dict[str, str] = {}
    slugs = []
    for number, name in enumerate(names):
        text = slug(number, name)
        key = compared(text)
        if key in found:
            raise InvalidAppError(f"roles {found[key]!r} and {name!r} would both {clash.format(repr(key))}; rename one")
        found[key] = name
        slugs.append(text)
    return slugs


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
    """Return the value as Kubernetes accepts it; if it had to be changed, it ends in a hash of the whole value.

    Up to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
    """
    kept = _UNSAFE.sub("_", value).strip("-_.")
    if kept == value and len(kept) <= _LENGTH:
        return kept
    return make_stable(kept[: _LENGTH - 14].rstrip("-_."), value, _LENGTH)


def safe_label_name(name: str) -> str:
    """Return the name of a label as Kubernetes accepts it; if it had to be changed, it ends in a hash.

    A prefix such as `example.com/` is kept if it is a host name; otherwise it becomes a part of the name.
    """
    found = _PREFIX.match(name)
    prefix = found[0] if found else ""
    rest = name[len(prefix) :]
    return prefix + (safe_label(rest) or make_stable("", name, _LENGTH))


def refuse_own_labels(what: str, names: Mapping[str, Any] | None, *others: str) -> None:
    """Refuse labels that the launcher itself uses to find apps."""
    for name in names or {}:
        if name.startswith(_OURS) or name in others:
            raise InvalidAppError(f"{what}: {name!r} belongs to the launcher; rename it")
