"""Names and labels of the objects of an app: what other tools see, and what any process finds the app by."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_provider_launch.schedulers._kit.naming import dns_slug, unique_slugs
from airflow_provider_launch.schedulers.ids import make_stable

NAME_LENGTH = 63
"""Characters of one part of a host name, by the rules of DNS; values of labels have the same limit."""
APP_ID = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""What can name a Service."""
_ATTEMPT = re.compile(r"-r\d+$")
_APP_SLUG = 40


class Label:
    """Labels: what objects are selected by."""

    MANAGED = "launch.io/managed"
    APP_ID = "launch.io/app-id"
    ROLE = "launch.io/role"
    """Of Jobs and pods: the role as it appears in names."""
    ATTEMPT = "launch.io/attempt"
    """Of Jobs and pods: the attempt of the app, from 0."""
    INDEX = "batch.kubernetes.io/job-completion-index"
    """Of pods, by Kubernetes: the number of the replica."""
    QUEUE = "kueue.x-k8s.io/queue-name"
    """Of the Job of an app that is one Job, else of each pod."""
    GROUP = "kueue.x-k8s.io/pod-group-name"
    """Of pods: what Kueue admits as one."""
    HELD = "kueue.x-k8s.io/managed"
    """Of pods, by Kueue: it holds them back until their group is admitted, or has done so."""
    WORKLOAD_OF = "kueue.x-k8s.io/job-uid"
    """Of Workloads, by Kueue: the Job for which it was made."""


class Annotation:
    """Annotations: what is not selected by, and may be long."""

    APP_NAME = "launch.io/app-name"
    OWNER = "launch.io/task"
    """Of the record: the task that launched the app, as JSON."""
    LABEL_NAMES = "launch.io/label-names"
    """Names of labels that had to be changed to the names that were given, as JSON."""
    SPEC_HASH = "launch.io/spec-hash"
    PLAN = "launch.io/plan"
    """Of Jobs: roles, replicas, retries and limits as JSON, enough to assess the app from one list of Jobs."""
    REQUEST = "launch.io/request"
    """Of the record: the request, packed."""
    ATTEMPT = "launch.io/attempt"
    """Of the record: the present attempt of the app."""
    COMMITTED = "launch.io/uids-"
    """Of the record, with the attempt: role to uid of its Job. What is not in there is not of the app."""
    RELEASED = "launch.io/released"
    """Of the record: the attempt whose Jobs were let go."""
    CAUSE = "launch.io/why-"
    """Of the record, with the attempt: why it failed."""
    CANCELLED = "launch.io/cancelled"
    """Of the record."""
    RESULT = "launch.io/result"
    """Of the record: how the app has ended; from then on there is no further attempt, and its Jobs may vanish."""
    ENDED = "launch.io/ended"
    """Of Jobs: that we end it, and why."""
    DISRUPTED = "launch.io/disrupted"
    """Of the record: how many attempts of the app were ended by a disruption, which is not charged."""
    PREEMPTIONS = "launch.io/preemptions"
    """Of Jobs: how often the queue has taken its place away."""
    GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"
    """Of pods: how many the group has."""
    GROUP_RETRIES = "kueue.x-k8s.io/retriable-in-group"
    """Of pods: whether Kueue waits for another one in the place of one that has ended."""
    OUTLIVED = "launch.io/outlived-by-sidecars"
    """Of pods: that we stop it, since sidecars ran on after its program had failed."""
    FAILURES = "batch.kubernetes.io/job-index-failure-count"
    """Of pods, by Kubernetes: how many attempts of this replica have failed before."""
    IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
    """Of pods, by Kubernetes: how many were disrupted before."""


def app_slug(name: str) -> str:
    """Return what is left of the name of an app in an id."""
    text = dns_slug(name)[:_APP_SLUG].strip("-")
    return text if text[:1].isalpha() else f"app-{text}".rstrip("-")


def role_slugs(names: Sequence[str]) -> list[str]:
    """Return how each role appears in the names of Jobs.

    Raises:
        InvalidAppError: two roles would have the same Job.
    """
    return unique_slugs(names, _role_slug, clash="name their Job {} on 'kubernetes'")


def job_name(app_id: str, role_slug: str, attempt: int, num_replicas: int) -> str:
    """Return the name under which the Job of a role is created once: a second creation meets a conflict.

    The two hyphens keep app `x-y` with role `z` apart from app `x` with role `y-z`. With its index, the name is the
    host name of a replica, so it is cut where it would be too long; a cut name holds a hash of the whole.
    """
    name = f"{app_id}--{role_slug}" + (f"-r{attempt}" if attempt else "")
    room = NAME_LENGTH - 1 - len(str(max(num_replicas - 1, 0)))
    return name if len(name) <= room else make_stable(name, "", room)


def group_name(app_id: str, attempt: int) -> str:
    """Return the name of the pods of an attempt for Kueue, and so of their Workload."""
    name = f"{app_id}-r{attempt}" if attempt else app_id
    return name if len(name) <= NAME_LENGTH else make_stable(name, "", NAME_LENGTH)


def _role_slug(number: int, name: str) -> str:
    slug = dns_slug(name) or f"role{number}"
    if len(slug) > _APP_SLUG:
        slug = make_stable(slug, name, _APP_SLUG)
    # `-r1` at the end of a Job's name is the second attempt of the app.
    return f"{slug}x" if _ATTEMPT.search(slug) else slug
