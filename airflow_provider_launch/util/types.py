"""Convert text to typed values: the grammar shared by options, mounts and component arguments."""

from __future__ import annotations

import inspect
import types
import typing
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

if typing.TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_DELIMITERS = ",;"


def str_to_bool(text: str) -> bool:
    """Return the bool for `true 1 yes on` or `false 0 no off`, case-insensitive; a ValueError for other texts."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"{text!r} is not a bool; use one of true, 1, yes, on, false, 0, no, off")


def to_list(arg: str) -> list[str]:
    """Return the comma-separated items, without surrounding blanks; blank text gives an empty list."""
    return [item.strip() for item in arg.split(",")] if arg.strip() else []


def to_dict(arg: str) -> dict[str, str]:
    """Return the pairs of `k1=v1,k2=v2`; `,` and `;` both separate pairs, and both may be part of a value.

    Between two `=` the last delimiter ends the value: `FOO=v1,v2;BAR=v3` gives `{"FOO": "v1,v2", "BAR": "v3"}`.
    A quoted value may contain `=`, `,` and `;`; its quotes are removed, and a backslash escapes the next character.
    An unquoted `=` at the end of a value is lost.

    Raises:
        ValueError: a key has no value, or a value has no key.
    """
    if not arg.strip():
        return {}
    first, *chunks = _split_unquoted(arg)
    key, pairs = first.strip(), {}
    if not chunks:
        raise ValueError(f"{arg!r} has no '='; write key=value pairs separated by ',' or ';'")
    for number, chunk in enumerate(chunks):
        is_last = number == len(chunks) - 1
        if is_last:
            value, next_key = chunk.strip(), ""
        else:
            end = _last_delimiter(chunk)
            value, next_key = (chunk.strip(), "") if end < 0 else (chunk[:end].strip(), chunk[end + 1 :].strip())
        if not key:
            # `a=b=` and `a=b=,c=d`: the `=` after b has no pair and is lost.
            if value:
                raise ValueError(f"{value!r} in {arg!r} has no key; quote a value that contains '='")
        elif not value:
            raise ValueError(f"key {key!r} in {arg!r} has no value; write {key}='' for the empty text")
        else:
            pairs[key] = _unquoted(value)
        key = next_key
    if key:
        raise ValueError(f"key {key!r} in {arg!r} has no value; add one")
    return pairs


def _quote_end(text: str, start: int) -> int:
    """Return the index of the quote that closes the one at `start`, or -1."""
    i = start + 1
    while i < len(text):
        if text[i] == "\\":
            i += 1
        elif text[i] == text[start]:
            return i
        i += 1
    return -1


def _unquoted_chars(text: str) -> list[tuple[int, str]]:
    """Return index and character of all text outside quotes."""
    found, i = [], 0
    while i < len(text):
        # An apostrophe inside a word (`it's`) and a quote that is never closed do not start a quoted text.
        if text[i] in "'\"" and (i == 0 or not text[i - 1].isalnum()) and (end := _quote_end(text, i)) >= 0:
            i = end + 1
            continue
        found.append((i, text[i]))
        i += 1
    return found


def _split_unquoted(text: str) -> list[str]:
    ends = [i for i, char in _unquoted_chars(text) if char == "="]
    return [text[a + 1 : b] for a, b in zip([-1, *ends], [*ends, len(text)], strict=True)]


def _last_delimiter(text: str) -> int:
    return max((i for i, char in _unquoted_chars(text) if char in _DELIMITERS), default=-1)


def _unquoted(value: str) -> str:
    is_enclosed = value[0] in "'\"" and _quote_end(value, 0) == len(value) - 1
    return value[1:-1] if is_enclosed else value


def strip_annotated(tp: Any) -> Any:
    """Return `X` for `Annotated[X, ...]`; other types are returned unchanged."""
    return get_args(tp)[0] if get_origin(tp) is Annotated else tp


def decode_optional(tp: Any) -> Any:
    """Return `X` for `X | None`; a union of more types only loses None, and other types are returned unchanged."""
    if get_origin(tp) not in {Union, types.UnionType}:
        return tp
    rest = tuple(arg for arg in get_args(tp) if arg is not type(None))
    return rest[0] if len(rest) == 1 else Union[rest]  # noqa: UP007 - built from a tuple


def is_primitive(tp: Any) -> bool:
    """Return whether `tp` is one of `int`, `float`, `str`, `bool`."""
    return tp in {int, float, str, bool}


def is_bool(tp: Any) -> bool:
    """Return whether `tp` is `bool`."""
    return tp is bool


def decode_from_string(encoded_value: str, annotation: Any) -> Any:
    """Return the value of type `annotation` for the text; empty text for a collection gives None.

    Raises:
        ValueError: the text is not a valid value, or the type cannot be given as text.
    """
    tp = strip_annotated(decode_optional(strip_annotated(annotation)))
    if is_bool(tp):
        return str_to_bool(encoded_value)
    if is_primitive(tp):
        return tp(encoded_value)
    if tp in {inspect.Parameter.empty, Any}:
        return encoded_value
    origin, args = get_origin(tp) or tp, [strip_annotated(arg) for arg in get_args(tp)]
    if origin not in {list, dict} or not all(is_primitive(arg) or arg is Any for arg in args):
        raise ValueError(f"text cannot be converted to {get_type_name(annotation)}")
    if not encoded_value.strip():
        return None
    if origin is list:
        return [decode_from_string(item, args[0] if args else str) for item in to_list(encoded_value)]
    key_type, value_type = args or (str, str)
    return {
        decode_from_string(key, key_type): decode_from_string(value, value_type)
        for key, value in to_dict(encoded_value).items()
    }


def decode(encoded_value: Any, annotation: Any) -> Any:
    """Return `encoded_value` with type `annotation`: text is parsed, None and typed values stay."""
    return decode_from_string(encoded_value, annotation) if isinstance(encoded_value, str) else encoded_value


def get_argparse_param_type(parameter: inspect.Parameter) -> Callable[[str], Any]:
    """Return the `type` of an argparse option for this parameter: `int`, `float`, or else `str`."""
    tp = strip_annotated(parameter.annotation)
    return typing.cast("Callable[[str], Any]", tp) if tp in {int, float} else str


def get_type_name(tp: Any) -> str:
    """Return the type as users write it: `int`, `list[str]`, `typing.Union[str, int]`, `'a' or 'b'`."""
    if tp is type(None):
        return "None"
    if get_origin(tp) is Literal:
        return " or ".join(map(repr, get_args(tp)))
    if get_origin(tp) is not None or not hasattr(tp, "__name__"):
        return str(tp)
    return str(tp.__name__)


def none_throws(optional: T | None, message: str = "Unexpected `None`") -> T:
    """Return the value; raise AssertionError if it is None."""
    if optional is None:
        raise AssertionError(message)
    return optional
