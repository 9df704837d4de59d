"""Text to typed values: the grammar that options, mounts and component arguments share."""

from __future__ import annotations

import inspect
import typing
from typing import Annotated, Any, Optional

import pytest

from airflow_provider_launch.util import types


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", {}),
        ("  ", {}),
        ("FOO=v1", {"FOO": "v1"}),
        ("FOO=v1,v2;BAR=v3", {"FOO": "v1,v2", "BAR": "v3"}),
        ("key1=value1,,foo=bar", {"key1": "value1,", "foo": "bar"}),
        ("FOO=v1,v2,", {"FOO": "v1,v2,"}),
        ("FOO=,", {"FOO": ","}),
        (" FOO = v1 ; BAR = v2 ", {"FOO": "v1", "BAR": "v2"}),
        ("FOO=a,FOO=b", {"FOO": "b"}),
        ("FOO=''", {"FOO": ""}),
        ('FOO="",BAR=x', {"FOO": "", "BAR": "x"}),
        ("FOO='x=1,b=2;c',BAR=y", {"FOO": "x=1,b=2;c", "BAR": "y"}),
        (r"FOO='it\'s=1',BAR=y", {"FOO": r"it\'s=1", "BAR": "y"}),
        ('FOO="a","b";BAR=c', {"FOO": '"a","b"', "BAR": "c"}),
        ("FOO=echo 'a=b',BAR=c", {"FOO": "echo 'a=b'", "BAR": "c"}),
        ("FOO=it's,BAR=that's", {"FOO": "it's", "BAR": "that's"}),
        ("FOO=a=", {"FOO": "a"}),
        ("FOO=a==,BAR=b", {"FOO": "a", "BAR": "b"}),
    ],
)
def test_pairs_are_read_from_text(text, pairs):
    assert types.to_dict(text) == pairs


@pytest.mark.parametrize("text", ["FOO", "FOO,", "FOO;", "FOO=", "FOO==", "FOO=;BAR=v1", "FOO=a=b", "=v"])
def test_text_without_a_key_or_a_value_is_refused(text):
    with pytest.raises(ValueError, match=r"key|'='"):
        types.to_dict(text)


@pytest.mark.parametrize(("text", "items"), [("", []), (" ", []), ("a", ["a"]), (" a , b", ["a", "b"])])
def test_items_are_read_from_text(text, items):
    assert types.to_list(text) == items


@pytest.mark.parametrize(
    ("text", "value"),
    [*((word, True) for word in ("true", "1", "YES", "On")), *((word, False) for word in ("False", "0", "no", "OFF"))],
)
def test_bools_have_one_vocabulary(text, value):
    assert types.str_to_bool(text) is value


@pytest.mark.parametrize("text", ["", "maybe", "2"])
def test_other_words_are_refused(text):
    with pytest.raises(ValueError, match="is not a bool"):
        types.str_to_bool(text)


@pytest.mark.parametrize(
    ("value", "annotation", "decoded"),
    [
        ("5", int, 5),
        ("0.5", float, 0.5),
        ("5", str, "5"),
        ("no", bool, False),
        ("1,2", list[int], [1, 2]),
        ("1,2", list, ["1", "2"]),
        ("a=1,b=2", dict[str, int], {"a": 1, "b": 2}),
        ("a=1", typing.Dict[str, str], {"a": "1"}),  # noqa: UP006 - old annotations work too
        ("", list[str], None),
        ("5", Optional[int], 5),  # noqa: UP045 - same
        ("5", int | None, 5),
        ("5", Annotated[int, "-n"], 5),
        (None, int, None),
        ([1], list[int], [1]),
        ("x", inspect.Parameter.empty, "x"),
        ("x", Any, "x"),
    ],
)
def test_arguments_are_decoded_by_their_annotation(value, annotation, decoded):
    assert types.decode(value, annotation) == decoded


@pytest.mark.parametrize("annotation", [list[list[str]], object, set[str], int | list[str]])
def test_an_annotation_that_text_cannot_fill_is_refused(annotation):
    with pytest.raises(ValueError, match="cannot be converted to"):
        types.decode("x", annotation)


@pytest.mark.parametrize(
    ("tp", "name"),
    [
        (int, "int"),
        (list, "list"),
        (list[str], "list[str]"),
        (typing.List[int], "typing.List[int]"),  # noqa: UP006 - keeps its prefix
    ],
)
def test_types_are_named_as_a_person_writes_them(tp, name):
    assert types.get_type_name(tp) == name


@pytest.mark.parametrize(
    ("annotation", "chosen"), [(int, int), (Annotated[float, "-f"], float), (bool, str), (list[int], str)]
)
def test_argparse_converts_numbers_only(annotation, chosen):
    parameter = inspect.Parameter("x", inspect.Parameter.KEYWORD_ONLY, annotation=annotation)

    assert types.get_argparse_param_type(parameter) is chosen


def test_none_throws_refuses_none():
    assert types.none_throws(0) == 0
    with pytest.raises(AssertionError, match="Unexpected `None`"):
        types.none_throws(None)
