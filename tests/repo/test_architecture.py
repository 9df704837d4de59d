"""The traces through the code name files and functions that exist: a newcomer follows them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import airflow_provider_launch

PACKAGE = Path(airflow_provider_launch.__file__).parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"
NAMED = re.compile(r"`([\w/]+\.py)(?:::([\w.]+))?`")


def names_of(path: Path) -> set[str]:
    """Return the functions and classes of a module, and the methods as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return found


def test_each_trace_names_its_steps() -> None:
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    traces = {part.splitlines()[0]: NAMED.findall(part) for part in parts}

    assert all(len(traces[title]) >= 6 for title in ("An app", "A status", "A log line", "An option"))


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(PAGE.read_text(encoding="utf-8")))))
def test_each_named_part_exists(file: str, name: str) -> None:
    assert (PACKAGE / file).is_file()
    assert not name or name in names_of(PACKAGE / file)
