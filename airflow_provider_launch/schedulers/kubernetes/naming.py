"""Names, labels and annotations of the objects of an app, by which every process finds it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_provider_launch.schedulers._kit.naming import dns_slug, unique_slugs
from airflow_provider_launch.schedulers.ids import make_stable

NAME_LENGTH = 63
"""Maximum length of a DNS label and of the value of a label."""
APP_ID = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""Valid names of a Service."""
_ATTEMPT = re.compile(r"-r\d+$")
_APP_SLUG = 40


class Label:
    """Labels, by which objects are selected."""

    MANAGED = "launch.io/managed"
    APP_ID = "launch.io/app-id"
    ROLE = "launch.io/role"
    """Of Jobs and pods: the role as it appears in names."""
    ATTEMPT = "launch.io/attempt"
    """Of Jobs and pods: the attempt of the app, from 0."""
    INDEX = "batch.kubernetes.io/job-completion-index"
    """Of pods, by Kubernetes: the number of the replica."""
    QUEUE = "kueue.x-k8s.io/queue-name"
    """Of the Job if the app has one Job, else of each pod."""
    GROUP = "kueue.x-k8s.io/pod-group-name"
    """Of pods: the group that Kueue admits as one."""
    HELD = "kueue.x-k8s.io/managed"
    """Of pods, by Kueue: it holds the pod back until the group is admitted, or has done so."""
    WORKLOAD_OF = "kueue.x-k8s.io/job-uid"
    """Of Workloads, by Kueue: the Job for which it was made."""


class Annotation:
    """Annotations, which may be long and cannot be selected by."""

    APP_NAME = "launch.io/app-name"
    OWNER = "launch.io/task"
    """Of the record: the task that launched the app, as JSON."""
    LABEL_NAMES = "launch.io/label-names"
    """JSON: changed name of a label to the name that the user gave."""
    SPEC_HASH = "launch.io/spec-hash"
    PLAN = "launch.io/plan"
    """Of Jobs: roles, replicas, retries and limits as JSON, so that a list of Jobs is enough to assess the app."""
    REQUEST = "launch.io/request"
    """Of the record: the request, packed."""
    ATTEMPT = "launch.io/attempt"
    """Of the record: the current attempt of the app."""
    COMMITTED = "launch.io/uids-"
    """Of the record, with the attempt: role to uid of its Job. Other Jobs do not belong to the app."""
    RELEASED = "launch.io/released"
    """Of the record: the attempt whose Jobs were released."""
    CAUSE = "launch.io/why-"
    """Of the record, with the attempt: why it failed."""
    CANCELLED = "launch.io/cancelled"
    """Of the record: a user has cancelled the app."""
    RESULT = "launch.io/result"
    """Of the record: how the app has ended. No attempt follows, and its Jobs may be removed."""
    ENDED = "launch.io/ended"
    """Of Jobs that the launcher ends: why."""
    DISRUPTED = "launch.io/disrupted"
    """Of the record: number of attempts of the app that a disruption ended; they are not charged."""
    PREEMPTIONS = "launch.io/preemptions"
    """Of Jobs: how often the queue has evicted it."""
    GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"
    """Of pods: number of pods in the group."""
    GROUP_RETRIES = "kueue.x-k8s.io/retriable-in-group"
    """Of pods: whether Kueue waits for a replacement of an ended pod."""
    OUTLIVED = "launch.io/outlived-by-sidecars"
    """Of pods that the launcher stops because sidecars still ran after the program had failed."""
    FAILURES = "batch.kubernetes.io/job-index-failure-count"
    """Of pods, by Kubernetes: number of failed earlier attempts of this replica."""
    IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
    """Of pods, by Kubernetes: number of disrupted earlier attempts of this replica."""


def app_slug(name: str) -> str:
    """Return the form of an app's name that is used in ids."""
    text = dns_slug(name)[:_APP_SLUG].strip("-")
    return text if text[:1].isalpha() else f"app-{text}".rstrip("-")


def role_slugs(names: Sequence[str]) -> list[str]:
    """Return how each role appears in the names of Jobs."""
    return unique_slugs(names, _role_slug, clash="name their Job {} on 'kubernetes'")


def job_name(app_id: str, role_slug: str, attempt: int, num_replicas: int) -> str:
    """Return the name of the Job of a role; creating it twice is a conflict.

    The two hyphens keep app `x-y` with role `z` apart from app `x` with role `y-z`. Name and index are the host name of
    a replica, so a name that is too long is cut and gets a hash.
    """
    name = f"{app_id}--{role_slug}" + (f"-r{attempt}" if attempt else "")
    room = NAME_LENGTH - 1 - len(str(max(num_replicas - 1, 0)))
    return name if len(name) <= room else make_stable(name, "", room)


def group_name(app_id: str, attempt: int) -> str:
    """Return the name of Kueue's pod group of an attempt, which is also the name of its Workload."""
    name = f"{app_id}-r{attempt}" if attempt else app_id
    return name if len(name) <= NAME_LENGTH else make_stable(name, "", NAME_LENGTH)


def _role_slug(number: int, name: str) -> str:
    slug = dns_slug(name) or f"role{number}"
    if len(slug) > _APP_SLUG:
        slug = make_stable(slug, name, _APP_SLUG)
    # `-r1` at the end of a Job's name marks the second attempt of the app.
    return f"{slug}x" if _ATTEMPT.search(slug) else slug
