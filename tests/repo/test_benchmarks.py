"""The page of benchmarks has the format of `make bench`; figures are not checked here."""

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
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(bench.SECTIONS)
    assert text.startswith(bench.HEAD)


def test_page_shows_measures_that_ran_to_their_end(bench, text):
    tables = re.findall(r"^`(\w+)`, .+: .* cores, .*\.\n\n((?:\|.+\n)+)", text, re.MULTILINE)

    assert [name for name, _ in tables] == bench.NAMES
    assert all(table.count("\n") > 2 and "FAILED" not in table for _, table in tables)


def test_a_measure_alone_leaves_what_the_page_shows_of_others(bench, text):
    """A new checkout has only the figures of the page."""
    rows = [{"what": "a new figure", "ours": 1.0, "unit": "s"}]
    found = {"name": "triggers", "day": "2030-01-01", "load": 0.5, "host": "another machine", "rows": rows}
    again = bench.page([found], text)

    assert bench.page([], text) == text
    assert again.count("a new figure") == 1
    assert again.count(": another machine.\n") == 1
    others = {name: block for name, block in blocks(bench, text).items() if name != "triggers"}
    assert blocks(bench, again) == {**others, "triggers": bench.block(found).strip()}


def test_a_measure_that_hangs_takes_no_other_with_it(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "MEASURES", tmp_path)
    monkeypatch.setattr(bench, "LIMIT_S", 0.5)
    (tmp_path / "idle.py").write_text("import time; time.sleep(60)")
    found = bench.measure("idle")

    assert [row["what"] for row in found["rows"]] == ["idle: FAILED, not ended after 0.5 s"]
    assert bench.is_over(found["rows"][0])


def blocks(bench, text):
    return {found[1]: found[0].strip() for found in bench.BLOCK.finditer(text)}


def test_every_measure_is_a_script(bench):
    assert all((bench.MEASURES / f"{name}.py").is_file() for name in bench.NAMES)


def test_what_is_over_its_limit_or_failed_is_reported(bench):
    assert bench.is_over({"what": "slow", "ours": 2.0, "limit": 1.0})
    assert bench.is_over({"what": "failed", "ours": None})
    assert not bench.is_over({"what": "kept", "ours": 0.0, "limit": 0.0})
    assert not bench.is_over({"what": "no engine", "ours": None, "skipped": True})
