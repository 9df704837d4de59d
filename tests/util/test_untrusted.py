import gzip
import json
import time
import zlib

import pytest

from airflow_provider_launch.util.untrusted import (
    LARGEST_INT,
    UntrustedError,
    clean_json,
    clean_text,
    inflate,
    one_line,
    parse_int,
    parse_json,
)
from tests.support.bombs import bomb


@pytest.mark.parametrize(
    ("text", "clean"),
    [("boom\0", "boom\ufffd"), ("\udcff", "\ufffd"), ("a\ud800b", "a\ufffdb"), ("ä😀\n", "ä😀\n"), ("", "")],
)
def test_letters_that_databases_refuse_are_replaced(text, clean):
    assert clean_text(text) == clean
    assert clean_json({text: [text, {"x": text}], "n": 1}) == {clean: [clean, {"x": clean}], "n": 1}
    clean_text(text).encode()


def test_a_file_of_nul_takes_as_long_as_one_of_letters():
    """A program can leave 500 files of 64 KB; each letter that is replaced took ten times as long."""
    start = time.process_time()
    assert clean_text("\0" * 16_000_000) == "\ufffd" * 16_000_000
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one  line", "one  line"),
        ("a\nb\r\nc\n", "a b  c"),
        ("a\x0bb\x1cc\x85d\u2028e", "a b c d e"),
        ("a\0\ud800", "a\ufffd\ufffd"),
        ("", ""),
        ("x" * 4096, "x" * 4096),
        ("x" * 10**6, "x" * 4095 + "…"),
        ("ä😀", "ä😀"),
    ],
)
def test_a_message_is_one_line_of_limited_length(text, line):
    assert one_line(text) == line


def test_clean_json_leaves_the_document_of_the_caller():
    document = {"a": ["\0"]}

    clean_json(document)

    assert document == {"a": ["\0"]}


@pytest.mark.parametrize(
    "text", ["", " 1", "1.0", "1e3", "٣", "²", "9" * 5000, "0x10", "1_000", "+1", "1\n", "-1", "101"]
)
def test_text_that_is_not_a_small_number_is_refused(text):
    with pytest.raises(UntrustedError) as caught:
        parse_int(text, 0, 100)

    assert len(str(caught.value)) < 120


def test_numbers_within_the_limits_are_taken():
    assert [parse_int(text, -5, 7) for text in ("-5", "0", "007")] == [-5, 0, 7]
    assert parse_int(str(LARGEST_INT)) == LARGEST_INT


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        "[" * 150 + "]" * 150,
        b"NaN",
        b"1e999",
        b"9" * 5000,
        str(LARGEST_INT + 1),
        b"{",
        b"\xff",
        b"",
        json.dumps("x" * 10_001),
    ],
)
def test_documents_that_harm_are_refused(data):
    with pytest.raises(UntrustedError):
        parse_json(data, max_bytes=10_000)


def test_an_honest_document_is_returned():
    document = {"a": [1, -2.5, None, True, {"b": "ü"}], "c": -LARGEST_INT}

    assert parse_json(json.dumps(document), 1000) == document
    assert parse_json(json.dumps(document).encode(), 1000) == document
    assert parse_json("[" * 100 + "]" * 100, 1000)


def test_a_bomb_is_not_inflated():
    with pytest.raises(UntrustedError, match="more than 1000"):
        inflate(bomb(100), 1000)


@pytest.mark.parametrize("compress", [zlib.compress, gzip.compress])
def test_data_within_the_limit_is_inflated(compress):
    assert inflate(compress(b"x" * 1000), 1000) == b"x" * 1000
    with pytest.raises(UntrustedError, match="truncated"):
        inflate(compress(b"x" * 1000)[:-3], 1000)
    with pytest.raises(UntrustedError):
        inflate(b"no", 1000)


def test_clean_json_has_only_numbers_of_json():
    given = {"n": (10**23, -(10**5000), 7, True), "x": [float("inf"), float("nan"), 1.5]}

    assert clean_json(given) == {"n": [LARGEST_INT, -LARGEST_INT, 7, True], "x": [None, None, 1.5]}
