"""Documents of users: their sizes are checked before they fill the memory."""

from __future__ import annotations

import time

import pytest

from airflow_provider_launch.util.documents import parse_document, read_text


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


@pytest.mark.parametrize(
    ("text", "is_json", "reason"),
    [
        ("[" * 100_000, True, "it is nested too deep"),
        ("[" * 10_000, False, "it is nested too deep"),
        ("a: [1\nb: 2", False, "it is not valid YAML: while parsing a flow sequence .* line 2, column 2"),
        ("a: !!python/object:os.system {}", False, "it is not valid YAML: could not determine a constructor"),
    ],
    ids=["deep JSON", "deep YAML", "wrong YAML", "object"],
)
def test_a_document_that_cannot_be_parsed_is_a_value_error(text, is_json, reason) -> None:
    with pytest.raises(ValueError, match=f"^{reason}") as raised:
        parse_document(text, is_json=is_json)

    assert "\n" not in str(raised.value)


def test_a_file_in_another_encoding_is_refused_by_its_path(tmp_path) -> None:
    path = tmp_path / "app.yaml"
    path.write_bytes("name: größe".encode("latin-1"))

    with pytest.raises(ValueError, match=r"app\.yaml is not UTF-8 text: invalid .* at byte 8; save it as UTF-8"):
        read_text(path)
