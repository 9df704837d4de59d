"""The page of guarantees names tests that exist."""

from __future__ import annotations

import re


def test_each_named_test_exists(checkout) -> None:
    page = (checkout / "docs" / "guarantees.md").read_text(encoding="utf-8")
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
