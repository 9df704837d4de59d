"""Values that no log of a task may show: found where they are known, registered where lines are written.

Airflow masks what a process has fetched, and a triggerer has not fetched what a worker put into an app. The worker
hands over the places of such values, and the log writer reads the values from what the scheduler keeps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.secrets import MASK, hidden_in_args, hidden_in_env

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import Scheduler
    from airflow_provider_launch.specs.dryrun import AppDryRunInfo
    from airflow_provider_launch.specs.roles import AppDef, Role

__all__ = ["Place", "aregister", "copied_variables", "hidden_values", "kept_values", "places_of", "register"]

_SHORTEST = 5
"""Airflow masks nothing shorter, and warns of it."""
_NO_SECRETS = frozenset({"false", "enabled", "disabled", "default", "basic", "bearer", "always", "never"})

Place = Sequence[Any]
"""`[role, "env" | "args" | "copied", name or number, start, end]`; of a copied variable the whole value counts."""


def places_of(app: AppDef, copied: Mapping[str, Mapping[str, str]]) -> list[Place]:
    """Return the places of the app's values that this process masks.

    Args:
        app: rendered.
        copied: variables of the launcher that replicas inherit, by role.
    """
    found: list[Place] = []
    for role in app.roles:
        for kind, name, text in _texts(role):
            found += [[role.name, kind, name, start, end] for start, end in _hidden_spans(text)]
        by_name = {*hidden_in_env(role.env), *hidden_in_args(role.args)}
        for kind, name, text in _texts(role):
            found += [[role.name, kind, name, text.index(value), text.index(value) + len(value)]
                      for value in by_name if value in text]  # fmt: skip
    for role_name, env in copied.items():
        found += [[role_name, "copied", name, 0, None] for name, value in env.items() if hidden_in_env({name: value})]
        found += [[role_name, "copied", name, 0, None] for name, value in env.items() if any(_hidden_spans(value))]
    return found


def hidden_values(roles: Iterable[Role], copied: Mapping[str, Mapping[str, str]], places: Iterable[Place]) -> set[str]:
    """Return the values under names that look like secrets, and those at the places; what is not there is passed."""
    roles = list(roles)
    texts = {(role.name, kind, name): text for role in roles for kind, name, text in _texts(role)}
    texts |= {(role_name, "copied", name): text for role_name, env in copied.items() for name, text in env.items()}
    found: set[str] = set()
    for role_name, kind, name, start, end in places:
        found.add(texts.get((role_name, kind, name), "")[start:end])
    for role in roles:
        found |= {*hidden_in_env(role.env), *hidden_in_args(role.args)}
    for env in copied.values():
        found |= {*hidden_in_env(env)}
    return {value for value in found if len(value) >= _SHORTEST and value.lower() not in _NO_SECRETS}


def kept_values(scheduler: Scheduler[Any], app_id: str) -> set[str]:
    """Return the values under names that look like secrets, as the scheduler keeps the app; none of an unknown app."""
    native = scheduler.describe_native(app_id)
    app = getattr(native.request, "app_def", None) if native else None
    if app is None:
        response = scheduler.describe(app_id)
        roles = response.roles if response else []
    else:
        roles = app.roles
    return hidden_values(roles, copied_variables(native), ())


def copied_variables(native: AppDryRunInfo[Any] | None) -> dict[str, dict[str, str]]:
    """Return the variables of the launcher that the replicas of each role inherit; none where the request has none."""
    roles = getattr(native.request, "roles", ()) if native else ()
    return {role.name: dict(getattr(role, "copied_env", {})) for role in roles}


async def aregister(values: Iterable[str]) -> None:
    """Have Airflow mask the values in this process and its supervisor, before anything else is sent to that."""
    from airflow.sdk.log import amask_secret

    for value in values:
        await amask_secret(value)


def register(values: Iterable[str]) -> None:
    """Have Airflow mask the values in this process and its supervisor."""
    from airflow.sdk.log import mask_secret

    for value in values:
        mask_secret(value)


def _texts(role: Role) -> Iterator[tuple[str, str | int, str]]:
    yield from (("env", name, text) for name, text in role.env.items())
    yield from (("args", number, text) for number, text in enumerate(role.args))


def _hidden_spans(text: str) -> list[tuple[int, int]]:
    """Return the parts of a text that Airflow's masker would hide."""
    from airflow.sdk.log import redact  # type: ignore[attr-defined] # not in its list

    shown = str(redact(text))
    if shown == text:
        return []
    # What is left between the masks shows where they are.
    found = re.fullmatch("(.+?)".join(map(re.escape, shown.split(MASK))), text, re.DOTALL)
    return [found.span(number) for number in range(1, (found.re.groups or 0) + 1)] if found else [(0, len(text))]
