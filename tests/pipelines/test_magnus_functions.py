"""Steps that call the functions of magnus, which is not installed where they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.pipelines import program
from airflow_provider_launch.pipelines.parameters import returned_values, tracked

STEP = """
from magnus import Pipeline, get_parameter, get_run_id, get_secret, set_parameter, track_this

class Eggs:
    def __init__(self, ham):
        self.ham = ham

assert get_parameter("spam") == "Hello" and get_parameter("count", int) == 2, get_parameter()
assert get_parameter("eggs", cast_as=Eggs).ham == "No" and set(get_parameter()) == {"spam", "count", "eggs"}
assert get_secret("TOKEN") == "s3" and get_run_id() == "run"
set_parameter(spam="World", eggs={"ham": "Yes"}, unasked=1)
assert get_parameter("spam") == "World"
track_this(loss=0.5)
track_this(step=2, loss=0.25)
"""
PARAMETERS = {"spam": "Hello", "count": 2, "eggs": {"ham": "No"}}


def run(folder: Path, *arguments: str, **more: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    result = folder / "result"
    env = {"PATH": os.environ["PATH"], "LAUNCH_PARAMETERS": json.dumps(PARAMETERS), "LAUNCH_RUN_ID": "run"}
    env |= {"LAUNCH_RESULT_PATH": str(result), "TOKEN": "s3", "MAGNUS_PRM_spam": "Hello", **more}
    command = [sys.executable, str(Path(program.__file__)), *arguments]
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return ran, json.loads(result.read_text()) if result.exists() else None


@pytest.mark.parametrize(
    ("returns", "expected"),
    [([], {"spam": "World", "eggs": {"ham": "Yes"}, "unasked": 1}), (["spam"], {"spam": "World"})],
)
@pytest.mark.parametrize("kind", ["function", "notebook"])
def test_a_step_reads_and_sets_parameters_by_magnus(
    tmp_path: Path, kind: str, returns: list[str], expected: dict[str, Any]
) -> None:
    if kind == "notebook":
        pytest.importorskip("nbclient")
        cell = {"cell_type": "code", "metadata": {}, "source": STEP, "outputs": [], "execution_count": None, "id": "a"}
        book = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (tmp_path / "book.ipynb").write_text(json.dumps(book))
        arguments = ["notebook", "book.ipynb", "", ""]
    else:
        lines = "".join(f"    {line}\n" for line in STEP.splitlines())
        (tmp_path / "mine.py").write_text(f"def step():\n{lines}")
        arguments = ["function", "mine.step"]

    ran, document = run(tmp_path, *arguments, *returns)

    assert ran.returncode == 0, ran.stderr
    assert returned_values(document, returns or None, given={}, step="s") == expected
    assert tracked(document, "s") == {"loss": 0.5, "loss_STEP_2": 0.25}


def test_a_parameter_may_be_set_as_a_variable(tmp_path: Path) -> None:
    text = "import os\ndef step():\n    os.environ['MAGNUS_PRM_x'] = '[1]'\n    os.environ['OTHER'] = '2'\n"
    (tmp_path / "mine.py").write_text(text)

    ran, document = run(tmp_path, "function", "mine.step")

    assert (ran.returncode, document) == (0, {"x": [1]}), ran.stderr


def test_a_function_without_a_counterpart_is_refused_when_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from magnus import put_in_catalog\ndef step(): put_in_catalog('x')\n")

    ran, _ = run(tmp_path, "function", "mine.step")

    assert "magnus.put_in_catalog does not work here" in ran.stderr


def test_an_installed_magnus_is_used(tmp_path: Path) -> None:
    (tmp_path / "magnus.py").write_text("def get_parameter(): return {'x': 1}\n")
    (tmp_path / "mine.py").write_text("from magnus import get_parameter\ndef step(): return get_parameter()\n")

    ran, document = run(tmp_path, "function", "mine.step")

    assert document == {"x": 1}, ran.stderr


def test_an_async_generator_is_refused_before_it_works(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("async def step():\n    yield 1\n")

    ran, _ = run(tmp_path, "function", "mine.step")

    assert "mine.step is an async generator" in ran.stderr
