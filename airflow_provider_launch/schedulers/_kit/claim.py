"""Ownership of app ids: refuses a second owner, and elects one where an engine allows two objects with one name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_launch.specs.errors import AppConflictError, SchedulerRejectedError


@dataclass(frozen=True, order=True)
class Candidate:
    """One native object that claims an app id."""

    created: float
    """By the engine's clock."""
    id: str
    """Unique among all candidates."""
    spec_hash: str = ""


def elect(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the owner of the app id: the oldest candidate, or the smallest id of equally old ones; None: no candidate.

    Every process that lists the same candidates elects the same one, and the others withdraw theirs. A process must
    create its own candidate before it lists, and may start its app only if its candidate was elected.
    """
    return min(candidates, default=None)


def refuse_other_spec(backend: str, app_id: str, expected: str, found: str | None) -> None:
    """Refuse to adopt an app whose spec hash is not the expected one.

    Raises:
        AppConflictError: the id belongs to an app with another definition.
    """
    if found != expected:
        raise AppConflictError(
            f"{backend!r} has an app {app_id!r} with another definition; nothing was started. "
            f"Choose another id, or delete that app first"
        )


def deleted_meanwhile(app_id: str) -> SchedulerRejectedError:
    """Return the error for an app that was deleted during its submission."""
    return SchedulerRejectedError(f"app {app_id!r} was deleted while it was submitted; nothing of it was started")
