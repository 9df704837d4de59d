"""Options that differ between the roles of an app, without I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts, checked_options, resolve_options
from airflow_provider_launch.specs.errors import InvalidAppError, InvalidRunConfigException
from airflow_provider_launch.specs.roles import AppDef

BY_ROLE = "by_role"
"""The option that holds the options of single roles."""

OptsT = TypeVar("OptsT", bound=StructuredOpts)


def options_by_role(app: AppDef, opts: OptsT, of_app: Collection[str]) -> dict[str, OptsT]:
    """Return the options of each role: those of the launch, overridden by those for the role in its `by_role`.

    Refuses roles that do not exist, and options that are unknown, wrong, or in `of_app`: those apply to the whole app.
    """
    given: Mapping[str, Mapping[str, Any]] = opts.get(BY_ROLE) or {}
    names = [role.name for role in app.roles]
    if unknown := [name for name in given if name not in names]:
        raise InvalidAppError(
            f"option {BY_ROLE}: the app has no role {unknown[0]!r}; its roles are {', '.join(map(repr, names))}"
        )
    return {name: _of_role(name, opts, given.get(name) or {}, of_app) for name in names}


def _of_role(name: str, opts: OptsT, given: Mapping[str, Any], of_app: Collection[str]) -> OptsT:
    if not given:
        return opts
    kind = type(opts)
    try:
        own = checked_options(kind).registered(given, strict=True)
        if shared := sorted(own.keys() & {BY_ROLE, *of_app}):
            raise InvalidAppError(
                f"option {BY_ROLE}: role {name!r} has {shared[0]!r}, which applies to the whole app; set it outside of "
                f"{BY_ROLE}"
            )
        return resolve_options(kind, {**dict(opts.items()), **own}, strict=True)
    except InvalidRunConfigException as error:
        reason = str(error).partition(". Given:")[0]
        raise InvalidAppError(f"option {BY_ROLE}: role {name!r}: {reason}") from error
