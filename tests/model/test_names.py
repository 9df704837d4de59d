"""Every name of `names.txt` is there, with its parameters in their order."""

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


@pytest.mark.parametrize(("module", "entry"), LISTED)
def test_a_name_is_there_with_its_parameters(module, entry):
    path, _, wanted = entry.removesuffix(")").partition("(")
    value = found(module, path)
    if "(" not in entry:
        return

    names = [*inspect.signature(value).parameters]

    # Further parameters of ours follow, or can only be given by name.
    extra = {name for name, each in inspect.signature(value).parameters.items() if each.kind is each.KEYWORD_ONLY}
    expected = wanted.split(",") if wanted else []
    assert [name for name in names if name in expected or name not in extra][: len(expected)] == expected


def test_deprecated_names_are_there():
    with pytest.warns(DeprecationWarning, match="base_img_root"):
        assert found("specs", "macros.base_img_root") == "${base_img_root}"
    assert found("specs", "Role.base_image") is not None
