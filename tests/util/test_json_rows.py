"""Rows of a JSON array that arrives in pieces."""

from __future__ import annotations

import json
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_launch.util import json_rows as module
from airflow_provider_launch.util.json_rows import json_rows
from tests.support.repeats import often

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=often(25, 200), deadline=None)
@given(st.lists(st.dictionaries(st.text(), VALUES)), st.integers(1, 40), st.sampled_from([None, 1]), st.booleans())
def test_the_rows_are_complete_wherever_the_document_is_cut(rows, step, indent, ascii_only) -> None:
    data = json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    chunks = [data[at : at + step] for at in range(0, len(data), step)]

    assert list(json_rows(chunks)) == rows


@settings(max_examples=often(25, 200), deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from('ab"{}\\'), VALUES)), st.integers(1, 40), st.booleans())
def test_objects_that_are_too_large_are_left_out_and_no_others(rows, step, ascii_only) -> None:
    data = json.dumps(rows, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    skipped: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_launch.util.json_rows._MAX_ROW", 30)
        found = list(json_rows(chunks, skipped.append))

    assert len(found) + len(skipped) == len(rows)
    # Some of the slightly larger objects arrive complete, in one piece.
    assert [row for row in rows if len(json.dumps(row, ensure_ascii=ascii_only)) <= 30] == [
        row for row in found if len(json.dumps(row, ensure_ascii=ascii_only)) <= 30
    ]


def test_a_long_object_costs_little() -> None:
    """An image may have labels of megabytes, which its engine repeats in every list."""
    data = json.dumps([{"x": "y" * 15_000_000}, {"x": "y" * 40_000_000}, {"n": 1}]).encode()
    skipped: list[str] = []
    tracemalloc.start()
    try:
        began = time.process_time()
        found = list(json_rows((data[at : at + 65536] for at in range(0, len(data), 65536)), skipped.append))
        took_s = time.process_time() - began
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert [row.keys() for row in found] == [{"x"}, {"n"}]
    assert skipped == ['{"x": "' + "y" * 293]
    assert peak < 250 * 2**20
    # It took minutes when each piece caused the previous text to be parsed again.
    assert took_s < 20


def test_an_object_of_escapes_that_is_left_out_costs_little() -> None:
    """A regular expression remembered each escape while searching for the end."""
    piece = b"\\n" * 32 * 1024
    chunks = [b'[{"x": "', *[piece] * 500, b'"}, {"n": 1}]']
    tracemalloc.start()
    try:
        found = list(json_rows([b"".join(chunks[:300]), b"".join(chunks[300:])]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert found == [{"n": 1}]
    assert peak < 250 * 2**20


def test_rows_come_before_the_document_has_ended() -> None:
    def chunks():
        yield b' [{"n": 1}, {"n"'
        seen.append("second piece")
        yield b": 2}]\n"

    seen: list[object] = []
    seen.extend(json_rows(chunks()))

    assert seen == [{"n": 1}, "second piece", {"n": 2}]


@pytest.mark.parametrize("text", ["", "[", '[{"n": 1}', '[{"n": 1}, {"n"', "{}", "[1, 2]", "null", '[{"n" 1}]', "[] 7"])
def test_a_truncated_or_other_document_is_an_error(text) -> None:
    """Half a list must never be taken for a list in which the other apps are gone."""
    with pytest.raises(ValueError, match="array of objects"):
        list(json_rows([text.encode()]))


def test_an_object_a_little_too_large_is_left_out_however_it_is_cut():
    """It was read completely when no piece ended between the limit and twice the size already tried."""
    document = json.dumps([{"a": "x" * 20_000_000}, {"b": 1}]).encode()
    pieces = [document[at : at + 1_000_000] for at in range(0, len(document), 1_000_000)]
    left_out: list[str] = []

    assert list(json_rows(pieces, left_out.append)) == [{"b": 1}]
    assert len(left_out) == 1


@pytest.mark.parametrize("size", [1, 3, 7, 4096])
def test_the_end_of_a_long_object_is_found_behind_escapes(size, monkeypatch) -> None:
    monkeypatch.setattr(module, "_MAX_ROW", 40)
    tricky = r'{"x": "a\\\"}{\\", "y": {"z": "}\""}, "w": "' + "n" * 60 + r'\\"}'
    data = f'[{{"n": 1}}, {tricky}, {{"n": 2}}]'.encode()
    skipped: list[str] = []

    found = list(json_rows((data[at : at + size] for at in range(0, len(data), size)), skipped.append))

    assert [row for row in found if "x" not in row] == [{"n": 1}, {"n": 2}]
    assert len(found) + len(skipped) == 3


def test_a_long_object_of_escapes_takes_little_memory() -> None:
    """A pattern that repeats a group stores a position for each repetition."""
    piece = '{"x": "' + '\\"' * 1_000_000
    tracemalloc.start()
    try:
        skipped = module._Skipped()
        ends = [skipped.end_in(piece, 0), skipped.end_in('"}, {', 0)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert ends == [-1, 2]
    assert peak < 10_000_000


def test_an_object_that_is_nested_too_deeply_is_an_error_of_the_document() -> None:
    with pytest.raises(ValueError, match="an object is nested too deeply"):
        list(json_rows([b'[{"a": ' + b"[" * 100_000]))
