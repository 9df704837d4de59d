"""Lines of a response that arrives in pieces of any size."""

from __future__ import annotations

import time

import pytest

from airflow_provider_launch.util.whole_answers import lines_of

TEXT = b"\none\n\ntwo and more\nend"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_the_same_in_any_pieces(size: int) -> None:
    pieces = [TEXT[at : at + size] for at in range(0, len(TEXT), size)]

    assert list(lines_of(pieces, 100)) == TEXT.split(b"\n")
    assert list(lines_of([*pieces, b"\n"], 100)) == TEXT.split(b"\n")


@pytest.mark.parametrize("size", [1, 5, 100])
@pytest.mark.parametrize("text", [b"short\nlong line\nlast\n", b"short\nlast\nlong line"])
def test_a_line_that_is_too_long_is_refused_or_left_out(size: int, text: bytes) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]

    assert list(lines_of(pieces, 5, skip_longer=True)) == [b"short", b"last"]
    with pytest.raises(OSError, match="a line of more than 5 bytes"):
        list(lines_of(pieces, 5))


def test_a_long_line_costs_each_of_its_bytes_once() -> None:
    """16 MB took minutes, during which no other app of the engine was polled."""
    began = time.process_time()
    (line,) = lines_of((b"x" * 512 for _ in range(32 * 1024)), 2**24)

    assert len(line) == 2**24
    assert time.process_time() - began < 10
