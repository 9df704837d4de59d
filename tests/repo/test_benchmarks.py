"""The page of the benchmarks is what `make bench` writes; no figure is judged here."""

from __future__ import annotations

import importlib.util
import re

import pytest


@pytest.fixture
def bench(checkout):
    spec = importlib.util.spec_from_file_location("bench_run", checkout / "bench" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def text(checkout):
    return (checkout / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def test_page_has_the_sections_of_the_runner(bench, text):
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Machine and versions", *bench.SECTIONS]
    assert text.startswith(bench.HEAD)


def test_page_shows_measures_that_ran_to_their_end(bench, text):
    tables = re.findall(r"^`(\w+)`, .+\n\n((?:\|.+\n)+)", text, re.MULTILINE)

    assert tables
    assert {name for name, _ in tables} <= set(bench.NAMES)
    assert all(table.count("\n") > 2 and "FAILED" not in table for _, table in tables)


def test_every_measure_is_a_script(bench):
    assert all((bench.MEASURES / f"{name}.py").is_file() for name in bench.NAMES)


def test_what_is_over_its_limit_or_failed_is_told(bench):
    assert bench.is_over({"what": "slow", "ours": 2.0, "limit": 1.0})
    assert bench.is_over({"what": "failed", "ours": None})
    assert not bench.is_over({"what": "kept", "ours": 0.0, "limit": 0.0})
    assert not bench.is_over({"what": "no engine", "ours": None, "skipped": True})
