"""Names and labels of the containers of an app, by which other processes and tools find it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from airflow_provider_launch.schedulers._kit.naming import file_slug, unique_slugs
from airflow_provider_launch.schedulers.ids import make_stable

APP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,179}")
"""Valid app ids: prefixes of container names, with room for role, replica and attempt."""
_ALIAS_LENGTH = 63
"""Maximum length of one part of a host name in DNS."""


class Label:
    """Labels of every container, network and mark that the launcher creates."""

    MANAGED = "launch.io/managed"
    KIND = "launch.io/kind"
    APP_ID = "launch.io/app-id"
    APP_NAME = "launch.io/app-name"
    OWNER = "launch.io/task"
    """The task that launched the app, as JSON."""
    SPEC_HASH = "launch.io/spec-hash"
    PLAN = "launch.io/plan"
    """Roles, replicas, retries and limits as JSON: enough to assess the app from one list of containers."""
    ROLE = "launch.io/role"
    REPLICA = "launch.io/replica"
    APP_ATTEMPT = "launch.io/app-attempt"
    ATTEMPT = "launch.io/attempt"
    NAME = "launch.io/name"
    """Name with which the container was created; a copy made from an image has the label, but another name."""
    MARK = "launch.io/mark"
    DECISION = "launch.io/decision"
    CAUSE = "launch.io/cause"
    GPUS = "launch.io/gpus"
    NOTES = (APP_NAME, OWNER, MARK, DECISION, CAUSE, GPUS)
    """Labels that only records and marks have."""
    OTHERS = (MANAGED, KIND, APP_ID, SPEC_HASH, PLAN, ROLE, REPLICA, APP_ATTEMPT, ATTEMPT, NAME)


UNSET: Mapping[str, str] = MappingProxyType(dict.fromkeys((*Label.OTHERS, *Label.NOTES), ""))
"""All labels of the launcher with empty values, because a container inherits the labels that it does not set."""


class Kind:
    """Values of `Label.KIND`."""

    APP = "app"
    """The record of the app, never started; the process that creates it submits the app."""
    REPLICA = "replica"
    MARK = "mark"
    """A decision, never started: the app was cancelled, or an attempt was ended for a reason."""


def role_slugs(names: Sequence[str]) -> list[str]:
    """Return the slug of each role, for the names of containers."""
    return unique_slugs(
        names,
        lambda number, name: file_slug(name)[:60] or f"role{number}",
        clash="name their containers {} on 'docker'",
        compared=_host_part,  # host names are case-insensitive and have neither `_` nor `.`
    )


def container_name(app_id: str, role_slug: str, replica: int, app_attempt: int, attempt: int) -> str:
    """Return the unique name of a container, so that creating it twice is a conflict."""
    name = f"{app_id}-{role_slug}-{replica}"
    if app_attempt:
        name += f"-a{app_attempt}"
    return f"{name}-r{attempt}" if attempt else name


def mark_name(app_id: str, mark: str) -> str:
    """Return the name of a mark; replicas cannot have it, because their names continue with `-`."""
    return f"{app_id}.{mark}"


def alias(app_id: str, role_slug: str, replica: int) -> str:
    """Return the host name of a replica in its network, the same for all its attempts."""
    name = _host_part(f"{app_id}-{role_slug}-{replica}")
    return name if len(name) <= _ALIAS_LENGTH else make_stable(name, "", _ALIAS_LENGTH)


def _host_part(text: str) -> str:
    return text.replace("_", "-").replace(".", "-").lower()
