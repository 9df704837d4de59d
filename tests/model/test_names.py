"""Every name of `names.txt` exists, with its parameters in order."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from pathlib import Path

import pytest

import airflow_provider_launch

LISTED = [
    (module, entry)
    for line in (Path(__file__).parent / "names.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
    for module, _, entries in [line.partition(": ")]
    for entry in re.findall(r"[\w.]+(?:\([\w,]*\))?", entries)
]


def found(module: str, path: str) -> object:
    package = airflow_provider_launch.__name__
    value = importlib.import_module(package if module == "." else f"{package}.{module}")
    return functools.reduce(getattr, path.split("."), value)


def test_the_list_is_read():
    assert len(LISTED) > 300
    assert ("runner.api", "Runner.schedule(self,dryrun_info)") in LISTED


def test_each_name_is_there_with_its_parameters():
    wrong = [f"{module}.{entry}: {fault}" for module, entry in LISTED if (fault := fault_of(module, entry))]

    assert not wrong, "\n".join(wrong)


def fault_of(module: str, entry: str) -> str:
    path, _, wanted = entry.removesuffix(")").partition("(")
    try:
        value = found(module, path)
        if "(" not in entry:
            return ""
        parameters = inspect.signature(value).parameters
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    # Our further parameters follow, or are keyword-only.
    extra = {name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    expected = wanted.split(",") if wanted else []
    given = [name for name in parameters if name in expected or name not in extra][: len(expected)]
    return "" if given == expected else f"its parameters are {given}"


def test_deprecated_names_are_there():
    with pytest.warns(DeprecationWarning, match="base_img_root"):
        assert found("specs", "macros.base_img_root") == "${base_img_root}"
    assert found("specs", "Role.base_image") is not None
