"""Names and labels of the containers of an app: what other tools see, and what any process finds the app by."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from airflow_provider_launch.schedulers._kit.naming import file_slug, unique_slugs
from airflow_provider_launch.schedulers.ids import make_stable

APP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,179}")
"""What can begin the name of a container, with room for role, replica and attempt."""
_ALIAS_LENGTH = 63
"""Characters of one part of a host name, by the rules of DNS."""


class Label:
    """Labels of every container, network and mark that the launcher makes."""

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
    """Name with which the container was created; one made from an image of ours inherits labels, but no name."""
    MARK = "launch.io/mark"
    DECISION = "launch.io/decision"
    CAUSE = "launch.io/cause"
    GPUS = "launch.io/gpus"
    NOTES = (APP_NAME, OWNER, MARK, DECISION, CAUSE, GPUS)
    """Those that only records and marks have."""
    OTHERS = (MANAGED, KIND, APP_ID, SPEC_HASH, PLAN, ROLE, REPLICA, APP_ATTEMPT, ATTEMPT, NAME)


UNSET: Mapping[str, str] = MappingProxyType(dict.fromkeys((*Label.OTHERS, *Label.NOTES), ""))
"""All labels of ours without a value: a container inherits from its image each label that it does not set."""


class Kind:
    """Values of `Label.KIND`."""

    APP = "app"
    """The record of the app, never started: who creates it has submitted the app."""
    REPLICA = "replica"
    MARK = "mark"
    """The app was cancelled, or why an attempt of it was ended; never started."""


def role_slugs(names: Sequence[str]) -> list[str]:
    """Return how each role appears in the names of containers.

    Raises:
        InvalidAppError: two roles would have the same containers.
    """
    return unique_slugs(
        names,
        lambda number, name: file_slug(name)[:60] or f"role{number}",
        clash="name their containers {} on 'docker'",
        compared=_host_part,  # host names know neither case nor `_` and `.`
    )


def container_name(app_id: str, role_slug: str, replica: int, app_attempt: int, attempt: int) -> str:
    """Return the name by which a container is created once: a second creation meets a conflict."""
    name = f"{app_id}-{role_slug}-{replica}"
    if app_attempt:
        name += f"-a{app_attempt}"
    return f"{name}-r{attempt}" if attempt else name


def mark_name(app_id: str, mark: str) -> str:
    """Return the name of a mark; no role can have it, because names of replicas go on with `-`."""
    return f"{app_id}.{mark}"


def alias(app_id: str, role_slug: str, replica: int) -> str:
    """Return the host name of a replica within its network, the same in all its attempts."""
    name = _host_part(f"{app_id}-{role_slug}-{replica}")
    return name if len(name) <= _ALIAS_LENGTH else make_stable(name, "", _ALIAS_LENGTH)


def _host_part(text: str) -> str:
    return text.replace("_", "-").replace(".", "-").lower()
