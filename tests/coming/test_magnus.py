"""Pipelines of magnus and runnable do the same as DAGs. Both peers have environments of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.pipelines import dag_from_file
from tests.coming.conftest import COMING_FROM
from tests.pipelines.conftest import database, launch_home, test_dag

__all__ = ["database", "launch_home", "test_dag"]

pytestmark = pytest.mark.timeout(300)

_FILE = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PARAMETERS = "rows: 3\nshards: [a, b]\n"


def run_theirs(program: Path, *arguments: str, folder: Path, **env: str) -> None:
    command = [str(program), *arguments]
    whole = {**os.environ, **env}
    done = subprocess.run(command, cwd=folder, env=whole, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def found(folder: Path, pattern: str) -> dict[str, str]:
    """Return the texts of the files below a folder by name."""
    return {path.name: path.read_text(encoding="utf-8") for path in folder.rglob(pattern)}


@pytest.fixture
def written(tmp_path) -> Any:
    """Write files of a project, and return their folder."""

    def write(files: dict[str, str], name: str = "project") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for each, text in files.items():
            (folder / each).write_text(text, encoding="utf-8")
        return folder

    return write


def test_the_files_of_the_page_with_a_catalog_and_a_secret(
    written, moves, test_dag, launch_home, peer_python, monkeypatch
):
    files = dict(_FILE.findall((COMING_FROM / "magnus.md").read_text(encoding="utf-8")))
    assert files.keys() == {"train.yaml", "parameters.yaml", "config.yaml", "steps.py"}
    older, count = re.subn(r"\n.*# new\n", "\n", files["train.yaml"])
    assert count == 1
    theirs = written({**files, "train.yaml": older}, "theirs")
    arguments = ["execute", "-f", "train.yaml", "-p", "parameters.yaml", "-c", "config.yaml"]
    run_theirs(peer_python("magnus").with_name("magnus"), *arguments, folder=theirs, token="s3cr3t")

    moves.folder = written(files, "ours")
    monkeypatch.setenv("AIRFLOW_VAR_TOKEN", "s3cr3t")
    (dag,) = moves.dags_of_page("magnus")
    run = test_dag(dag)

    assert run.state == "success", run.states
    reports = found(theirs / ".catalog", "report.txt")
    assert reports["report.txt"] == "3 rows, total 6, shards ['a', 'b'], a token of 6 letters"
    assert found(launch_home, "report.txt") == reports


MAP = """
dag:
  start_at: each
  steps:
    each:
      type: map
      iterate_on: shards
      iterate_as: shard
      next: success
      branch:
        start_at: count
        steps:
          count:
            type: task
            command: steps.count
            catalog: {put: ["*.txt"]}
            next: success
          success: {type: success}
          fail: {type: fail}
    success: {type: success}
    fail: {type: fail}
"""
COUNT = """
from pathlib import Path

def count(shard: str, rows: int):
    Path(f"count-{shard}.txt").write_text(f"{rows} rows of {shard}")
"""


def test_a_map(written, test_dag, launch_home, peer_python):
    config = "catalog: {type: file-system}"
    files = {"train.yaml": MAP, "steps.py": COUNT, "parameters.yaml": PARAMETERS, "config.yaml": config}
    theirs = written(files, "theirs")
    arguments = ["execute", "-f", "train.yaml", "-p", "parameters.yaml", "-c", "config.yaml"]
    run_theirs(peer_python("magnus").with_name("magnus"), *arguments, folder=theirs)

    ours = written(files, "ours")
    run = test_dag(dag_from_file(ours / "train.yaml", "ours_map", parameters_file=ours / "parameters.yaml"))

    assert run.state == "success", run.states
    counts = found(theirs / ".catalog", "count-*.txt")
    assert counts == {f"count-{shard}.txt": f"3 rows of {shard}" for shard in "ab"}
    assert found(launch_home, "count-*.txt") == counts


SDK = """
import json
import sys
from pathlib import Path

from runnable import Catalog, Pipeline, PythonTask, ShellTask
from steps import prepare, report


def main():
    pipeline = Pipeline(steps=[
        PythonTask(name="prepare", function=prepare, returns=["total"], catalog=Catalog(put=["rows.txt"])),
        ShellTask(
            name="double",
            command="cat rows.txt rows.txt > twice.txt",
            catalog=Catalog(get=["rows.txt"], put=["twice.txt"]),
        ),
        PythonTask(name="report", function=report, catalog=Catalog(get=["twice.txt"], put=["report.txt"])),
    ])
    if sys.argv[1:]:
        from airflow_provider_launch.pipelines import Pipeline as Ours
        Path(sys.argv[1]).write_text(json.dumps(Ours.from_runnable(pipeline, "train").document()))
    else:
        pipeline.execute(parameters_file="parameters.yaml")
    return pipeline


if __name__ == "__main__":
    main()
"""
STEPS = """
from pathlib import Path

def prepare(rows: int):
    Path("rows.txt").write_text("row\\n" * rows)
    return 2 * rows

def report(total: int):
    rows = len(Path("twice.txt").read_text().splitlines())
    Path("report.txt").write_text(f"{rows} rows, total {total}")
"""


def test_a_pipeline_in_python(written, test_dag, launch_home, peer_python, checkout):
    """The real objects of runnable are read in its environment, where Airflow is missing."""
    files = {"train.py": SDK, "steps.py": STEPS, "parameters.yaml": PARAMETERS}
    theirs = written(files, "theirs")
    python = peer_python("runnable")
    run_theirs(python, "train.py", folder=theirs)

    ours = written(files, "ours")
    run_theirs(python, "train.py", "train.json", folder=ours, PYTHONPATH=str(checkout))
    (ours / "train.yaml").write_text((ours / "train.json").read_text())
    assert json.loads((ours / "train.json").read_text())["dag"]["steps"].keys() >= {"prepare", "double", "report"}
    run = test_dag(dag_from_file(ours / "train.yaml", "ours_sdk", parameters_file=ours / "parameters.yaml"))

    assert run.state == "success", run.states
    reports = found(theirs / ".catalog", "report.txt")
    assert reports["report.txt"] == "6 rows, total 6"
    assert found(launch_home, "report.txt") == reports
