"""What has happened to an app that runs: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_provider_launch.schedulers._kit.endings import ending_text, incidents_text
from airflow_provider_launch.schedulers.docker.containers import App, Container, Detail, end_of


def incidents(app: App, details: Mapping[str, Detail]) -> str:
    """Return what users should know of an app while it runs; empty: nothing has happened."""
    number = app.app_attempt()
    found = []
    for (role, k), attempts in app.attempts.items():
        mine = [container for container in attempts if container.app_attempt == number]
        found += [f"{role}/{k} {text}" for text in _of_replica(mine, details)]
    return incidents_text(found)


def _of_replica(attempts: list[Container], details: Mapping[str, Detail]) -> Iterator[str]:
    if not attempts:
        return
    newest = attempts[-1]
    if newest.state == "paused":
        yield "is paused"
    if newest.unhealthy and newest.live:
        yield "is unhealthy: the health check of its image fails"
    if newest.renamed:
        yield f"was renamed to {newest.name!r}"
    detail = details.get(newest.id)
    if newest.restarts or (detail is not None and detail.restarts):
        yield "was restarted from outside, so its program ran more than once"
    if len(attempts) > 1 and newest.live:
        before = attempts[-2]
        how = ending_text(end_of(before, details.get(before.id)))
        yield f"failed: {how}; it has begun again (attempt {newest.attempt})"
