"""Trackers inside a job: the run of this replica, and the backends that its launcher configured.

```python
from airflow_provider_launch.tracker import app_run_from_env

run = app_run_from_env()
run.add_metadata(lr=0.1, epochs=3)
run.add_artifact("model", "s3://bucket/model.pt", {"format": "torch"})
```
"""

from __future__ import annotations

import abc
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from airflow_provider_launch.settings import (
    ENV_TORCHX_JOB_ID,
    ENV_TORCHX_PARENT_RUN_ID,
    ENV_TORCHX_TRACKERS,
    tracker_config_env_var_name,
)
from airflow_provider_launch.tracker.result import ResultFile
from airflow_provider_launch.util.entrypoints import load_group
from airflow_provider_launch.util.modules import load_module
from airflow_provider_launch.util.plugin_registry import PluginType, registry

__all__ = [
    "AppRun",
    "Lineage",
    "TrackerArtifact",
    "TrackerBase",
    "TrackerSource",
    "app_run_from_env",
    "tracker_config_env_var_name",
    "trackers_from_environ",
]

log = logging.getLogger(__name__)

_UNDEFINED = "<UNDEFINED>"


@dataclass
class TrackerSource:
    """A run that another run used, or one of its artifacts."""

    source_run_id: str
    artifact_name: str | None = None

    @property
    def parent(self) -> AppRun:
        """The run that was used, with the trackers of this process."""
        return AppRun(self.source_run_id, trackers_from_environ())


@dataclass
class TrackerArtifact:
    """A file, or another object at a path, that a run created."""

    name: str
    path: str
    metadata: Mapping[str, object] | None = None


@dataclass
class Lineage:
    """The origins of a run's artifacts; backends add their own fields."""


class TrackerBase(abc.ABC):
    """A tracker backend: stores artifacts, metadata and sources by run id."""

    @abc.abstractmethod
    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Record an artifact of the run; it replaces an earlier one of the same name."""

    @abc.abstractmethod
    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """Return the artifacts of the run by name."""

    @abc.abstractmethod
    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Record values of the run; later ones win."""

    @abc.abstractmethod
    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return the values of the run."""

    @abc.abstractmethod
    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Record that the run used another run, or one of its artifacts."""

    @abc.abstractmethod
    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        """Return the sources of the run; with a name, only sources of that artifact."""

    @abc.abstractmethod
    def lineage(self, run_id: str) -> Lineage:
        """Return the origins of the run's artifacts."""

    @abc.abstractmethod
    def run_ids(self, **kwargs: str) -> Iterable[str]:
        """Return the ids of runs; the backend defines the keyword arguments that filter them."""


def trackers_from_environ() -> list[TrackerBase]:
    """Return the trackers listed in `TORCHX_TRACKERS`, each created with its `TORCHX_TRACKER_<NAME>_CONFIG`.

    A name is an entry point of `airflow_provider_launch.tracker`, or `module:factory`. Trackers that cannot be created
    are skipped with a warning: a run must not fail because of its trackers.
    """
    names = [name.strip() for name in os.environ.get(ENV_TORCHX_TRACKERS, "").split(",")]
    known = {**_BUILTIN, **load_group(PluginType.TRACKER.value), **registry.get(PluginType.TRACKER)}
    found = (_tracker(name, known) for name in dict.fromkeys(names) if name)
    return [tracker for tracker in found if tracker is not None]


def _fsspec(config: str | None) -> TrackerBase:
    # Imported by name, because it imports this module.
    made: TrackerBase = importlib.import_module("airflow_provider_launch.tracker.backend.fsspec").create(config)
    return made


_BUILTIN: Mapping[str, Callable[..., Any]] = {"fsspec": _fsspec}


def _tracker(name: str, known: Mapping[str, Callable[..., Any]]) -> TrackerBase | None:
    factory = known.get(name) or (load_module(name) if ":" in name else None)
    if factory is None:
        log.warning(
            "tracker %r is skipped: no entry point and no module:factory of this name can be loaded; "
            "install its package in the image of the replicas, or correct the name",
            name,
        )
        return None
    if not callable(factory):
        log.warning("tracker %r is skipped: it is not a function that creates a tracker", name)
        return None
    try:
        made: TrackerBase = factory(os.environ.get(tracker_config_env_var_name(name)))
    except Exception as error:  # noqa: BLE001 - whatever it raises
        log.warning("tracker %r is skipped: %s: %s", name, type(error).__name__, error)
        return None
    return made


class AppRun:
    """A run, and the backends that store its records.

    Artifacts and metadata are also added to the app's result, if this replica can return one.

    Args:
        id: the id of the run.
        backends: the backends that store the records.
    """

    def __init__(self, id: str, backends: Iterable[TrackerBase]) -> None:  # noqa: A002 - a name of the launcher model
        self.id = id
        self.backends = list(backends)
        self._result = ResultFile()

    @staticmethod
    @lru_cache
    def run_from_env() -> AppRun:
        """Return the run of this replica, always the same object; the run that launched it is its source."""
        run = AppRun(os.environ.get(ENV_TORCHX_JOB_ID) or _UNDEFINED, trackers_from_environ())
        if parent := os.environ.get(ENV_TORCHX_PARENT_RUN_ID):
            run.add_source(parent)
        return run

    def add_metadata(self, **kwargs: object) -> None:
        """Record values of the run; later ones win."""
        for backend in self.backends:
            backend.add_metadata(self.id, **kwargs)
        self._result.add_metadata(kwargs)

    def add_artifact(self, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Record an artifact of the run."""
        for backend in self.backends:
            backend.add_artifact(self.id, name, path, metadata)
        self._result.add_artifact(name, path, metadata)

    def add_source(self, source_id: str, artifact_name: str | None = None) -> None:
        """Record that the run used another run, or one of its artifacts."""
        for backend in self.backends:
            backend.add_source(self.id, source_id, artifact_name)

    def sources(self) -> Iterable[TrackerSource]:
        """Return the sources of the run, from the first backend that has any."""
        for backend in self.backends:
            if found := list(backend.sources(self.id)):
                return found
        return []

    def job_id(self) -> str:
        """Return the id of the run: the handle of its app."""
        return self.id


def app_run_from_env() -> AppRun:
    """Return the run of this replica, see `AppRun.run_from_env`."""
    return AppRun.run_from_env()
