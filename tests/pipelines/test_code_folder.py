"""The folder in which the code of a step is."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_launch.pipelines.apps import code_folder
from airflow_provider_launch.pipelines.executors import ExecutorSettings
from airflow_provider_launch.pipelines.model import DagStep, Graph, PipelineModel, TaskStep
from airflow_provider_launch.pipelines.validation import load


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a pipeline in `root/flows/daily`; a module lies in each folder above."""
    for name in ("root/flows/daily", "root/package", "root/books"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("outside.py", "root/top.py", "root/flows/middle.py", "root/flows/daily/near.py", "root/books/b.ipynb"):
        (tmp_path / name).touch()
    return tmp_path


def found(project: Path, command: str, command_type: str = "python", code_dir: str = "") -> str:
    model = PipelineModel(Graph("s", {}), "p", project / "root" / "flows" / "daily")
    step = TaskStep("s", command=command, command_type=command_type)
    return code_folder(model, ExecutorSettings(code_dir=code_dir), step).relative_to(project).as_posix()


@pytest.mark.parametrize(
    ("command", "kind", "folder"),
    [
        ("near.f", "python", "root/flows/daily"),
        ("middle.f", "python", "root/flows"),
        ("top.f", "python", "root"),
        ("package.part.f", "python", "root"),
        ("books/b.ipynb", "notebook", "root"),
        ("installed.f", "python", "root/flows/daily"),
        ("outside.f", "python", "root/flows/daily"),
        ("top.f", "shell", "root/flows/daily"),
    ],
)
def test_the_code_of_a_project_is_found(project: Path, command: str, kind: str, folder: str) -> None:
    """Paths of magnus and runnable count from the root of the project, where users start them."""
    (project / "root" / "pyproject.toml").touch()

    assert found(project, command, kind) == folder
    assert found(project, command, kind, code_dir="..") == "root/flows"


def test_without_a_project_only_the_folder_of_the_file_counts(project: Path) -> None:
    assert found(project, "top.f") == "root/flows/daily"


def test_the_code_of_an_included_file_is_next_to_it(tmp_path: Path, write) -> None:
    step = "{type: task, command: %s.f, next: success}"
    write(f"dag: {{start_at: b, steps: {{b: {step % 'helper'}}}}}\n", "parts/part.yaml")
    write("", "parts/helper.py")
    path = write("dag: {start_at: a, steps: {a: {type: dag, dag_definition: parts/part.yaml, next: success}}}\n")
    model = load(path)
    part = model.graph.steps["a"]
    assert isinstance(part, DagStep)
    assert part.branch is not None
    inner = part.branch.steps["b"]
    assert isinstance(inner, TaskStep)

    assert code_folder(model, ExecutorSettings(), inner) == tmp_path / "parts"
    write("", "helper.py")
    assert code_folder(model, ExecutorSettings(), inner) == tmp_path


def test_a_folder_of_all_users_is_not_searched(project: Path) -> None:
    """Another user could put a module there."""
    (project / "root" / ".git").mkdir()
    (project / "root").chmod(0o1777)

    assert found(project, "top.f") == "root/flows/daily"
