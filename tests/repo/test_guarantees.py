"""The page of guarantees names tests that exist."""

from __future__ import annotations

import re

import pytest


@pytest.mark.parametrize("page_name", ["guarantees.md", "security.md"])
def test_each_named_test_exists(checkout, page_name: str) -> None:
    page = (checkout / "docs" / page_name).read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", page)

    assert len(named) >= 12
    for path, name in named:
        source = (checkout / path).read_text(encoding="utf-8")
        assert f"def {name or 'test_'}" in source, (path, name)


def test_each_guarantee_has_a_test(checkout) -> None:
    page = (checkout / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z].+) \| (.+) \|$", page.partition("\n## ")[0], re.MULTILINE)[1:]

    assert len(rows) >= 12
    assert all(".py" in shown for _, shown in rows)


def test_each_statement_on_security_has_a_test(checkout) -> None:
    page = (checkout / "docs" / "security.md").read_text(encoding="utf-8")
    tables = re.findall(r"(?m)^\| Statement \| Shown by \|\n\|---\|---\|\n((?:\|.*\n)+)", page)
    rows = [row for table in tables for row in table.splitlines()]

    assert len(rows) >= 12
    assert all(".py" in row.rsplit(" | ", 1)[1] for row in rows)
