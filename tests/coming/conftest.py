"""Runs a DAG of a page in docs/coming-from, before and after the move, on a real engine."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from tests.airflow.conftest import no_masks
from tests.airflow.support import FakeExecutionApi, Ran, run_to_end

COMING_FROM = Path(__file__).resolve().parents[2] / "docs" / "coming-from"
__all__ = ["no_masks"]

_BLOCK = re.compile(r"^```py\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Moves:
    """Tasks of the pages, and of tests; each runs in Airflow's task runner."""

    def of_page(self, page: str, replaced: dict[str, str]) -> list[Any]:
        """Return the task before and the task after, with texts of the page replaced by those of the engine."""
        tasks = []
        source = (COMING_FROM / f"{page}.md").read_text(encoding="utf-8")
        for text, value in replaced.items():
            source = source.replace(f'"{text}"', f'"{value}"')
        for block in _BLOCK.findall(source):
            names: dict[str, Any] = {"__name__": f"page_{page.replace('-', '_')}"}
            exec(compile(block, page, "exec"), names)
            (dag,) = (one for one in names.values() if isinstance(one, DAG))
            tasks += dag.tasks
        return tasks

    def run(self, task: Any) -> tuple[Ran, Any]:
        """Run a task to its end; return how it ended, and its value."""
        api = FakeExecutionApi()
        ran, _ = run_to_end(task, api)
        return ran, api.xcoms.get((task.task_id, "return_value"))


@pytest.fixture
def moves() -> Moves:
    return Moves()


@pytest.fixture
def unique() -> str:
    """A name for volumes and tasks of one test: equal tasks have equal apps."""
    return f"t{uuid.uuid4().hex[:10]}"
