"""Pipelines in files of the test, run by `dag.test()` with a database."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sqlite3
import textwrap
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

_numbers = itertools.count()


def name_of(ti: Any) -> str:
    return str(ti.task_id) if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]"


class RunResult:
    """The outcome of a run of a pipeline."""

    def __init__(self, run: Any, dag: Any) -> None:
        self.run = run
        self.dag = dag
        self.state = str(run.state.value if hasattr(run.state, "value") else run.state)
        self.states: dict[str, Any] = {}
        for ti in run.get_task_instances():
            self.states[name_of(ti)] = None if ti.state is None else str(ti.state)

    def where(self, state: str) -> set[str]:
        """Return the tasks in a state, without those added by the pipeline."""
        ours = ("__ok", "__failed", "__join", "__case", "fan_out", "fan_in", ".join")
        return {
            name for name, found in self.states.items() if found == state and not name.partition("[")[0].endswith(ours)
        }

    def xcom(self, task_id: str, key: str = "parameters", map_index: int = -1) -> Any:
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        with create_session() as session:
            found = XComModel.get_many(
                key=key, run_id=self.run.run_id, dag_ids=self.run.dag_id, task_ids=task_id, map_indexes=map_index
            ).with_only_columns(XComModel.value)
            value = session.execute(found).scalars().first()
        import json

        return json.loads(value) if isinstance(value, str) else value

    def parameters(self, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return the parameters that later tasks see."""
        return (self.xcom(task_id, map_index=map_index) or {}).get("values", {})

    def returned(self, task_id: str, map_index: int = -1) -> dict[str, Any]:
        return (self.xcom(task_id, map_index=map_index) or {}).get("returned", {})


@pytest.fixture(scope="session")
def database(checkout: Path) -> None:
    """Airflow's database: a copy of one that was made once by this version, because its migrations take eight seconds."""
    path = Path(os.environ["AIRFLOW_HOME"], "airflow.db")
    made = checkout / ".build" / "cache" / f"airflow-{version('apache-airflow-core')}.db"
    if made.exists() and not path.exists():
        shutil.copyfile(made, path)
        return
    from airflow.utils.db import initdb

    initdb()
    made.parent.mkdir(parents=True, exist_ok=True)
    own = made.with_suffix(f".{os.getpid()}")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"VACUUM INTO '{own}'")
    own.replace(made)


@pytest.fixture(autouse=True)
def launch_home(tmp_path_factory, monkeypatch):
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("LAUNCH_HOME", str(home))
    return home


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """Write a file into the folder of the test, and return its path."""

    def write_file(text: str, name: str = "pipeline.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def test_dag(database) -> Callable[..., RunResult]:
    """Run a DAG to its end."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    def run(dag: Any, **kwargs: Any) -> RunResult:
        with create_session() as session:
            session.merge(DagBundleModel(name="tests"))
        bag = DagBag(dag_folder=os.devnull)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, bundle_name="tests", bundle_version="1")
        return RunResult(dag.test(**kwargs), dag)

    return run


@pytest.fixture
def clear(database) -> Callable[..., RunResult]:
    """Mark tasks of a finished run as successes, clear others, and let the run continue, as users do in the UI."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import clear_task_instances
    from airflow.sdk.definitions.dag import _run_task
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState

    def run(ran: RunResult, *cleared: str, successes: tuple[str, ...] = (), dag: Any = None) -> RunResult:
        dag = dag or ran.dag
        with create_session() as session:
            found = session.get(DagRun, ran.run.id)
            tis = {name_of(ti): ti for ti in found.get_task_instances(session=session)}
            for name in successes:
                tis[name].set_state(TaskInstanceState.SUCCESS, session=session)
            clear_task_instances([tis[name] for name in cleared], session)
            found.state = DagRunState.RUNNING
            found.dag = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
            session.commit()
            # The loop of `dag.test`, which starts with a new run.
            while found.state == DagRunState.RUNNING:
                session.expire_all()
                ready, _ = found.update_state(session=session)
                for ti in ready:
                    ti.try_number += 1
                    ti.state = TaskInstanceState.SCHEDULED
                session.commit()
                for ti in found.get_task_instances(session=session):
                    if ti.state == TaskInstanceState.SCHEDULED:
                        with contextlib.suppress(Exception):
                            _run_task(ti=ti, task=dag.task_dict[ti.task_id], run_triggerer=True)
            return RunResult(found, dag)

    return run


@pytest.fixture
def run_pipeline(write, test_dag) -> Callable[..., RunResult]:
    """Run a pipeline, given as text or as a path, to its end."""
    from airflow_provider_launch.pipelines import dag_from_file

    def run(
        pipeline: str | Path,
        conf: dict[str, Any] | None = None,
        *,
        dag_id: str = "",
        at: datetime | None = None,
        **kwargs: Any,
    ) -> RunResult:
        path = pipeline if isinstance(pipeline, Path) else write(pipeline)
        dag = dag_from_file(path, dag_id or f"pipeline_{next(_numbers)}", **kwargs)
        return test_dag(dag, run_conf=conf, **({"run_after": at, "logical_date": at} if at else {}))

    return run
