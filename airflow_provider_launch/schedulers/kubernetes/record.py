"""What we have written of an app into the objects of the server, and read again: its plan and its record; pure."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from airflow_provider_launch.schedulers.kubernetes.containers import epoch
from airflow_provider_launch.schedulers.kubernetes.manifests import SIDECAR_GRACE_S
from airflow_provider_launch.schedulers.kubernetes.naming import Annotation
from airflow_provider_launch.schedulers.retry import RolePolicy
from airflow_provider_launch.specs.errors import SchedulerRejectedError
from airflow_provider_launch.specs.roles import MAX_REPLICAS, RetryPolicy
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.util.untrusted import UntrustedError, parse_int, parse_json

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error)
"""What is raised over labels and annotations that are not what we write."""
_MOST = 10**9
_MAX_TEXT = 1024 * 1024
"""All annotations of an object together have 256 KB."""


class DamagedError(SchedulerRejectedError):
    """The record of an app, or a Job of it, cannot be read."""


@dataclass(frozen=True)
class PlannedRole:
    """One role of the plan."""

    name: str
    slug: str
    num_replicas: int
    policy: RolePolicy


@dataclass(frozen=True)
class Plan:
    """Roles and limits, as stored in each Job."""

    roles: tuple[PlannedRole, ...]
    time_limit_s: float | None
    grace_s: int
    queue: bool
    """Whether a queue lets the Job go, and suspends it."""
    leader: bool = False
    """Whether the end of replica 0 of the first role is that of the app."""
    ttl_s: int | None = None
    """How long the Jobs stay once the app has ended. None: for ever, or by their own limit."""
    group: str | None = None
    """What the disruption of one pod means, `retry` or `fail`, where a queue admits all pods of the app as one."""
    sidecar_grace_s: float = SIDECAR_GRACE_S
    """How long sidecars may run once the program has ended."""
    container_logs: tuple[str, ...] = ()
    """Containers beside `main` whose logs are read, too."""
    accepts_stop: bool = False
    """Whether a program that ends with 0 when its pod is deleted has succeeded."""
    fails_on_disruption: bool = False
    """Whether the loss of a pod by preemption or eviction fails the app."""

    @property
    def titles(self) -> dict[str, str]:
        """The names of the roles by their slugs."""
        return {role.slug: role.name for role in self.roles}

    def slug_of(self, role_name: str) -> str:
        """Return the slug of a role; empty: there is no such role."""
        return next((role.slug for role in self.roles if role.name == role_name), "")

    def decides(self, slug: str) -> bool:
        """Return whether replica 0 of the role with this slug decides."""
        return self.leader and slug == self.roles[0].slug

    @property
    def restarts(self) -> bool:
        """Whether a failure may begin the app anew."""
        return any(role.policy.policy == "APPLICATION" and role.policy.max_retries for role in self.roles)


@dataclass(frozen=True)
class AppRecord:
    """The Service that is the record of an app."""

    name: str
    uid: str
    annotations: Mapping[str, str]
    owners: tuple[dict[str, Any], ...]
    deleting: bool
    created: float | None = None
    """Epoch seconds by the server's clock."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> AppRecord | None:
        """Return the record; None: this Service is none of ours."""
        metadata = document["metadata"]
        notes = metadata.get("annotations") or {}
        if Annotation.SPEC_HASH not in notes:
            return None
        owners = tuple(metadata.get("ownerReferences") or ())
        created = epoch(metadata.get("creationTimestamp"))
        return cls(metadata["name"], metadata["uid"], notes, owners, "deletionTimestamp" in metadata, created)

    def check(self) -> None:
        """Raise `ValueError`, `KeyError` or `TypeError` if its annotations are not what we write."""
        _ = self.attempt, self.released, self.result, self.disrupted, self.committed

    @property
    def attempt(self) -> int:
        """The present attempt of the app, from 0."""
        return parse_int(self.annotations.get(Annotation.ATTEMPT, "0"), 0, _MOST)

    @property
    def committed(self) -> dict[str, str] | None:
        """Role to uid of its Job in the present attempt; None: not all of them exist yet."""
        text = self.annotations.get(f"{Annotation.COMMITTED}{self.attempt}")
        if text is None:
            return None
        found = parse_json(text, _MAX_TEXT)
        if not isinstance(found, dict) or not all(isinstance(uid, str) for uid in found.values()):
            raise UntrustedError("the Jobs of an attempt are not named by their roles")
        return found

    @property
    def released(self) -> bool:
        """Whether the Jobs of the present attempt were let go."""
        return parse_int(self.annotations.get(Annotation.RELEASED, "-1"), -1, _MOST) >= self.attempt

    @property
    def cancelled(self) -> bool:
        """Whether somebody has cancelled the app."""
        return Annotation.CANCELLED in self.annotations

    @property
    def result(self) -> AppState | None:
        """How the app has ended, if that is settled."""
        text = self.annotations.get(Annotation.RESULT)
        return None if text is None else AppState[text]

    @property
    def disrupted(self) -> int:
        """How many attempts of the app were ended by a disruption."""
        return parse_int(self.annotations.get(Annotation.DISRUPTED, "0"), 0, _MOST)

    @property
    def why(self) -> str:
        """Why the present attempt failed, if that is noted."""
        return self.annotations.get(f"{Annotation.CAUSE}{self.attempt}", NONE)


@lru_cache(maxsize=2048)
def plan_in(text: str) -> Plan:
    """Return the plan in an annotation; raises one of `UNREADABLE` if it is not what we write."""
    document = _Document(parse_json(text, _MAX_TEXT))
    roles = tuple(
        PlannedRole(str(name), str(slug), int(count), RolePolicy(RetryPolicy(policy).value, int(retries)))
        for name, slug, count, policy, retries in document["roles"]
    )
    if not roles:
        raise UntrustedError("the plan has no roles")
    # Each replica takes memory and time, whether or not it exists.
    if (total := sum(max(1, role.num_replicas) for role in roles)) > MAX_REPLICAS:
        raise UntrustedError(f"the plan has {total} replicas")
    logs = document.of("container_logs", list, [])
    if not all(isinstance(name, str) for name in logs):
        raise UntrustedError("the plan has container_logs that are no names")
    # The types, too: a field is used long after it was read, among those of all other apps.
    return Plan(
        roles,
        document.of("time_limit_s", (int, float, type(None))),
        document.of("grace_s", int),
        document.of("queue", bool),
        document.of("leader", bool, default=False),
        document.of("ttl_s", (int, type(None)), None),
        document.of("group", (str, type(None)), None),
        document.of("sidecar_grace_s", (int, float), SIDECAR_GRACE_S),
        tuple(logs),
        document.of("accepts_stop", bool, default=False),
        document.of("fails_on_disruption", bool, default=False),
    )


class _Document(dict[str, Any]):
    """A document whose fields have types."""

    def of(self, name: str, kinds: type | tuple[type, ...], default: Any = ...) -> Any:
        """Return a field.

        Raises:
            KeyError: it is missing, and has no default.
            UntrustedError: it is of another type.
        """
        value = self[name] if default is ... else self.get(name, default)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise UntrustedError(f"the plan has {name}={str(value)[:40]!r}")
        return value
