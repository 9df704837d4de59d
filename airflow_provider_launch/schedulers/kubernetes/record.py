"""The plan and record of an app, parsed from the annotations of its Kubernetes objects, without I/O."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from airflow_provider_launch.schedulers._kit.request import refuse_long_names
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
"""Errors that malformed labels and annotations cause."""
_MOST = 10**9
_MAX_TEXT = 1024 * 1024
"""Maximum bytes of an annotation; Kubernetes itself limits all annotations of an object to 256 KB."""


class DamagedError(SchedulerRejectedError):
    """The record of an app, or one of its Jobs, cannot be read."""


@dataclass(frozen=True)
class PlannedRole:
    """One role of the plan."""

    name: str
    slug: str
    num_replicas: int
    policy: RolePolicy
    max_disruptions: int | None = None
    """Restarts of the app after disruptions of this role. None: the other fields of the plan decide."""


@dataclass(frozen=True)
class Plan:
    """Roles and limits, as stored in each Job."""

    roles: tuple[PlannedRole, ...]
    time_limit_s: float | None
    grace_s: int
    queue: bool
    """Whether a queue releases and suspends the Job."""
    leader: bool = False
    """Whether the first role ends with its replica 0; all other roles are services."""
    ttl_s: int | None = None
    """Seconds that the Jobs stay after the end of the app. None means for ever, or by their own TTL."""
    group: str | None = None
    """If a queue admits all pods of the app as one: the effect of a disruption, `retry` or `fail`."""
    sidecar_grace_s: float = SIDECAR_GRACE_S
    """Seconds that sidecars may run after the program has ended."""
    container_logs: tuple[str, ...] = ()
    """Other containers whose logs are read, too."""
    accepts_stop: bool = False
    """Whether a program that ends with 0 when its pod is deleted has succeeded."""
    fails_on_disruption: bool = False
    """Whether the loss of a pod by preemption or eviction fails the app."""

    @property
    def role_names(self) -> dict[str, str]:
        """Slug to name of each role."""
        return {role.slug: role.name for role in self.roles}

    def slug_of(self, role_name: str) -> str:
        """Return the slug of a role; empty if the role does not exist."""
        return next((role.slug for role in self.roles if role.name == role_name), "")

    def decides(self, slug: str) -> bool:
        """Return whether this role has the leader, whose end is the end of the app."""
        return self.leader and slug == self.roles[0].slug

    @property
    def restarts(self) -> bool:
        """Whether a failure may restart the app."""
        return any(
            role.max_disruptions or (role.policy.policy == "APPLICATION" and role.policy.max_retries)
            for role in self.roles
        )

    @property
    def max_disruptions(self) -> dict[str, int]:
        """Slug of each role with a bound to that bound."""
        return {role.slug: role.max_disruptions for role in self.roles if role.max_disruptions is not None}


@dataclass(frozen=True)
class AppRecord:
    """The record of an app: its Service."""

    name: str
    uid: str
    annotations: Mapping[str, str]
    owners: tuple[dict[str, Any], ...]
    deleting: bool
    created: float | None = None
    """Epoch seconds by the server's clock."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> AppRecord | None:
        """Parse a Service; return None if it does not belong to an app."""
        metadata = document["metadata"]
        notes = metadata.get("annotations") or {}
        if Annotation.SPEC_HASH not in notes:
            return None
        owners = tuple(metadata.get("ownerReferences") or ())
        created = epoch(metadata.get("creationTimestamp"))
        return cls(metadata["name"], metadata["uid"], notes, owners, "deletionTimestamp" in metadata, created)

    def check(self) -> None:
        """Raise `ValueError`, `KeyError` or `TypeError` if the annotations are malformed."""
        _ = self.attempt, self.released, self.result, self.disrupted, self.committed

    @property
    def attempt(self) -> int:
        """The current attempt of the app, from 0."""
        return parse_int(self.annotations.get(Annotation.ATTEMPT, "0"), 0, _MOST)

    @property
    def committed(self) -> dict[str, str] | None:
        """Role to uid of its Job in the current attempt; None if some Jobs do not exist yet."""
        text = self.annotations.get(f"{Annotation.COMMITTED}{self.attempt}")
        if text is None:
            return None
        found = parse_json(text, _MAX_TEXT)
        if not isinstance(found, dict) or not all(isinstance(uid, str) for uid in found.values()):
            raise UntrustedError("the uids of the Jobs are not a valid object of texts")
        return found

    @property
    def released(self) -> bool:
        """Whether the Jobs of the current attempt were released."""
        return parse_int(self.annotations.get(Annotation.RELEASED, "-1"), -1, _MOST) >= self.attempt

    @property
    def cancelled(self) -> bool:
        """Whether a user has cancelled the app."""
        return Annotation.CANCELLED in self.annotations

    @property
    def result(self) -> AppState | None:
        """How the app has ended; None if that is not recorded."""
        text = self.annotations.get(Annotation.RESULT)
        return None if text is None else AppState[text]

    @property
    def disrupted(self) -> int:
        """Number of attempts of the app that a disruption ended."""
        return parse_int(self.annotations.get(Annotation.DISRUPTED, "0"), 0, _MOST)

    @property
    def why(self) -> str:
        """Why the current attempt failed, if that is recorded."""
        return self.annotations.get(f"{Annotation.CAUSE}{self.attempt}", NONE)


