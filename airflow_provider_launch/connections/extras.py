"""Strict checks of a connection's extras, which Airflow, a shell and a file store unchecked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts, resolve_options
from airflow_provider_launch.specs.errors import InvalidAppError, InvalidRunConfigException
from airflow_provider_launch.specs.runopts import runopts

__all__ = [
    "LaunchOptions",
    "plugin_options",
    "refuse_locked",
    "refuse_standard_fields",
    "split_extras",
]


@dataclass(frozen=True)
class LaunchOptions:
    """The content of a connection: a scheduler, its location and default options."""

    backend: str
    """Registry name of the scheduler."""
    params: Mapping[str, Any]
    """Keyword arguments for the factory of the scheduler: its location and access."""
    cfg: Mapping[str, Any]
    """Launch options set by the connection; the operator's `cfg` overrides them."""
    identity: str
    """One line without secrets that differs between connections that do not see each other's apps."""
    locked: tuple[str, ...] = ()
    """Names of options in `cfg` that tasks cannot change."""
    placeholders: Mapping[str, Any] = field(default_factory=dict)
    """Values by name for settings that steps of pipelines leave to the connection."""


def split_extras(
    extras: Mapping[str, Any], connection: type[StructuredOpts], opts: type[StructuredOpts]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all fields of `connection`, and the set fields of `opts`.

    None counts as unset, because a form stores null for an empty field. Text is cast, because a URI has only text.

    Raises:
        InvalidRunConfigException: an extra is unknown or has a wrong value; the text names it.
    """
    of_connection, of_opts = connection.as_runopts(), opts.as_runopts()
    given: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for key, value in extras.items():
        if of_connection.registered_name(key) is not None:
            given[0][key] = value
        elif of_opts.registered_name(key) is not None:
            given[1][key] = value
        else:
            raise (of_connection | of_opts).unknown(key, extras)
    where = resolve_options(connection, given[0])
    how = resolve_options(opts, given[1])
    set_names = [name for name, value in of_opts.registered(given[1]).items() if value is not None]
    return {item.name: getattr(where, item.name) for item in fields(where)}, {name: how[name] for name in set_names}  # type: ignore[arg-type]  # options are dataclasses


def plugin_options(extras: Mapping[str, Any]) -> LaunchOptions:
    """Return the content of a connection of type `launch`, which names a scheduler of a plug-in.

    Raises:
        InvalidAppError: an extra is unknown, wrong or missing.
    """
    known = {"scheduler": str, "params": Mapping, "cfg": Mapping, "locked": list}
    given = {key: value for key, value in extras.items() if value is not None}
    for key, value in given.items():
        if key not in known:
            raise InvalidAppError(
                f"unknown extra {key!r}; there are {', '.join(known)}, and options of the scheduler go into 'cfg'"
            )
        if not isinstance(value, known[key]):
            kind = {"scheduler": "text", "locked": "a list of names"}.get(key, "an object")
            raise InvalidAppError(f"extra {key!r} must be {kind}, not {type(value).__name__}")
    if not given.get("scheduler"):
        raise InvalidAppError("the extra 'scheduler' is missing; name a scheduler that a plug-in registers")
    params = dict(given.get("params", {}))
    digest = hashlib.sha256(json.dumps(params, sort_keys=True, default=repr).encode()).hexdigest()[:12]
    locked = tuple(map(str, given.get("locked", ())))
    return LaunchOptions(
        given["scheduler"], params, dict(given.get("cfg", {})), f"{given['scheduler']} {digest}", locked
    )


_BYPASSES = {
    "overlay": "an overlay could override",
    "job_definition": "the defaults of a job definition could override",
}
"""Options that a connection with locked options locks, too, and the reason."""


def refuse_locked(conn_id: str, options: LaunchOptions, schema: runopts, given: Iterable[str]) -> None:
    """Refuse options of a task that the connection locks.

    Args:
        conn_id: the connection.
        options: options of the connection.
        schema: the options of its scheduler.
        given: names of the options that the task sets, in any spelling.

    Raises:
        InvalidAppError: the connection locks a name that is not an option.
        InvalidRunConfigException: the task sets an option that is locked.
    """
    if not options.locked:
        return
    for name in options.locked:
        if schema.registered_name(name) is None:
            raise InvalidAppError(
                f"connection {conn_id!r} locks {name!r}, which is not an option of {options.backend!r}; fix the name"
            )
    locked = {schema.registered_name(name) for name in (*options.locked, *_BYPASSES)}
    for name in given:
        if (known := schema.registered_name(name)) is not None and known in locked:
            reason = (
                "so tasks cannot change it" if name not in _BYPASSES else f"because {_BYPASSES[name]} locked options"
            )
            raise InvalidRunConfigException(
                f"option {name!r} is locked by connection {conn_id!r}, {reason}; leave it out, or ask the "
                f"administrator of the connection",
                name,
                dict.fromkeys(given),
            )


def refuse_standard_fields(conn_id: str, used: Mapping[str, object]) -> None:
    """Refuse values in standard fields that this connection type does not use.

    Raises:
        InvalidAppError: names the fields.
    """
    names = [name for name, value in used.items() if value]
    if names:
        raise InvalidAppError(
            f"connection {conn_id!r} sets {', '.join(names)}, which its type does not use; "
            f"leave {'it' if len(names) == 1 else 'them'} empty, and put options into the extra fields"
        )
