"""Types of connections of plug-ins, and strict checks of extras, which Airflow, a shell and a file store unchecked."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts, checked_options, resolve_options
from airflow_provider_launch.specs.errors import InvalidAppError, InvalidRunConfigException, MissingDependencyError
from airflow_provider_launch.specs.runopts import runopts
from airflow_provider_launch.util import entrypoints

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CONNECTIONS_GROUP = "airflow_provider_launch.connections"
"""Entry points: the type of the connection to the class of its scheduler, `launch_tsp = "launch_tsp:TspScheduler"`."""


def plugin_types() -> dict[str, EntryPoint]:
    """Return the types by name; nothing is imported."""
    return _types_on(tuple(sys.path))


@lru_cache(maxsize=4)
def _types_on(path: tuple[str, ...]) -> dict[str, EntryPoint]:  # noqa: ARG001 - what is found depends on it
    # Each search reads all installed distributions, and each task and trigger asks for its connection.
    return entrypoints.find(CONNECTIONS_GROUP)


@lru_cache(maxsize=64)
def plugin_scheduler(conn_type: str) -> type[Any] | None:
    """Return the class of the scheduler of a type; None if no plug-in has registered the type.

    Refuses an entry point that cannot be imported, or that is not a class with options.
    """
    found = plugin_types().get(conn_type)
    if found is None:
        return None
    try:
        scheduler = found.load()
    except ImportError as error:
        raise MissingDependencyError(
            f"the plug-in of connection type {conn_type!r} cannot be imported: {error}"
        ) from error
    for name in ("connection_type", "opts_type"):
        options = getattr(scheduler, name, None)
        if not (isinstance(options, type) and issubclass(options, StructuredOpts)):
            raise InvalidAppError(
                f"connection type {conn_type!r}: {found.value!r} must be a class of a scheduler whose {name!r} is a "
                f"subclass of StructuredOpts; fix the entry point of the plug-in"
            )
    if not isinstance(getattr(scheduler, "name", None), str):
        raise InvalidAppError(
            f"connection type {conn_type!r}: {found.value!r} must have the attribute 'name', under which its "
            f"scheduler is registered; fix the plug-in"
        )
    kind: type[Any] = scheduler
    return kind


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
    max_time_limit_s: float | None = None
    """Maximum `time_limit_s` of a launch, of a plug-in whose options do not have it; see `common_extras`."""


def split_extras(
    extras: Mapping[str, Any], connection: type[StructuredOpts], opts: type[StructuredOpts]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all fields of `connection`, and the set fields of `opts`; refuse unknown extras and wrong values.

    None counts as unset, because a form stores null for an empty field. Text is cast, because a URI has only text.
    """
    of_connection, of_opts = checked_options(connection), checked_options(opts)
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
    """Return the content of a connection of type `launch`, which names a scheduler of a plug-in."""
    known = {"scheduler": str, "params": Mapping, "cfg": Mapping}
    common, rest = common_extras(extras)
    given = {key: value for key, value in rest.items() if value is not None}
    for key, value in given.items():
        if key not in known:
            raise InvalidAppError(
                f"unknown extra {key!r}; there are {', '.join((*known, *_COMMON))}, and options of the scheduler go "
                f"into 'cfg'"
            )
        if not isinstance(value, known[key]):
            kind = "text" if key == "scheduler" else "an object"
            raise InvalidAppError(f"extra {key!r} must be {kind}, not {type(value).__name__}")
    if not given.get("scheduler"):
        raise InvalidAppError("the extra 'scheduler' is missing; name a scheduler that a plug-in registers")
    params = dict(given.get("params", {}))
    if "locked" in params:
        raise InvalidAppError("the extra 'locked' must be next to 'params', not in it; move it")
    return _options_of(given["scheduler"], params, dict(given.get("cfg", {})), common)


