"""Running objects of an engine, found without a scheduler, and ways to make an app vanish."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_launch.schedulers.api import Scheduler
from airflow_provider_launch.schedulers.docker import scheduler as docker
from airflow_provider_launch.schedulers.docker.naming import Label
from airflow_provider_launch.schedulers.local import scheduler as local
from airflow_provider_launch.specs.states import AppState
from tests.engines.docker import cleanup
from tests.engines.docker.fixtures import DockerEngine
from tests.support.local import processes_below


class EngineApps(Protocol):
    """The apps of one engine. A run of Airflow names its apps after itself."""

    name: str
    """Also the id of the connection."""
    image: str
    connection: dict[str, Any]
    scheduler: Scheduler[Any]

    def alive(self, app_id: str) -> int:
        """Return how many processes or containers of the app live."""

    stop_file: str
    """The file that stops a script which runs until then; it may name variables of the replica."""

    def tell_to_stop(self, app_id: str) -> None:
        """Make the file in the first replica."""

    def vanish(self, app_id: str) -> None:
        """Remove the app and all that is known of it."""

    def close(self, names: set[str]) -> None:
        """End and remove the apps of these names."""


def apps_of(engine: EngineApps, name: str) -> dict[str, AppState]:
    """Return id and state of each app that was ever launched under the name."""
    return {row.app_id: row.state for row in engine.scheduler.list() if row.name == name}


class LocalApps:
    """Processes of this host."""

    name = "local"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.image = str(root)
        self.connection = {"conn_type": "launch_local", "extra": {"root": str(root)}}
        self.scheduler = local.create_scheduler("live", root=str(root))
        self.stop_file = f"{root}/stop-$LAUNCH_APP_ID"

    def alive(self, app_id: str) -> int:
        return len(processes_below(self.root / "apps" / app_id))

    def tell_to_stop(self, app_id: str) -> None:
        (self.root / f"stop-{app_id}").touch()

    def vanish(self, app_id: str) -> None:
        place = self.root / "apps" / app_id
        # Away first: nothing is to be written any more about how the app ended.
        gone = place.with_name(f".gone-{app_id}")
        place.rename(gone)
        while pids := processes_below(place):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(gone, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)

    def close(self, names: set[str]) -> None:
        for pid in processes_below(self.root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.scheduler.close()


class DockerApps:
    """Containers."""

    name = "docker"

    def __init__(self, engine: DockerEngine) -> None:
        self._client = engine.client
        self.image = engine.image
        self.connection = {"conn_type": "launch_docker", "extra": {"host": engine.host, "pull": "never"}}
        self.scheduler = docker.create_scheduler("live", host=engine.host)
        self.stop_file = "/tmp/stop"

    def alive(self, app_id: str) -> int:
        return sum(row["State"] in {"running", "paused", "restarting"} for row in self._rows(app_id))

    def tell_to_stop(self, app_id: str) -> None:
        for row in self._rows(app_id):
            if (row["State"], row["Labels"].get(Label.REPLICA)) == ("running", "0"):
                self._client.containers.get(row["Id"]).exec_run(["touch", self.stop_file])

    def vanish(self, app_id: str) -> None:
        for row in self._rows(app_id):
            self._client.api.remove_container(row["Id"], force=True, v=True)

    def _rows(self, app_id: str) -> list[dict[str, Any]]:
        return self._client.api.containers(all=True, filters={"label": f"{Label.APP_ID}={app_id}"})

    def close(self, names: set[str]) -> None:
        ids = [row.app_id for row in self.scheduler.list() if row.name in names]
        cleanup.remove_managed(self._client, lambda name: name.startswith(tuple(ids)))
        self.scheduler.close()
