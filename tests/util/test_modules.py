"""Modules and attributes by name; absent and broken modules differ."""

from __future__ import annotations

import json

import pytest

from airflow_provider_launch.util.modules import import_attr, load_module


@pytest.fixture
def broken_module(tmp_path, monkeypatch):
    (tmp_path / "broken_mod.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "broken_mod"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("json", json),
        ("json:dumps", json.dumps),
        ("json:absent", None),
        ("json:a:b", None),
        ("surely_not_installed", None),
        ("surely_not_installed.sub:x", None),
    ],
)
def test_modules_and_attributes_are_found_by_name(path, found, caplog):
    assert load_module(path) is found
    assert not caplog.records


def test_a_broken_module_is_reported_with_its_cause(broken_module, caplog):
    assert load_module(broken_module) is None
    assert "surely_not_installed" in caplog.text


def test_the_default_is_only_for_an_absent_module(broken_module):
    """A default instead of a broken module would hide the plug-in that the user asked for."""
    assert import_attr("surely_not_installed", "x", 5) == 5
    assert import_attr("json", "dumps", None) is json.dumps
    with pytest.raises(AttributeError):
        import_attr("json", "absent", 5)
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        import_attr(broken_module, "x", 5)
