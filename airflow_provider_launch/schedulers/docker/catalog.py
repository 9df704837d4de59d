"""Lists the apps of an engine by their containers, and caches the latest poll and requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from cachetools import FIFOCache, LRUCache

from airflow_provider_launch.schedulers._kit.http import NotFoundError
from airflow_provider_launch.schedulers.docker.containers import App, Container, apps_in
from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.schedulers.docker.naming import Kind
from airflow_provider_launch.schedulers.docker.request import DockerRequest, request_in
from airflow_provider_launch.specs.errors import UnknownAppException

_KEPT_APPS, _KEPT_REQUESTS = 5000, 200
"""Cache sizes. A request may have 50 KB; it is not needed for apps that have ended or are only polled with others."""
_CLOCK_S = 60


class Catalog:
    """Reads apps of one engine, and caches the latest poll."""

    def __init__(self, engine: Engine) -> None:
        self.mutex = threading.RLock()
        """Locked while apps are listed and the result is acted on, so that two threads do not repeat the work."""
        self.now = 0.0
        """The engine's time of the latest poll, in epoch seconds."""
        self._engine = engine
        # Read without the mutex, so reading must not change the order.
        self._apps: FIFOCache[str, tuple[App, float]] = FIFOCache(_KEPT_APPS)
        self._containers: dict[str, Container] = {}
        self._boundaries: dict[str, int] = {}
        self._requests: LRUCache[str, DockerRequest] = LRUCache(_KEPT_REQUESTS)
        self._guard = threading.Lock()

    def poll(self, ids: list[str]) -> tuple[dict[str, App], float]:
        """List the containers of these apps with one request; return the apps, and the engine's time."""
        with self.mutex:
            started_at = time.monotonic()
            if len(ids) == 1:
                containers, now = self._engine.containers(app_id=ids[0])
            else:
                containers, now = self._list_since(self._boundary(ids))
            self.now = now
            found = apps_in(containers, self._seen)
            apps = {app_id: app for app_id, app in found.items() if app.replicas() or app.record}
            for app_id in ids:
                if app_id in apps:
                    self._apps[app_id] = (apps[app_id], started_at)
                else:
                    self._apps.pop(app_id, None)
            return apps, now

    def every(self) -> tuple[dict[str, App], float]:
        """List all apps, also remains of removed ones; return them and the engine's time."""
        containers, now = self._engine.containers()
        return apps_in(containers), now

    def poll_one(self, app_id: str) -> tuple[App, float]:
        """Poll one app; return it and the start of the poll. Raises UnknownAppException if it has no containers."""
        started_at = time.monotonic()
        apps, _ = self.poll([app_id])
        if app_id not in apps:
            raise UnknownAppException(app_id)
        return apps[app_id], started_at

    def cached(self, app_id: str) -> tuple[App, float]:
        """Return an app from its latest poll, and the start of that poll; polls now if there was none."""
        return self._apps.get(app_id) or self.poll_one(app_id)

    def request(self, app: App) -> DockerRequest | None:
        """Return the request of the app; None if its record was removed."""
        request = self.cached_request(app.app_id)
        if request is None and app.record is not None:
            try:
                request = request_in(self._engine.inspect(app.record.id))
            except NotFoundError:
                return None
            self.remember(request)
        return request

    def cached_request(self, app_id: str) -> DockerRequest | None:
        """Return the request of the app if it is cached."""
        with self._guard:
            return self._requests.get(app_id)

    def remember(self, request: DockerRequest) -> None:
        """Cache the request of an app; the least recently used ones are dropped."""
        with self._guard:
            self._requests[request.app_id] = request

    def forget(self, app_id: str) -> None:
        """Drop a deleted app from the cache."""
        with self._guard:
            self._requests.pop(app_id, None)
        self._apps.pop(app_id, None)

    def _seen(self, app_id: str) -> App | None:
        found = self._apps.get(app_id)
        return found[0] if found else None

    def _list_since(self, boundary: str | None) -> tuple[list[Container], float]:
        try:
            containers, now = self._engine.containers(since=boundary, cached=self._containers)
        except NotFoundError:
            containers, now = self._engine.containers(cached=self._containers)
            boundary = None
        self._containers = {container.id: container for container in containers}
        kept = {boundary: self._boundaries[boundary]} if boundary else {}
        self._boundaries = kept | {c.id: c.created for c in containers if c.kind == Kind.APP}
        return containers, now

    def _boundary(self, ids: Iterable[str]) -> str | None:
        """Return a record older than all these apps, so that older containers need not be listed, or None."""
        cached = [self._apps.get(app_id) for app_id in ids]
        created = [found[0].record.created for found in cached if found and found[0].record]
        if len(created) < len(cached):
            return None
        # Lists are ordered by the engine's clock, which may be set back a little.
        oldest = min(created) - _CLOCK_S
        return max(((at, record) for record, at in self._boundaries.items() if at < oldest), default=(0, None))[1]
