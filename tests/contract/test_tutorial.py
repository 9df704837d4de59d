"""The tutorial works: its stub fails, each step passes the named tests, and its code is complete."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.test_docs import blocks

PAGE = "docs/adding-a-scheduler.md"
CONTRACT, STUB, *PARTS = blocks(PAGE, "python")
STEPS = re.findall(r'^pytest -k "(.+)"$', "\n".join(blocks(PAGE, "sh")), re.MULTILINE)
PARTS_OF_STEP = [1, 3, 4, 5]
"""Number of parts of the source before each step with a `pytest -k`."""

MODULE = """\
from airflow_provider_launch.testing.example_scheduler import ThreadsScheduler

{stub}

class Scheduler(Stub):
    {added}


create_scheduler = Scheduler
"""
NEEDED = ["capabilities", "poll_interval_s", "app_thread"]


def names_in(part: str) -> list[str]:
    return [node.name for node in ast.parse(part).body if isinstance(node, ast.FunctionDef)]


@pytest.fixture
def run_contract(tmp_path, checkout):
    """Run the contract of the page with the stub and some parts; return the outcome of each test."""

    def run(parts: int, chosen: str) -> dict[str, str]:
        names = [name for part in PARTS[:parts] for name in names_in(part)]
        names += NEEDED
        added = "\n    ".join(f"{name} = ThreadsScheduler.{name}" for name in names)
        module = MODULE.format(stub=STUB, added=added) if parts else STUB
        (tmp_path / "my_scheduler.py").write_text(module, encoding="utf-8")
        (tmp_path / "test_mine.py").write_text(CONTRACT, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist"]
        done = subprocess.run(
            [*command, "--rootdir", str(tmp_path), "-k", chosen, "test_mine.py"],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}:{checkout}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        found = re.findall(
            r"^(PASSED|FAILED|ERROR) test_mine\.py::TestThreads::([^\n]+?)(?: - .*)?$", done.stdout, re.MULTILINE
        )
        assert found, done.stdout + done.stderr
        return {name: outcome for outcome, name in found}

    return run


def test_its_code_is_that_of_the_scheduler_that_passes_the_contract(checkout: Path) -> None:
    source = (checkout / "airflow_provider_launch" / "testing" / "example_scheduler.py").read_text(encoding="utf-8")
    flat = [line.strip() for line in source.splitlines() if line.strip()]

    for part in PARTS:
        lines = [line.strip() for line in part.splitlines() if line.strip()]
        begins = [n for n, line in enumerate(flat) if line == lines[0]]
        assert any(flat[n : n + len(lines)] == lines for n in begins), f"not in the source: {lines[0]}"


def test_the_stub_is_short_and_fails(run_contract) -> None:
    assert len(STUB.strip().splitlines()) <= 30

    found = run_contract(0, "declared_capabilities or one_role_runs or list_shows")

    assert set(found.values()) == {"FAILED"}


@pytest.mark.parametrize("step", range(len(STEPS)))
def test_after_each_step_the_named_tests_pass(step: int, run_contract) -> None:
    found = run_contract(PARTS_OF_STEP[step], STEPS[step])

    failed = sorted(name for name, outcome in found.items() if outcome != "PASSED")
    assert not failed
    assert not [word for word in STEPS[step].split(" or ") if not any(word in name for name in found)]
