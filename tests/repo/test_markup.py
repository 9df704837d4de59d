"""Airflow's command line shows errors as rich markup, which drops a word in square brackets as a style."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "airflow_provider_launch").rglob("*.py"))
TAG = re.compile(r"\[[a-z#/@][^\[]*\]")
LAUNCHER = {"_torchrun.py"}
"""Texts known from the launcher."""


def raised_texts(module: Path) -> list[str]:
    """Return the texts of the errors that a module raises."""
    raised = [node for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))) if isinstance(node, ast.Raise)]
    return [
        part.value
        for node in raised
        if node.exc is not None
        for part in ast.walk(node.exc)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]


def test_no_error_has_a_word_in_square_brackets() -> None:
    texts = [(module.name, text) for module in MODULES for text in raised_texts(module)]

    assert len(texts) > 100
    assert not [(name, text) for name, text in texts if name not in LAUNCHER and TAG.search(text)]
