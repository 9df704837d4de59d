"""Names, tags and marks of an app in AWS, without I/O."""

from __future__ import annotations

import hashlib
import re
from enum import Enum
from typing import NamedTuple

from airflow_provider_launch.schedulers.ids import slug

APP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{1,99}\Z")
"""`_` is not allowed, because it separates app and attempt in the names of jobs."""
_PREFIX = "launch-"


class Tag(str, Enum):
    """Keys of our tags, on definitions and jobs."""

    APP_ID = "launch.io/app-id"
    SPEC_HASH = "launch.io/spec-hash"
    SUBMITTED = "launch.io/submitted-at"
    QUEUE = "launch.io/queue"
    CANCELLED = "launch.io/cancelled"
    """On a definition: the app was cancelled, whatever happens to its jobs."""
    DELETED = "launch.io/deleted"
    """On a job: the app was deleted; the value is the last revision that belonged to it."""

    def __str__(self) -> str:
        return self.value


class LogGroup(NamedTuple):
    """A log group in CloudWatch."""

    name: str
    region: str | None = None
    """None means the Region of the queue."""


def app_slug(name: str) -> str:
    """Return the form of an app's name that is used in ids."""
    return slug(name, 40)


def job_name(app_id: str, attempt: int = 0) -> str:
    """Return the name of the job of one attempt of the app."""
    return f"{app_id}_a{attempt}" if attempt else app_id


def definition_name(app_id: str, attempt: int = 0) -> str:
    """Return the name of the job definition of one attempt of the app."""
    return _PREFIX + job_name(app_id, attempt)


def attempt_of(app_id: str, name: str) -> int | None:
    """Return the attempt of the app to which a job of this name belongs; None if it does not belong to the app."""
    if name == app_id:
        return 0
    found = re.fullmatch(rf"{re.escape(app_id)}_a([1-9]\d*)", name)
    return int(found[1]) if found else None


def mark(app_id: str) -> str:
    """Return the prefix of the script's own lines in the log; it differs from the prefix of every other app."""
    return f":launch-{hashlib.sha256(app_id.encode()).hexdigest()[:8]}"
