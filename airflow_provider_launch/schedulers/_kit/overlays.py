"""Overlays of an app's roles: finds, checks and applies them, without I/O."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.overlays import MARKER, PUT, apply_overlay, get_overlay
from airflow_provider_launch.specs.roles import AppDef, Role


def refuse_unsupported_overlays(app: AppDef, namespace: str, kinds: Sequence[str]) -> None:
    """Refuse overlays of other `kinds` than this scheduler can apply; those of other schedulers are ignored."""
    taken = f"roles may have {', '.join(kinds)}" if kinds else "it supports none; leave them out"
    flat = app.metadata.get(namespace)
    is_flat = isinstance(flat, str) or (isinstance(flat, Mapping) and not flat.get(MARKER))
    if kinds and flat and is_flat:
        raise UnsupportedError(
            f"the app: metadata[{namespace!r}] is an overlay or a file with one, which {namespace!r} cannot apply to "
            f"an app; set it on each role by `set_overlay`"
        )
    owners = [("the app", app.metadata, ()), *((f"role {role.name!r}", role.metadata, kinds) for role in app.roles)]
    for what, metadata, supported in owners:
        stored = metadata.get(namespace)
        if not isinstance(stored, Mapping) or not stored.get(MARKER):
            continue
        for kind in stored:
            if kind not in {MARKER, *supported}:
                raise UnsupportedError(f"{what}: overlay {kind!r} cannot be applied by {namespace!r}; {taken}")


def overlays_of(role: Role, namespace: str, kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the overlays of a role by kind, as plain JSON; a flat overlay is one of the first kind.

    Raises:
        InvalidAppError: a file with an overlay cannot be read.
    """
    stored = role.metadata.get(namespace)
    if stored is None:
        return {}
    found = {}
    try:
        for kind in kinds:
            if overlay := get_overlay(role, namespace, kind, flat_fallback=kind == kinds[0]):
                found[kind] = _plain(overlay)
    except ValueError as error:
        raise InvalidAppError(f"role {role.name!r}: {error}") from error
    is_marked = isinstance(stored, Mapping) and stored.get(MARKER)
    if stored and not found and not is_marked:
        raise UnsupportedError(
            f"role {role.name!r}: metadata[{namespace!r}] is not a valid overlay; "
            f"the supported kinds are {', '.join(kinds)}"
        )
    return found


def patched(body: dict[str, Any], overlay: Mapping[str, Any], values: macros.Values, what: str) -> dict[str, Any]:
    """Return a copy of a native body with an overlay of `overlays_of`, after its macros are replaced."""
    if not overlay:
        return body
    result = copy.deepcopy(body)
    try:
        apply_overlay(result, _each_text(overlay, values.substitute))
    except (TypeError, ValueError) as error:
        raise InvalidAppError(f"{what}: {error}") from error
    return result


def refuse_changes(before: Mapping[str, Any], after: Mapping[str, Any], fields: Iterable[str], what: str) -> None:
    """Refuse an overlay that changes fields which the launcher itself sets."""
    for field in fields:
        if before.get(field) != after.get(field):
            raise InvalidAppError(f"{what}.{field} is set by the launcher itself; leave it out of the overlay")


def plain(overlay: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the overlay of an option as plain JSON; refuse other objects."""
    found: dict[str, Any] = _plain(overlay)
    try:
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidAppError(
            f"{what} has a value that is not valid JSON ({error}); write its objects as dicts"
        ) from error
    return found


def _plain(value: Any) -> Any:
    """Return the overlay as plain JSON: a tuple becomes a list that replaces the old one, as with `PUT`."""
    if isinstance(value, Mapping):
        return {
            (PUT(key) if isinstance(item, tuple) and not str(key).startswith("__") else key): _plain(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each_text(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_each_text(item, change) for item in value]
    return value
