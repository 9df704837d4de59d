"""Documents of users: their sizes are checked before they fill the memory."""

from __future__ import annotations

import time

import pytest

from airflow_provider_launch.util.documents import parse_document


def nested(value: str, again: str, levels: int = 12) -> str:
    lines = [f"a0: &a0 {value}"]
    lines += [f"a{n}: &a{n} {again.format(', '.join([f'*a{n - 1}'] * 9))}" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [nested("[1, 2]", "[{}]"), nested("{k: 1, l: 2}", "{{<<: [{}]}}")],
    ids=["aliases", "merges"],
)
def test_values_that_multiply_are_refused_at_once(text) -> None:
    started = time.monotonic()
    with pytest.raises(ValueError, match="aliases count at each use"):
        parse_document(text, is_json=False)
    assert time.monotonic() - started < 5


def test_a_merge_gives_its_keys() -> None:
    assert parse_document("a: &a {x: 1}\nb: {<<: *a, y: 2}", is_json=False)["b"] == {"x": 1, "y": 2}
