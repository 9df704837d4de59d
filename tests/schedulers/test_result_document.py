"""A result is JSON that every database stores, or an error without a retry."""

from __future__ import annotations

import json

import pytest

from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES, parse_result
from airflow_provider_launch.specs import InvalidAppError


@pytest.mark.parametrize(
    "text",
    [
        "x", "{", "nan", "inf", '"\\ud800"', '{"\\udfff": 1}', '"a\\u0000b"',
        '{"\\u0000": 1}',
        "[" * 2000 + "]" * 2000, "[" * 4000, '{"a":' * 200 + "1" + "}" * 200, "9" * 4000, "9223372036854775808",
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_the_apps_error(text: str) -> None:
    with pytest.raises(InvalidAppError, match="the result cannot be stored"):
        parse_result(text.encode(), len(text))


@pytest.mark.parametrize(
    ("text", "value", "where"),
    [
        ("NaN", None, "as its only value"),
        ("1e999", None, "as its only value"),
        ('{"loss": NaN}', {"loss": None}, "at 'loss'"),
        ('{"a": [0, {"b": -Infinity}]}', {"a": [0, {"b": None}]}, "at 'a[1].b'"),
        ("[NaN, 1, Infinity, NaN]", [None, 1, None, None], "at '[0]' and in 2 more places"),
    ],
)
def test_a_number_that_json_lacks_is_null_with_one_warning(text, value, where, caplog) -> None:
    """A trial that diverged is an ordinary result of a search."""
    assert parse_result(text.encode(), len(text)) == value
    assert [record.getMessage() for record in caplog.records] == [
        f"the result has NaN or Infinity {where}, which JSON does not have: null is stored instead"
    ]


@pytest.mark.parametrize("data", [b"", b"\n", b"null"])
def test_an_empty_file_is_null(data: bytes) -> None:
    assert parse_result(data, len(data)) is None


@pytest.mark.parametrize("data", [b"\xff\xfe", b'"\xff"', b'"\xed\xa0\x80"'])
def test_invalid_utf_8_is_the_apps_error(data: bytes) -> None:
    with pytest.raises(InvalidAppError, match="the result cannot be stored"):
        parse_result(data, len(data))


@pytest.mark.parametrize(
    "value", [None, True, 0, -1.5, 10**18, "é😀\n", [], {}, {"a": [1, {"b": None}]}, json.loads("[" * 90 + "]" * 90)]
)
def test_other_documents_are_returned(value: object) -> None:
    data = json.dumps(value).encode()

    assert parse_result(data, len(data)) == value


@pytest.mark.parametrize("key", ["__classname__", "__id__", "__type", "__var"])
@pytest.mark.parametrize("where", ['{"KEY": 1}', '{"a": [0, {"b": {"KEY": "x"}}]}'])
def test_keys_that_airflow_reserves_are_refused(key: str, where: str) -> None:
    """Airflow refuses to store some of them, at each try again, and creates objects from others."""
    data = where.replace("KEY", key).encode()

    with pytest.raises(InvalidAppError, match=f"the key '{key}'.*another name"):
        parse_result(data, len(data))


def test_a_text_may_name_such_keys() -> None:
    assert parse_result(b'{"a": "__id__", "_id_": 1}', 26) == {"a": "__id__", "_id_": 1}


def test_4096_bytes_are_taken_and_one_more_is_not() -> None:
    fits = b'"' + b"x" * (RESULT_LIMIT_BYTES - 2) + b'"'

    assert parse_result(fits, len(fits)) == "x" * 4094
    with pytest.raises(InvalidAppError, match="4097 bytes"):
        parse_result(fits, len(fits) + 1)
