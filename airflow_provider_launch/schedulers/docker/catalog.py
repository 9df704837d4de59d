"""What the engine lists: apps by their containers, and what they were made from."""

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
"""A request may have 50 KB; of apps that have ended, or are only checked together with others, none is needed."""
_CLOCK_S = 60


class Catalog:
    """Reads apps of one engine, and remembers what the last poll has shown."""

    def __init__(self, engine: Engine) -> None:
        self.mutex = threading.RLock()
        """Hold while listing apps and acting on the result, so that two threads do not repeat the work."""
        self.listed_at = 0.0
        """When the last poll began, by `time.monotonic`."""
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
            began = self.listed_at = time.monotonic()
            if len(ids) == 1:
                containers, now = self._engine.containers(app_id=ids[0])
            else:
                containers, now = self._list_since(self._boundary(ids))
            found = apps_in(containers, self._seen)
            apps = {app_id: app for app_id, app in found.items() if app.replicas() or app.record}
            for app_id in ids:
                if app_id in apps:
                    self._apps[app_id] = (apps[app_id], began)
                else:
                    self._apps.pop(app_id, None)
            return apps, now

    def every(self) -> tuple[dict[str, App], float]:
        """List all apps; return them, with what is left of removed ones, and the engine's time."""
        self.listed_at = time.monotonic()
        containers, now = self._engine.containers()
        return apps_in(containers), now

    def poll_one(self, app_id: str) -> tuple[App, float]:
        """Poll one app; return it, and when the poll began.

        Raises:
            UnknownAppException: the engine has nothing of it.
        """
        began = time.monotonic()
        apps, _ = self.poll([app_id])
        if app_id not in apps:
            raise UnknownAppException(app_id)
        return apps[app_id], began

    def known(self, app_id: str) -> tuple[App, float]:
        """Return what the last poll has shown of an app, and when it began; polls now if there was none."""
        return self._apps.get(app_id) or self.poll_one(app_id)

    def request(self, app: App) -> DockerRequest | None:
        """Return what the app was made from; None: its record was removed."""
        known = self.known_request(app.app_id)
        if known is None and app.record is not None:
            try:
                known = request_in(self._engine.inspect(app.record.id))
            except NotFoundError:
                return None
            self.remember(known)
        return known

    def known_request(self, app_id: str) -> DockerRequest | None:
        """Return what the app was made from, if that is known without asking."""
        with self._guard:
            return self._requests.get(app_id)

    def remember(self, request: DockerRequest) -> None:
        """Keep what an app was made from, while it is among those that were asked for last."""
        with self._guard:
            self._requests[request.app_id] = request

    def forget(self, app_id: str) -> None:
        """Forget an app that was deleted."""
        with self._guard:
            self._requests.pop(app_id, None)
        self._apps.pop(app_id, None)

    def _seen(self, app_id: str) -> App | None:
        found = self._apps.get(app_id)
        return found[0] if found else None

    def _list_since(self, boundary: str | None) -> tuple[list[Container], float]:
        try:
            containers, now = self._engine.containers(since=boundary, known=self._containers)
        except NotFoundError:
            containers, now = self._engine.containers(known=self._containers)
            boundary = None
        self._containers = {container.id: container for container in containers}
        kept = {boundary: self._boundaries[boundary]} if boundary else {}
        self._boundaries = kept | {c.id: c.created for c in containers if c.kind == Kind.APP}
        return containers, now

    def _boundary(self, ids: Iterable[str]) -> str | None:
        """Return a record older than all these apps: what ended before need not be listed each time. None: list all."""
        known = [self._apps.get(app_id) for app_id in ids]
        created = [found[0].record.created for found in known if found and found[0].record]
        if len(created) < len(known):
            return None
        # Lists are ordered by the engine's clock, which may be set back a little.
        oldest = min(created) - _CLOCK_S
        return max(((at, record) for record, at in self._boundaries.items() if at < oldest), default=(0, None))[1]
