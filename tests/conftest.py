"""What all tests share: a home of their own, and engines that are asked for by name.

Airflow reads its configuration when it is imported and then writes `airflow.cfg`, so the variables are set here,
before any test module is imported. Each process (also each of `pytest -n`) gets a fresh folder, removed at its end.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest

from tests.engines.aws_batch import engine as aws_batch
from tests.engines.aws_batch.fixtures import batch_params, batch_proxy, batch_queue, batch_server
from tests.engines.docker.daemon import EngineError
from tests.engines.docker.engine import Use
from tests.engines.docker.fixtures import docker_engine, docker_project, docker_proxy
from tests.engines.docker.private import PrivateDocker
from tests.engines.kubernetes import engine as kubernetes
from tests.engines.kubernetes.fixtures import (
    kubernetes_api_server,
    kubernetes_engine,
    kubernetes_make_namespace,
    kubernetes_make_queue,
    kubernetes_namespace,
    kubernetes_proxy,
)
from tests.engines.registry import install_registry, missing_registry, registry
from tests.engines.slurm import accounting as slurm_accounting
from tests.engines.slurm import engine as slurm
from tests.engines.slurm.fixtures import slurm_cluster, slurm_commands, slurm_pipe, slurm_root
from tests.engines.task_spooler import install_task_spooler, missing_task_spooler
from tests.support import passed_before
from tests.support.engines import refuse_unknown, required
from tests.support.two_runs import TwoRuns

__all__ = [  # fixtures for all
    "batch_params",
    "batch_proxy",
    "batch_queue",
    "batch_server",
    "docker_engine",
    "docker_project",
    "docker_proxy",
    "kubernetes_api_server",
    "kubernetes_engine",
    "kubernetes_make_namespace",
    "kubernetes_make_queue",
    "kubernetes_namespace",
    "kubernetes_proxy",
    "registry",
    "slurm_cluster",
    "slurm_commands",
    "slurm_pipe",
    "slurm_root",
]

CHECKOUT = Path(__file__).resolve().parent.parent


def _fresh_home() -> Path:
    # Not below .build: its path may be long, and a Unix socket's path may not.
    home = Path(tempfile.mkdtemp(prefix="launch-tests-"))
    owner = os.getpid()

    def remove() -> None:
        # A forked child leaves through here too; the folder is its parent's.
        if os.getpid() == owner:
            shutil.rmtree(home, ignore_errors=True)

    atexit.register(remove)
    return home


HOME = _fresh_home()
(HOME / "airflow" / "dags").mkdir(parents=True)
for name in [name for name in os.environ if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_"))]:
    del os.environ[name]
os.environ.update(
    AIRFLOW_HOME=str(HOME / "airflow"),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__CORE__DAGS_FOLDER=str(HOME / "airflow" / "dags"),
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{HOME / 'airflow' / 'airflow.db'}",
    LAUNCH_HOME=str(HOME / "launch"),
    # Apps of tests end at once, and what is tested is how the trigger follows; tests of these options set them.
    AIRFLOW__LAUNCH__DEFER_AFTER_S="0",
    # Tests look at apps when their tasks have ended; tests of this option set it.
    AIRFLOW__LAUNCH__ON_FINISH="keep",
    AIRFLOW__LAUNCH__TRIGGER_FIRE_AFTER_S="0",
    # The same; most tests of triggers have no Airflow behind them that could answer.
    AIRFLOW__LAUNCH__RECONCILE_INTERVAL_S="0",
    AIRFLOW__LAUNCH__DEPLOYMENT_ID="tests",
)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _missing_local() -> str | None:
    return None if os.name == "posix" else f"local processes need a POSIX system, this is {sys.platform}"


def _begin_docker(_: pytest.Config) -> None:
    os.environ["DOCKER_HOST"] = _docker.begin(start=required("docker"))


def _begin_dockerd(_: pytest.Config) -> None:
    if required("dockerd"):
        PrivateDocker.install()
    if reason := PrivateDocker.missing():
        raise EngineError(reason)


def _begin_kubernetes(config: pytest.Config) -> None:
    def say(text: str) -> None:
        # Building takes minutes, and pytest would keep the reason to itself.
        with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            kubernetes.say(text)

    _kubernetes.begin(start=any(map(required, ("kubernetes", "kube-apiserver", "kueue"))), say=say)


def _begin_kube_apiserver(_: pytest.Config) -> None:
    if reason := kubernetes.why_not_ours():
        raise EngineError(reason)


def _begin_kueue(_: pytest.Config) -> None:
    if reason := kubernetes.why_no_kueue(build=required("kueue")):
        raise EngineError(reason)


def _begin_registry(_: pytest.Config) -> None:
    if required("registry"):
        install_registry()
    if reason := missing_registry():
        raise EngineError(reason)


def _begin_aws_batch(_: pytest.Config) -> None:
    # Each process starts a server when a test wants one; here is only seen whether it could.
    if required("aws_batch") and os.environ.get(f"{_MISSING}docker"):
        _begin_docker_for_batch()
    if reason := aws_batch.why_missing(os.environ.get(f"{_MISSING}docker")):
        raise EngineError(reason)


def _begin_docker_for_batch() -> None:
    os.environ["DOCKER_HOST"] = _docker.begin(start=True)
    os.environ.pop(f"{_MISSING}docker", None)


def _begin_slurm(_: pytest.Config) -> None:
    _slurm.begin(start=required("slurm"))


def _begin_slurmctld(_: pytest.Config) -> None:
    if required("slurmctld"):
        slurm.install_programs()
    if reason := slurm.why_missing():
        raise EngineError(reason)


def _begin_slurmdbd(config: pytest.Config) -> None:
    if required("slurmdbd"):
        slurm_accounting.install_programs()
    _begin_slurmctld(config)
    if reason := slurm_accounting.why_missing():
        raise EngineError(reason)


def _begin_task_spooler(_: pytest.Config) -> None:
    if required("task-spooler"):
        install_task_spooler()
    if reason := missing_task_spooler():
        raise EngineError(reason)


_docker = Use()
_kubernetes = kubernetes.Use()
_slurm = slurm.Use()
_BEGIN = {
    "docker": _begin_docker,
    "dockerd": _begin_dockerd,
    "kubernetes": _begin_kubernetes,
    "kube-apiserver": _begin_kube_apiserver,
    "kueue": _begin_kueue,
    "registry": _begin_registry,
    "aws_batch": _begin_aws_batch,  # after docker, in which its jobs run
    "slurm": _begin_slurm,
    "slurmctld": _begin_slurmctld,
    "slurmdbd": _begin_slurmdbd,
    "task-spooler": _begin_task_spooler,
}
_MISSING = "LAUNCH_TESTS_MISSING_"  # tells the workers of `pytest -n` what their controller found


def _missing_torch() -> str | None:
    return None if importlib.util.find_spec("torch") else "torch is not installed; make torch installs it, 5 GB"


# Engine -> why it cannot be used here, or None. A backend adds its own line.
ENGINES = {
    "local": _missing_local,
    "docker": partial(os.environ.get, f"{_MISSING}docker"),
    "dockerd": partial(os.environ.get, f"{_MISSING}dockerd"),  # one that a test may stop and start
    "kubernetes": partial(os.environ.get, f"{_MISSING}kubernetes"),
    "torch": _missing_torch,
    "kube-apiserver": partial(os.environ.get, f"{_MISSING}kube-apiserver"),  # the same
    "kueue": partial(os.environ.get, f"{_MISSING}kueue"),
    "registry": partial(os.environ.get, f"{_MISSING}registry"),  # of images, for workspaces
    "aws_batch": partial(os.environ.get, f"{_MISSING}aws_batch"),
    "slurm": partial(os.environ.get, f"{_MISSING}slurm"),
    "slurmctld": partial(os.environ.get, f"{_MISSING}slurmctld"),  # the same, of a cluster of a test's own
    "slurmdbd": partial(os.environ.get, f"{_MISSING}slurmdbd"),  # accounts of such a cluster
    "task-spooler": partial(os.environ.get, f"{_MISSING}task-spooler"),
}


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(TwoRuns())
    if plugin := passed_before.create_plugin():
        config.pluginmanager.register(plugin)


@pytest.hookimpl(tryfirst=True)  # before there are workers, which inherit the variables
def pytest_sessionstart(session: pytest.Session) -> None:
    """Look for the engines once for all processes, and start what is required and missing."""
    if hasattr(session.config, "workerinput"):
        return
    refuse_unknown(ENGINES)
    for name, begin in _BEGIN.items():
        os.environ.pop(f"{_MISSING}{name}", None)
        try:
            begin(session.config)
        except (EngineError, OSError) as error:
            os.environ[f"{_MISSING}{name}"] = str(error)


# Start of a node's id -> tests that run in one process. Each process whose tests run DAGs makes Airflow's API, and one
# for all of them would still run when the rest of the suite has ended.
_GROUPS = {
    "tests/live/": "live",
    "tests/pipelines/test_traversal.py": "steps of pipelines",
    "tests/pipelines/test_values.py": "values of pipelines",
    **{
        f"tests/pipelines/test_{name}.py": "pipelines"
        for name in ("examples", "builders", "places", "plugin", "dags", "layers")
    },
    "tests/airflow/test_worker_killed.py": "killed workers",  # which share a process that has imported Airflow
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep tests that need one Airflow, or a database of it, in few processes.

    xdist 3.8 loses its groups with pytest 9.2. The largest groups begin first.
    """
    from xdist.scheduler import LoadGroupScheduling

    class Scheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((group for start, group in _GROUPS.items() if nodeid.startswith(start)), nodeid)

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search no garbage among thousands of tests that all stay: that is a fifth of the time to collect them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Fixture that uses an engine -> the marks of which a test with it needs one.
_USES = {
    "docker_engine": {"docker", "aws_batch"},
    "kubernetes_engine": {"kubernetes"},
    "batch_server": {"aws_batch"},
    "slurm_cluster": {"slurm"},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test that needs an engine and is not marked with it: where the engine is missing, it would fail.

    Leave the tests of queues for the end: Kueue may still be being built.
    """
    last = []
    for item in items:
        marks = {mark.args[0] for mark in item.iter_markers("engine")}
        if "kueue" in marks:
            last.append(item)
        for fixture in _USES.keys() & set(getattr(item, "fixturenames", ())):
            if not marks & _USES[fixture]:
                wanted = " or ".join(sorted(_USES[fixture]))
                raise pytest.UsageError(f"{item.nodeid} uses {fixture}: mark it with engine({wanted})")
    late = {*map(id, last)}
    items[:] = [*(item for item in items if id(item) not in late), *last]


def pytest_unconfigure() -> None:
    """Stop what this session started."""
    _docker.end()
    _kubernetes.end()
    _slurm.end()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `engine(name)` runs where the engine answers, and else says why not."""
    for mark in item.iter_markers("engine"):
        (engine,) = mark.args
        if reason := ENGINES[engine]():
            if required(engine):
                pytest.fail(f"engine {engine} is required and missing: {reason}", pytrace=False)
            pytest.skip(f"engine {engine}: {reason}")


def pytest_report_header() -> list[str]:
    """Say on top which engines this machine has."""
    states = [f"{name} ({reason})" if (reason := missing()) else name for name, missing in ENGINES.items()]
    wanted = os.environ.get("LAUNCH_REQUIRE_ENGINES", "those that answer")
    return [f"engines: {', '.join(states)}; required: {wanted}"]


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the source checkout."""
    return CHECKOUT
