"""Rows of a JSON array that comes in pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_launch.util.json_rows import json_rows
from tests.support.repeats import often

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=often(25, 200), deadline=None)
@given(st.lists(st.dictionaries(st.text(), VALUES)), st.integers(1, 40), st.sampled_from([None, 1]), st.booleans())
def test_cut_anywhere_the_rows_are_those_of_the_document(rows, step, indent, ascii_only) -> None:
    data = json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    chunks = [data[at : at + step] for at in range(0, len(data), step)]

    assert list(json_rows(chunks)) == rows


def test_rows_come_before_the_document_has_ended() -> None:
    def chunks():
        yield b' [{"n": 1}, {"n"'
        seen.append("second piece")
        yield b": 2}]\n"

    seen: list[object] = []
    seen.extend(json_rows(chunks()))

    assert seen == [{"n": 1}, "second piece", {"n": 2}]


@pytest.mark.parametrize("text", ["", "[", '[{"n": 1}', '[{"n": 1}, {"n"', "{}", "[1, 2]", "null", '[{"n" 1}]', "[] 7"])
def test_what_is_cut_off_or_something_else_is_an_error(text) -> None:
    """Half a list must never look like a list in which the other half of the apps is gone."""
    with pytest.raises(ValueError, match="array of objects"):
        list(json_rows([text.encode()]))
