"""One Airflow for the whole suite, whose scenarios run at the same time: each mostly waits."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ENGINES
from tests.live.airflow import Airflow
from tests.live.engines import DockerApps, EngineApps, LocalApps
from tests.live.postgres import Postgres, airflow_on_postgres
from tests.live.redis import redis_broker
from tests.live.runs import Run
from tests.support.repeats import often

HERE = Path(__file__).parent
_EXAMPLES = HERE.parents[1] / "example_dags"
DEMO = [_EXAMPLES / name for name in ("launch_local_demo.py", "launch_wordcount.py", "launch_wordcount.md")]
_AT_ONCE = 12
# For one test; a thousand tasks take a quarter of an hour to launch.
_TIMEOUT_S = often(1800, 6000)
_begun: dict[str, Future[None]] = {}
_threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="live")


class Live:
    """Airflow, the engines it launches on, its Postgres if it has one, and the runs of the tests."""

    def __init__(self, airflow: Airflow, engines: dict[str, EngineApps], postgres: Postgres | None = None) -> None:
        self.airflow = airflow
        self.engines = engines
        self.postgres = postgres
        self.names: set[str] = set()

    def run(self, dag_id: str, engine: str, script: str, **conf: Any) -> Run:
        """Trigger a DAG whose app runs the script on the engine."""
        run = Run(self.airflow, dag_id, engine=engine, image=self.engines[engine].image, script=script, **conf)
        self.names.add(run.run_id)
        return run


@pytest.fixture(scope="session")
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("live")
    (home / "root").mkdir()
    engines: dict[str, EngineApps] = {"local": LocalApps(home / "root")}
    if ENGINES["docker"]() is None:
        engines["docker"] = DockerApps(request.getfixturevalue("docker_engine"))
    connections = {name: engine.connection for name, engine in engines.items()}
    images = {name: engine.image for name, engine in engines.items()}
    if ENGINES["kubernetes"]() is None:
        # For pipelines only.
        cluster = request.getfixturevalue("kubernetes_engine")
        extra = {
            "kubeconfig_path": str(cluster.kubeconfig),
            "namespace": request.getfixturevalue("kubernetes_namespace"),
        }
        connections["kubernetes"] = {"conn_type": "launch_kubernetes", "extra": {**extra, "pull": "never"}}
        images["kubernetes"] = cluster.image
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, image in images.items():
            patch.setenv(f"LIVE_IMAGE_{name.upper()}", image)
        running = Live(Airflow(home, connections), engines)
        for engine in engines.values():
            # After Airflow, which would launch more.
            stack.callback(engine.close, running.names)
        stack.callback(running.airflow.end)
        running.airflow.begin()
        yield running
        _threads.shutdown(cancel_futures=True)


WATCHED = {
    "AIRFLOW__LAUNCH__RECONCILE_INTERVAL_S": "5",
    "AIRFLOW__CORE__PARALLELISM": "24",
    # Many workers start at once, and a busy host must not look like a lost one.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "45",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "120",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "20",
}


@pytest.fixture(scope="session")
def on_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Another Airflow, whose database stores no NUL, and whose triggerers compare apps and tasks each few seconds."""
    home = tmp_path_factory.mktemp("on-postgres")
    with airflow_on_postgres(home, has_faults=True, **WATCHED) as (airflow, postgres, apps):
        yield Live(airflow, {"local": apps}, postgres)


@pytest.fixture(scope="session")
def on_celery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Another Airflow, on Postgres, whose tasks run in a Celery worker with a Redis."""
    if importlib.util.find_spec("airflow.providers.celery") is None:
        pytest.skip("the celery provider is not installed; make celery does it")
    home = tmp_path_factory.mktemp("on-celery")
    with redis_broker() as broker:
        started = airflow_on_postgres(home, broker=broker, more_dags=DEMO)
        with started as (airflow, postgres, apps):
            yield Live(airflow, {"local": apps}, postgres)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: a scenario that disturbs others runs when they have ended")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the suite first, because it takes longest."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.timeout(_TIMEOUT_S))
    ours.sort(key=lambda item: item.get_closest_marker("alone") is not None)
    items[:] = [*ours, *(item for item in items if HERE not in item.path.parents)]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Start all scenarios with the first one; each test then waits for its own."""
    if HERE not in pyfuncitem.path.parents or pyfuncitem.get_closest_marker("alone"):
        return None
    if not _begun:
        live = pyfuncitem.funcargs["live"]
        for item in pyfuncitem.session.items:
            if call := _scenario(item, live):
                _begun[item.nodeid] = _threads.submit(call)
    _begun[pyfuncitem.nodeid].result()
    return True


def _scenario(item: pytest.Item, live: Live) -> Callable[[], None] | None:
    """Return the test as a call; None if it is not part of this suite, runs alone, or lacks its engine."""
    if HERE not in item.path.parents or item.get_closest_marker("alone") or not isinstance(item, pytest.Function):
        return None
    if any(ENGINES[mark.args[0]]() for mark in item.iter_markers("engine")):
        return None
    return partial(item.obj, live=live, **item.callspec.params)
