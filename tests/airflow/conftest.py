from __future__ import annotations

import json
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.guarantees import place
from tests.airflow.plugin import ENGINES, OPENED
from tests.airflow.support import FakeExecutionApi
from tests.airflow.versions import HAS_STORE
from tests.support.apps import until
from tests.support.fake_scheduler import FakeEngine

__all__ = ["place"]


@pytest.fixture(autouse=True)
def launch_home(tmp_path_factory, monkeypatch):
    """Each test has its own local apps: the ids of equal tasks are equal."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("LAUNCH_HOME", str(home))
    if not HAS_STORE:
        # For an app that a kill may be ending: see `operators/_earlier.py`.
        monkeypatch.setenv("AIRFLOW__LAUNCH__REPLACE_WAIT_S", "1")
    return home


@pytest.fixture(autouse=True)
def no_masks() -> Iterator[None]:
    """Each test masks only its own secrets, because its output may contain those of another test."""
    from airflow.sdk._shared.secrets_masker import reset_secrets_masker

    from airflow_provider_launch._task import secrets

    # Each task has a process of its own.
    secrets._registered.clear()
    reset_secrets_masker()
    yield
    reset_secrets_masker()


@pytest.fixture
def engine(tmp_path_factory, monkeypatch) -> Iterator[FakeEngine]:
    """An engine that the test drives, behind a scheduler `fake` which is installed as a plug-in."""
    site = tmp_path_factory.mktemp("site")
    info = site / "launch_fake-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: launch-fake\nVersion: 1.0\n")
    group = "airflow_provider_launch.schedulers"
    (info / "entry_points.txt").write_text(f"[{group}]\nfake = tests.airflow.plugin:create_scheduler\n")
    monkeypatch.syspath_prepend(str(site))
    engine = FakeEngine()
    engine.name = uuid.uuid4().hex
    ENGINES[engine.name] = engine
    OPENED.clear()
    yield engine
    del ENGINES[engine.name]
    # A triggerer closes what it leaves on another thread.
    until(lambda: all(scheduler.closed for scheduler in OPENED), 5)


@pytest.fixture
def make_api(engine, monkeypatch):
    """Execution APIs, with the connection `cluster` to the engine."""

    def make(retries: int = 0, **params) -> FakeExecutionApi:
        extra = {"scheduler": "fake", "params": {"engine": engine.name, **params}}
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "launch", "extra": extra}))
        return FakeExecutionApi(retries)

    return make


@pytest.fixture
def api(make_api) -> FakeExecutionApi:
    return make_api()


@pytest.fixture
def sigterm() -> Iterator[Callable[..., None]]:
    """Sends the signal as a worker does, to the whole process, when the condition holds."""
    before = signal.getsignal(signal.SIGTERM)
    threads: list[threading.Thread] = []
    main = threading.main_thread().ident
    assert main is not None

    def when(condition: Callable[[], object], task: Any) -> None:
        def send() -> None:
            until(condition)
            signal.pthread_kill(main, signal.SIGTERM)

        # Before the task runner has its own handler the signal would end pytest.
        signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
        threads.append(threading.Thread(target=send))
        threads[-1].start()

    yield when
    for thread in threads:
        thread.join()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def absent_engine(monkeypatch) -> None:
    """A connection `place` to an engine that is not there: a request is built without it."""
    extra = {"host": "tcp://127.0.0.1:9"}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_docker", "extra": extra}))


@pytest.fixture
def secret(tmp_path) -> Path:
    """A file of the worker that the one who triggers the DAG may not read."""
    path = tmp_path / "kubeconfig"
    path.write_text("Container: {Labels: {seen: hush-token}}\n")
    return path
