"""Runs a DAG of a page in docs/coming-from, before and after the move, on a real engine."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from tests.airflow.conftest import no_masks
from tests.airflow.support import FakeExecutionApi, Ran, run_to_end
from tests.coming.peer_env import python_of

COMING_FROM = Path(__file__).resolve().parents[2] / "docs" / "coming-from"
__all__ = ["no_masks"]

_BLOCK = re.compile(r"^```py\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Moves:
    """Tasks of the pages, and of tests; each runs in Airflow's task runner."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of_page(self, page: str, replaced: dict[str, str]) -> list[Any]:
        """Return the task before and the task after, with texts of the page replaced by those of the engine."""
        return [task for dag in self.dags_of_page(page, replaced) for task in dag.tasks]

    def dags_of_page(self, page: str, replaced: dict[str, str] | None = None) -> list[DAG]:
        """Return the DAG of each Python block of the page."""
        dags = []
        source = (COMING_FROM / f"{page}.md").read_text(encoding="utf-8")
        for text, value in (replaced or {}).items():
            source = source.replace(f'"{text}"', f'"{value}"')
        for number, block in enumerate(_BLOCK.findall(source)):
            # A task for another interpreter reads its source again.
            file = self.folder / f"page_{page.replace('-', '_')}_{number}.py"
            file.write_text(block, encoding="utf-8")
            names: dict[str, Any] = {"__name__": file.stem, "__file__": str(file)}
            exec(compile(block, str(file), "exec"), names)
            (dag,) = (one for one in names.values() if isinstance(one, DAG))
            dags.append(dag)
        return dags

    def run(self, task: Any) -> tuple[Ran, Any]:
        """Run a task to its end; return how it ended, and its value."""
        api = FakeExecutionApi()
        ran, _ = run_to_end(task, api)
        return ran, api.xcoms.get((task.task_id, "return_value"))


@pytest.fixture
def moves(tmp_path: Path) -> Moves:
    return Moves(tmp_path)


@pytest.fixture(scope="session")
def peer_python(checkout: Path) -> Callable[[str], Path]:
    """Return the interpreter of a peer that has an environment of its own."""
    return lambda peer: python_of(peer, checkout)


@pytest.fixture
def unique() -> str:
    """A name for volumes and tasks of one test: equal tasks have equal apps."""
    return f"t{uuid.uuid4().hex[:10]}"
