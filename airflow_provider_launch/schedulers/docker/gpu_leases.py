"""Leases of the GPUs of an engine's host, stored in the labels of records and replicas."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from airflow_provider_launch.schedulers.docker.catalog import Catalog
from airflow_provider_launch.schedulers.docker.containers import App, DamagedError, Plan
from airflow_provider_launch.schedulers.docker.naming import Label
from airflow_provider_launch.schedulers.docker.observer import Observer
from airflow_provider_launch.schedulers.docker.request import DockerRequest
from airflow_provider_launch.specs.errors import AppUnavailableError, SchedulerRejectedError
from airflow_provider_launch.specs.states import AppState, is_terminal

_RIVAL_PAUSE_S, _RIVALS_S = 0.3, 5.0
_NAMED = 5
"""Maximum number of apps in the message of a refusal."""


class _Lease(NamedTuple):
    app: App
    gpus: set[str]
    state: AppState


class GpuLeases:
    """Leases GPUs to apps until they have ended."""

    def __init__(self, catalog: Catalog, observer: Observer, gpus: Sequence[str]) -> None:
        self._catalog = catalog
        self._observer = observer
        self._gpus = gpus

    def lease(self, request: DockerRequest) -> DockerRequest:
        """Choose free GPUs for each replica; wait a little for apps whose lease is not final yet."""
        wanted = [
            f"{role.name}/{k}" for role in request.roles for k in range(role.num_replicas) for _ in range(role.gpu)
        ]
        deadline = time.monotonic() + _RIVALS_S
        while True:
            apps, now = self._catalog.every()
            leases = self._leases_of((app for app in apps.values() if app.app_id != request.app_id), now)
            free = [device for device in self._gpus if not any(device in lease.gpus for lease in leases)]
            if len(wanted) <= len(free):
                break
            undecided = any(not lease.app.replicas() for lease in leases)
            if not undecided or time.monotonic() > deadline:
                raise SchedulerRejectedError(
                    f"app {request.app_id!r} wants {len(wanted)} GPUs, {len(free)} of {len(self._gpus)} are free on "
                    f"the Docker engine{self._holders(leases)}; wait for the others, or cancel one that is not needed"
                )
            time.sleep(_RIVAL_PAUSE_S)
        gpus: dict[str, list[str]] = {}
        for replica, device in zip(wanted, free, strict=False):
            gpus.setdefault(replica, []).append(device)
        return dataclasses.replace(request, gpus=gpus)

    def has_rival(self, request: DockerRequest, record: str) -> bool:
        """Return whether another app leased the same GPU at the same time.

        It is unknown which one was first, so each app that sees a rival withdraws and tries again.
        """
        mine = {device for devices in request.gpus.values() for device in devices}
        apps, now = self._catalog.every()
        leases = self._leases_of(apps.values(), now)
        return any(lease.gpus & mine and not (lease.app.record and lease.app.record.id == record) for lease in leases)

    def back_off(self) -> None:
        """Wait for a random time, so that rivals do not try again at the same moment."""
        time.sleep(random.uniform(0, _RIVAL_PAUSE_S))  # noqa: S311 - not a secret

    def _leases_of(self, apps: Iterable[App], now: float) -> list[_Lease]:
        """Return the leases of apps that have not ended."""
        given = [(app, _gpus_of(app)) for app in apps]
        with self._catalog.mutex:
            leases = [_Lease(app, gpus, self._state(app, now)) for app, gpus in given if gpus and _is_sound(app)]
        return [lease for lease in leases if not is_terminal(lease.state)]

    def _state(self, app: App, now: float) -> AppState:
        try:
            return self._observer.assess(app, now).state
        except AppUnavailableError:
            return AppState.UNKNOWN  # it may still use its GPUs, but must not block others

    def _holders(self, leases: Iterable[_Lease]) -> str:
        """Return the apps that have leased some of these GPUs, for the message of a refusal."""
        holders = [
            f"app {lease.app.app_id!r} ({lease.state.name})"
            for lease in sorted(leases, key=lambda lease: lease.app.app_id)
            if not lease.gpus.isdisjoint(self._gpus)
        ]
        more = f" and {len(holders) - _NAMED} more" if len(holders) > _NAMED else ""
        return f" (leased by {', '.join(holders[:_NAMED])}{more})" if holders else ""


def _is_sound(app: App) -> bool:
    """Return whether a launcher created the app; labels cannot change, so invalid ones come from an image."""
    try:
        Plan.of(app)
    except DamagedError:
        return False
    return True


def _gpus_of(app: App) -> set[str]:
    texts = [container.notes[Label.GPUS] for container in app.all if Label.GPUS in container.notes]
    return {device for text in texts for device in text.split(",")}
