"""Generated files are current."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.backends import BACKENDS

ROOT = Path(__file__).resolve().parents[2]


def generators():
    spec = importlib.util.spec_from_file_location("launch_tools_gen", ROOT / "tools" / "gen.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.GENERATED


@pytest.mark.parametrize("path", sorted(generators()))
def test_generated_file_is_current(path):
    committed = (ROOT / path).read_text(encoding="utf-8")

    assert committed == generators()[path](), f"{path} has drifted from its source: run `make gen` and commit"


def test_options_page_has_every_option_of_every_scheduler():
    """The page is made from the same classes as the schema; this notices a field that the table skips."""
    page = generators()["docs/reference/options.md"]()

    every = [(info.connection_options(), info.launch_options()) for info in BACKENDS.values()]
    for options in (each for both in every for each in both):
        for name, _ in options.as_runopts():
            assert f"| `{name}` |" in page