def _policy(policy: Any, retries: Any, is_service: bool) -> RolePolicy:
    return RolePolicy(RetryPolicy(policy).value, int(retries), is_service)


@lru_cache(maxsize=2048)
def plan_in(text: str) -> Plan:
    """Parse the annotation of a plan; raises one of `UNREADABLE` if it is malformed."""
    document = _Document(parse_json(text, _MAX_TEXT))
    services = document.of("services", list, [])
    # With a leader all roles but the first are services.
    leader = document.of("leader", bool, default=False)
    bounds = document.of("max_disruptions", dict, {})
    if not all(type(bound) is int for bound in bounds.values()):
        raise UntrustedError("the plan has max_disruptions that are not integers")
    roles = tuple(
        PlannedRole(
            str(name),
            str(slug),
            int(count),
            _policy(policy, retries, slug in services or (leader and at > 0)),
            bounds.get(slug),
        )
        for at, (name, slug, count, policy, retries) in enumerate(document["roles"])
    )
    if not roles:
        raise UntrustedError("the plan has no roles")
    # Each planned replica takes memory and time, so limit their number.
    if (total := sum(max(1, role.num_replicas) for role in roles)) > MAX_REPLICAS:
        raise UntrustedError(f"the plan has {total} replicas")
    refuse_long_names(text for role in roles for text in (role.name, role.slug))
    logs = document.of("container_logs", list, [])
    if not all(isinstance(name, str) for name in logs):
        raise UntrustedError("the plan has container_logs that are not texts")
    # Check the types here: a wrong one would fail later, together with all other apps.
    return Plan(
        roles,
        document.of("time_limit_s", (int, float, type(None))),
        document.of("grace_s", int),
        document.of("queue", bool),
        leader,
        document.of("ttl_s", (int, type(None)), None),
        document.of("group", (str, type(None)), None),
        document.of("sidecar_grace_s", (int, float), SIDECAR_GRACE_S),
        tuple(logs),
        document.of("accepts_stop", bool, default=False),
        document.of("fails_on_disruption", bool, default=False),
    )


class _Document(dict[str, Any]):
    """A JSON object whose fields are checked for their types."""

    def of(self, name: str, kinds: type | tuple[type, ...], default: Any = ...) -> Any:
        """Return a field, or its default. Raises KeyError if it has none, and UntrustedError for another type."""
        value = self[name] if default is ... else self.get(name, default)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise UntrustedError(f"the plan has {name}={str(value)[:40]!r}")
        return value
