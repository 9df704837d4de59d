"""The check without a syntax tree accepts nothing that the complete one refuses."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from airflow_provider_launch.functions import quick_check
from airflow_provider_launch.functions.quick_check import surely_travels
from airflow_provider_launch.functions.source import source_of
from airflow_provider_launch.specs.errors import InvalidAppError
from tests.functions.test_source import KINDS, REFUSED

USE = "def f():\n    return x\n"
NEARBY = {
    "on one line": f"from nearby import x\n{USE}",
    "in brackets": f"from nearby import (  # a note )\n    y,  # and )\n    x,\n)\n{USE}",
    "over two lines": f"from nearby import \\\n    x\n{USE}",
    "after a semicolon": f"import json; from nearby import x\n{USE}",
    "in a block": f"if True:\n    from nearby import x\n{USE}",
    "a module by another name": f"import nearby as x\n{USE}",
    "a module of a list": f"import json, nearby as x\n{USE}",
    "by a helper": "from nearby import x\ndef g():\n    return x\ndef f():\n    return g()\n",
}


def while_read(function: Any) -> Any:
    """Return the function as it is when its file is read: the file has no name for it yet."""
    if type(function) is not FunctionType:
        return function
    names = {name: value for name, value in function.__globals__.items() if value is not function}
    found = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    found.__qualname__ = function.__qualname__
    found.__dict__.update(function.__dict__)
    return found


@pytest.mark.parametrize("text", [*REFUSED, *NEARBY.values()], ids=range(len(REFUSED) + len(NEARBY)))
def test_it_accepts_nothing_that_is_refused(
    module_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "nearby.py").write_text("x = y = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nearby", raising=False)  # of another test
    function = while_read(module_of(text).f)
    sys.modules.pop("nearby", None)
    try:
        source_of(function)
        is_refused = False
    except InvalidAppError:
        is_refused = True

    assert not (is_refused and surely_travels(function))
    assert is_refused or text not in NEARBY.values()


def test_methods_are_left_to_the_complete_check(module_of: Any) -> None:
    assert not surely_travels(module_of("class K:\n    def m(self):\n        return 1\n").K.m)


def test_only_the_last_file_is_cached(module_of: Any) -> None:
    """A DAG processor imports thousands of files, each some functions after the other."""
    for number in range(3):
        assert surely_travels(while_read(module_of(KINDS["constants"][0], f"dag_{number}.py").f))

    assert [Path(path).name for path in quick_check._READ] == ["dag_2.py"]


@pytest.mark.parametrize(
    "kind", ["only itself", "constants", "helper below", "imports with other names", "imports inside of it", "tabs"]
)
def test_common_functions_need_no_syntax_tree(module_of: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    function = while_read(module_of(KINDS[kind][0]).f)
    monkeypatch.setattr(ast, "parse", None)

    assert surely_travels(function)
