"""Texts below the fields of classes, wherever their source is or was."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from airflow_provider_launch.util.docstrings import field_docstrings

TEXT = "class Opts:\n    x: int\n    'A number.'\n"


@pytest.mark.parametrize("module", [__name__, "builtins", "no_such_module", "__main__"])
def test_a_class_without_a_source_has_no_texts(module) -> None:
    space: dict[str, Any] = {"__name__": module}
    exec(TEXT, space)

    assert field_docstrings(space["Opts"]) == {}


@pytest.mark.parametrize("text", ["class Opts(:\n    x: int\n", "", "class Opts:\n    '\n"])
def test_a_source_that_has_changed_since_its_import_has_no_texts(tmp_path, monkeypatch, text) -> None:
    path = tmp_path / "changed_since_import.py"
    path.write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    opts = importlib.import_module("changed_since_import").Opts
    try:
        assert field_docstrings(opts) == {"x": "A number."}

        path.write_text(text)

        assert field_docstrings(opts) == {}
    finally:
        del sys.modules["changed_since_import"]
