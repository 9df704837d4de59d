"""Installs the plug-ins of this folder, as pip would, and starts the queue of task spooler."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_launch.connections.extras import plugin_scheduler
from airflow_provider_launch.schedulers.queue import QueueScheduler
from tests.plugins.tsp_engine import TspEngine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture
def install(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Path]]:
    """Put a plug-in with its entry points on the path of this process and of its children."""
    modules: list[str] = []

    def install(name: str) -> Path:
        source = Path(__file__).parent / name
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
        modules.extend(project["tool"]["setuptools"]["py-modules"])
        site = tmp_path_factory.mktemp("site")
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['project']['name']}\nVersion: 1.0\n")
        lines = []
        for group, points in project["project"]["entry-points"].items():
            lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        for path in (site, source):
            monkeypatch.syspath_prepend(str(path))
            inherited = filter(None, [os.environ.get("PYTHONPATH")])
            monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(path), *inherited]))
        plugin_scheduler.cache_clear()
        return source

    yield install
    for module in modules:
        sys.modules.pop(module, None)
    plugin_scheduler.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture
def engine(install: Callable[[str], Path], tmp_path: Path) -> Iterator[TspEngine]:
    """A queue that runs one job at a time."""
    install("launch_tsp")
    engine = TspEngine(tmp_path)
    engine.tsp("-S", "1")
    yield engine
    engine.tsp("-K")


@pytest.fixture
def scheduler(engine: TspEngine) -> Iterator[QueueScheduler]:
    """A scheduler of this queue; its apps are deleted."""
    import launch_tsp

    scheduler = launch_tsp.create_scheduler("test", root=str(engine.root), socket=engine.socket)
    yield scheduler
    for row in scheduler.list():
        scheduler.delete(row.app_id)
