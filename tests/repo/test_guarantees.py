"""The pages of guarantees and security name tests that exist, in their footnotes."""

from __future__ import annotations

import re

import pytest

PAGES = ["guarantees.md", "security.md"]
FOOTNOTE = re.compile(r"^\[\^([\w-]+)\]: (.+)$", re.MULTILINE)
LAST_PART = "\n## Prerequisites"
"""Heading after the statements; a page without it has only statements in its lists."""


@pytest.fixture
def page(checkout, page_name: str) -> str:
    return (checkout / "docs" / page_name).read_text(encoding="utf-8")


def statements(page: str) -> list[str]:
    """Return the list items that promise something, and the rows of tables with a footnote."""
    items = re.findall(r"^\* (.+)$", page.partition(LAST_PART)[0], re.MULTILINE)
    return items + re.findall(r"^\| (.+\[\^[\w-]+\]) \|$", page, re.MULTILINE)


@pytest.mark.parametrize("page_name", PAGES)
def test_each_named_test_exists(checkout, page: str) -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", page)

    assert len(named) >= 12
    for path, name in named:
        source = (checkout / path).read_text(encoding="utf-8")
        assert f"def {name or 'test_'}" in source, (path, name)


@pytest.mark.parametrize("page_name", PAGES)
def test_each_statement_has_a_footnote_with_its_tests(page: str) -> None:
    found = statements(page)
    named = [name for statement in found for name in re.findall(r"\[\^([\w-]+)\]$", statement)]
    notes = FOOTNOTE.findall(page)

    assert len(found) >= 12
    assert len(named) == len(found), [statement for statement in found if "[^" not in statement]
    assert sorted(named) == sorted(name for name, _ in notes)
    assert all(".py" in tests for _, tests in notes)
