"""Two of everything at once: DAGs, runs, elements, attempts, files, objects and notebooks in shared folders."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

CODE = """
import os
import pathlib
import time


class Model:
    def __init__(self, who, x):
        self.who, self.x = who, x


def make(who, x, flags):
    pathlib.Path(f"part-{os.getpid()}.txt").write_text(f"{who}-{x} ")
    time.sleep(0.2)
    flag = pathlib.Path(flags, f"{who}-{x}")
    if not flag.exists():
        flag.touch()
        raise Exception("the first attempt")
    return Model(who, x)


def collect(model, score, look):
    files = sorted(path.read_text() for path in pathlib.Path().glob("m/*/part-*.txt"))
    books = len(list(pathlib.Path().glob("m/*/book_out.ipynb")))
    return [f"{one.who}-{one.x}" for one in model], score, [one.x for one in look], "".join(files), books
"""
FILE = """
catalog: CATALOG
parameters: {who: none, xs: [1, 2], flags: FLAGS}
dag:
  start_at: m
  steps:
    m:
      type: map
      iterate_on: xs
      iterate_as: x
      next: collect
      branch:
        start_at: make
        steps:
          make: {type: task, command: at_once.make, returns: [{name: model, kind: object}], max_attempts: 2, catalog: {put: "part-*.txt"}, next: book}
          book: {type: task, command_type: notebook, command: book.ipynb, returns: [score, {name: look, kind: object}], next: success}
    collect: {type: task, command: at_once.collect, returns: [models, scores, looks, files, books], catalog: {get: "m/**"}, next: success}
"""
CELL = "import time\ntime.sleep(0.2)\nscore = f'{model.who}-{model.x * 10}'\nlook = model"
# One DAG in this process, with a database of its own; all other folders are shared.
RUN = """
import json, os, sys
import datetime
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagbundle import DagBundleModel
from airflow.utils.session import create_session
from airflow_provider_launch.pipelines import dag_from_file

who, dag_id, day = sys.argv[1:]
dag = dag_from_file(os.path.join(os.getcwd(), "pipeline.yaml"), dag_id)
with create_session() as session:
    session.merge(DagBundleModel(name="tests"))
bag = DagBag(dag_folder=os.devnull)
bag.bag_dag(dag)
sync_bag_to_db(bag, bundle_name="tests", bundle_version="1")
at = datetime.datetime(2026, 1, int(day), tzinfo=datetime.timezone.utc)
run = dag.test(run_conf={"who": who}, logical_date=at, run_after=at)
from airflow.models.xcom import XComModel
with create_session() as session:
    found = XComModel.get_many(key="parameters", run_id=run.run_id, dag_ids=dag_id, task_ids="collect", map_indexes=-1)
    value = session.execute(found.with_only_columns(XComModel.value)).scalars().first()
print(json.dumps(json.loads(value)["returned"] if isinstance(value, str) else value["returned"]))
"""


@pytest.fixture
def folder(write, tmp_path) -> Path:
    pytest.importorskip("nbclient")
    write(CODE, "at_once.py")
    write(FILE.replace("CATALOG", str(tmp_path / "catalog")).replace("FLAGS", str(tmp_path)))
    cell = {"cell_type": "code", "metadata": {}, "source": CELL, "outputs": [], "execution_count": None, "id": "a"}
    write(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), "book.ipynb")
    return tmp_path


def check(found: dict, who: str) -> None:
    assert found == {
        "models": [f"{who}-1", f"{who}-2"],
        "scores": [f"{who}-10", f"{who}-20"],
        "looks": [1, 2],
        "files": f"{who}-1 {who}-2 ",
        "books": 2,
    }


@pytest.mark.timeout(900)
def test_runs_and_dags_in_airflow_share_no_file_object_or_notebook(database, folder, tmp_path) -> None:
    """Two runs of one DAG, and a run of another DAG of the same file, at the same time; each element has two attempts."""
    home = Path(os.environ["AIRFLOW_HOME"])
    running = {}
    for who, dag_id, day in (("red", "one", "1"), ("blue", "one", "2"), ("green", "two", "1")):
        own = tmp_path / "homes" / who
        own.mkdir(parents=True)
        # Not a copy of the file, because a part of the tables may still be in its log.
        with (
            closing(sqlite3.connect(home / "airflow.db")) as ours,
            closing(sqlite3.connect(own / "airflow.db")) as copy,
        ):
            ours.backup(copy)
        env = {
            **os.environ, "AIRFLOW_HOME": str(own),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{own / 'airflow.db'}",
        }  # fmt: skip
        command = [sys.executable, "-c", RUN, who, dag_id, day]
        running[who] = subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    for who, process in running.items():
        lines = process.communicate(timeout=600)[0].splitlines()
        assert process.returncode == 0, "\n".join(lines[-40:])
        check(json.loads(lines[-1]), who)
    # Only the last files of each element are left of two attempts in three runs.
    assert len([*(tmp_path / "catalog").rglob("part-*.txt")]) == 6


@pytest.mark.timeout(900)
def test_runs_at_the_desk_share_no_file_object_or_notebook(folder) -> None:
    command = [sys.executable, "-m", "airflow_provider_launch.pipelines", "run", "pipeline.yaml"]
    running = {
        who: subprocess.Popen(
            [*command, "--set", f"who={who}"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for who in ("red", "blue")
    }

    for who, process in running.items():
        lines = process.communicate(timeout=600)[0].splitlines()
        assert process.returncode == 0, "\n".join(lines[-40:])
        values = json.loads(lines[-1])
        check({name: values[name] for name in ("models", "scores", "looks", "files", "books")}, who)
