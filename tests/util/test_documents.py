"""Documents of users: their sizes are checked before they fill the memory."""

from __future__ import annotations

import time

import pytest

from airflow_provider_launch.util.documents import parse_document


def nested(value: str, again: str, levels: int = 12) -> str:
    lines = [f"a0: &a0 {value}"]
    lines += [f"a{n}: &a{n} {again.format(', '.join([f'*a{n - 1}'] * 9))}" for n in range(1, levels)]
    return "\n".join(lines)


def test_values_that_multiply_are_refused_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(ValueError, match="aliases count at each use"):
        parse_document(nested("[1, 2]", "[{}]"), is_json=False)
    assert time.monotonic() - started < 5


def test_merges_that_multiply_are_refused_or_read_at_once() -> None:
    """PyYAML 6.0.4 and newer merges each key once, so that the document is small."""
    started = time.monotonic()
    try:
        outcome = parse_document(nested("{k: 1, l: 2}", "{{<<: [{}]}}"), is_json=False)["a11"]
    except ValueError as error:
        outcome = str(error)
    assert outcome == {"k": 1, "l": 2} or "aliases count at each use" in outcome
    assert time.monotonic() - started < 5


def test_a_merge_gives_its_keys() -> None:
    assert parse_document("a: &a {x: 1}\nb: {<<: *a, y: 2}", is_json=False)["b"] == {"x": 1, "y": 2}
