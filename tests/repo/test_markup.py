"""Airflow's command line shows errors as rich markup, which drops a word in square brackets as a style."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "airflow_provider_launch").rglob("*.py"))
TAG = re.compile(r"\[[a-z#/@][^\[]*\]")
LAUNCHER = {"_torchrun.py"}
"""Texts known from the launcher."""


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_error_has_a_word_in_square_brackets(module: Path) -> None:
    raised = [node for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))) if isinstance(node, ast.Raise)]
    texts = [
        part.value
        for node in raised
        if node.exc is not None
        for part in ast.walk(node.exc)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]

    assert module.name in LAUNCHER or not [text for text in texts if TAG.search(text)]
