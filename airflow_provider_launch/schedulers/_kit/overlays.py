"""Overlays of an app's roles: which there are, where they go, what they may not touch: pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.overlays import MARKER, PUT, apply_overlay, get_overlay
from airflow_provider_launch.specs.roles import AppDef, Role


def refuse_unplaced(app: AppDef, namespace: str, kinds: Sequence[str]) -> None:
    """Refuse overlays that this scheduler cannot place; those of other schedulers are not its own.

    Args:
        app: what shall be launched.
        namespace: the name of the scheduler.
        kinds: of overlays that it takes.

    Raises:
        UnsupportedError: names the place and the kinds that there are.
    """
    taken = f"roles may have {', '.join(kinds)}" if kinds else "it takes none; leave them out"
    places = [("the app", app.metadata, ()), *((f"role {role.name!r}", role.metadata, kinds) for role in app.roles)]
    for what, metadata, known in places:
        stored = metadata.get(namespace)
        if not isinstance(stored, Mapping) or not stored.get(MARKER):
            continue
        for kind in stored:
            if kind not in {MARKER, *known}:
                raise UnsupportedError(f"{what}: overlay {kind!r} cannot be placed by {namespace!r}; {taken}")


def overlays_of(role: Role, namespace: str, kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return kind to overlay of a role, as plain JSON.

    Args:
        role: left as it is.
        namespace: the name of the scheduler.
        kinds: of overlays that it takes; a flat overlay is one of the first.

    Raises:
        InvalidAppError: a file with an overlay cannot be read.
        UnsupportedError: it is no overlay of these kinds.
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
            f"role {role.name!r}: metadata[{namespace!r}] is no overlay that can be placed; "
            f"there are {', '.join(kinds)}"
        )
    return found


def patched(body: dict[str, Any], overlay: Mapping[str, Any], values: macros.Values, what: str) -> dict[str, Any]:
    """Return a copy of a native body with the overlay, in whose texts macros are replaced.

    Args:
        body: left as it is.
        overlay: what `overlays_of` gave for one kind.
        values: of the macros.
        what: role and kind, for the error.

    Raises:
        InvalidAppError: the overlay does not fit.
    """
    if not overlay:
        return body
    result = copy.deepcopy(body)
    try:
        apply_overlay(result, _each_text(overlay, values.substitute))
    except (TypeError, ValueError) as error:
        raise InvalidAppError(f"{what}: {error}") from error
    return result


def refuse_changes(before: Mapping[str, Any], after: Mapping[str, Any], fields: Iterable[str], what: str) -> None:
    """Refuse an overlay that changes what the launcher itself relies on.

    Raises:
        InvalidAppError: names the field.
    """
    for field in fields:
        if before.get(field) != after.get(field):
            raise InvalidAppError(f"{what}.{field} is set by the launcher itself; leave it out of the overlay")


def _plain(value: Any) -> Any:
    """Return the overlay as JSON can hold it: a tuple replaces a list, as `PUT` does."""
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