def typed_plugin_options(extras: Mapping[str, Any], scheduler: type[Any]) -> LaunchOptions:
    """Return the content of a connection whose type a plug-in has registered, by the class of its scheduler."""
    common, rest = common_extras(extras, scheduler.connection_type.as_runopts())
    params, cfg = split_extras(rest, scheduler.connection_type, scheduler.opts_type)
    common.setdefault("locked", params.get("locked") or [])
    return _options_of(scheduler.name, params, cfg, common)


_COMMON: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "locked": (list, "a list of names"),
    "max_time_limit_s": ((int, float), "a number of seconds"),
}
"""Extras of every connection of a plug-in, to their types; `placeholders` too, which is read for all connections."""


def common_extras(extras: Mapping[str, Any], own: runopts | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the extras that every connection of a plug-in may have, and the others.

    Options of the connection, `own`, of the same name are among the others.
    """
    names = [name for name in _COMMON if own is None or own.registered_name(name) is None]
    common = {name: extras[name] for name in names if extras.get(name) is not None}
    # A URI has only text.
    if isinstance(locked := common.get("locked"), str):
        common["locked"] = [name.strip() for name in locked.split(",") if name.strip()]
    if isinstance(limit := common.get("max_time_limit_s"), str):
        with contextlib.suppress(ValueError):
            common["max_time_limit_s"] = float(limit)
    for name, value in common.items():
        kind, text = _COMMON[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InvalidAppError(f"extra {name!r} must be {text}, not {type(value).__name__}")
    if not common.get("max_time_limit_s", 1) >= 1:
        raise InvalidAppError("extra 'max_time_limit_s' must be 1 or more seconds")
    return common, {name: value for name, value in extras.items() if name not in names}


def _options_of(
    scheduler: str, params: dict[str, Any], cfg: dict[str, Any], common: Mapping[str, Any]
) -> LaunchOptions:
    digest = hashlib.sha256(json.dumps(params, sort_keys=True, default=repr).encode()).hexdigest()[:12]
    return LaunchOptions(
        scheduler,
        params,
        cfg,
        f"{scheduler} {digest}",
        tuple(map(str, common.get("locked", ()))),
        max_time_limit_s=common.get("max_time_limit_s"),
    )


_BYPASSES = ("overlay", "pod_template", "job_definition", "volumes", "init_containers", "sidecars", "by_role")
"""Options that could do the same as locked ones, or override them; tasks cannot use them if any option is locked."""
_OUTSIDE = {"setup": ("container", "container_mounts")}
"""Options that run commands before the container starts, and the options whose lock they would bypass."""


def refuse_locked(conn_id: str, options: LaunchOptions, schema: runopts, given: Iterable[str]) -> None:
    """Refuse options of a task, in any spelling, that the connection locks, and locks on names that are not options."""
    if not options.locked:
        return
    for name in options.locked:
        if schema.registered_name(name) is None:
            raise InvalidAppError(
                f"connection {conn_id!r} locks {name!r}, which is not an option of {options.backend!r}; fix the name"
            )
    locked = {schema.registered_name(name) for name in options.locked}
    outside = [name for name, bypassed in _OUTSIDE.items() if locked & {*bypassed}]
    bypasses = {schema.registered_name(name) for name in (*_BYPASSES, *outside)}
    locked |= bypasses
    for name in given:
        if (known := schema.registered_name(name)) is not None and known in locked:
            reason = (
                f"because {known} could override locked options" if known in bypasses else "so tasks cannot change it"
            )
            raise InvalidRunConfigException(
                f"option {name!r} is locked by connection {conn_id!r}, {reason}; leave it out, or ask the "
                f"administrator of the connection",
                name,
                dict.fromkeys(given),
            )


def refuse_standard_fields(conn_id: str, used: Mapping[str, object]) -> None:
    """Refuse values in standard fields that this connection type does not use."""
    names = [name for name, value in used.items() if value]
    if names:
        raise InvalidAppError(
            f"connection {conn_id!r} sets {', '.join(names)}, which its type does not use; "
            f"leave {'it' if len(names) == 1 else 'them'} empty, and put options into the extra fields"
        )
