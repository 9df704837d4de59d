"""The value after a name in a text: shell, connection string, YAML, JSON or header.

Each function takes linear time in the text that it returns, or a constant one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

Range = tuple[int, int]
"""Start and end in a text."""

_VALUE = re.compile(
    r"""(?:(?:[bfru]{1,2}|\$)(?=["']))?(?:\\+"(?P<escaped>[^"\\]*)"""
    r"""|"(?P<double>[^"\\]*(?:\\[\s\S][^"\\]*)*)"""
    r"""|'(?P<single>[^']*)"""
    r"""|(?P<plain>(?:(?:bearer|basic|token|digest)[ \t]+)?[^\s"',;&|(){}<>\\]+"""
    # A comma belongs to the value, unless another name follows.
    r"""(?:,(?![\w.\-]*[ \t]*[=:])[^\s"',;&|(){}<>\\]+)*))""",
    re.IGNORECASE,
)
_CODE = re.compile(r"[A-Za-z_]\w*[._]\w[\w.]*\Z|(?:[A-Z]+[a-z]+){2,}\Z")
"""The name of a function or class."""
_INDEXED = re.compile(r"[A-Za-z_][\w.]*\[")
_DEFAULT = re.compile(r"\$\{\w+:?[\-=](?P<value>[^}\s]{1,1000})\}")
"""`${NAME:-default}` of a shell."""
_IN_CONNECTION_STRING = re.compile(r"[^\s\"';\\]{1,1000}")
_OPEN_LIST = re.compile(r"\[\s*")
_ITEM = re.compile(r"[^\s,\[\]\"'{}\\]+")
_NEXT_ITEM = re.compile(r"(?:\\*[\"'])?\s*,\s*")
_NUMBER = re.compile(r"[\d.+\-]+")
_BLANKS = re.compile(r"\s*")
_END_OF_HEADER = re.compile(r"[\"'\r\n]|\\|\Z")
_PART_OF_HEADER = re.compile(r"(?<![^\s;])[^\s;=]+=([^\s;]+)")
_SCHEME = re.compile(r"[A-Za-z][\w\-]*[ \t]+(?=\S+\Z)")
_TAG = re.compile(r"(?:[!&][^\s]*[ \t]+)+")
_BLOCK = re.compile(r"[|>][+\-\d]{0,2}[ \t]*(?:#[^\n]*)?\r?\Z")


class Position(Enum):
    """Where a name and its value are."""

    SHELL = "shell"
    """`NAME=value`, also in code, in a connection string and in a query."""
    LINE = "line"
    """A line of YAML."""
    FLOW = "flow"
    """JSON, or YAML in braces."""
    HEADER = "header"


def values_in_text(text: str, at: int, position: Position, *, is_json: bool) -> Iterator[Range]:
    """Yield the values that follow a name; the parts of a value after the whole.

    Args:
        text: the whole text.
        at: position after the separator.
        position: where the name is.
        is_json: whether the name has quotes.
    """
    if is_json:
        after = _match_end(_BLANKS, text, at)
        # In `if name == "token":` of Python the next line is not a value.
        at = after if text[after : after + 1] in ('"', "'", "[") else at
    opened = _OPEN_LIST.match(text, at)
    if opened and (items := [*_items(text, opened.end())]):
        yield from items
    elif position is Position.HEADER:
        yield from _header(text, at)
    elif position is Position.LINE and not is_json:
        yield from _line(text, at)
    elif span := quoted_or_plain(text, at):
        if position is Position.SHELL:
            span = _in_code(text, at, span)
        if span:
            yield span


def quoted_or_plain(text: str, at: int) -> Range | None:
    """Return the text in quotes, or the word, at this position."""
    found = _VALUE.match(text, at)
    if found is None:
        return None
    start, end = found.span(str(found.lastgroup))
    if found["plain"] is not None and text[end - 1] == "]" and "[" not in text[start:end]:
        end -= 1
    return (start, end) if end > start else None


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _in_code(text: str, at: int, span: Range) -> Range | None:
    """Return the value of an assignment in a shell, in a connection string, or in code; None for a call."""
    start, end = span
    if default := _DEFAULT.match(text, start):
        return default.span("value")
    if start != at:
        return span  # in quotes
    # `a=b;PWD=c;d=e`: only a semicolon ends such a value.
    found = _IN_CONNECTION_STRING.match(text, at)
    if found and text[found.end() : found.end() + 1] == ";" and _is_in_connection_string(text, at, found.end()):
        return found.span()
    value = text[start:end]
    is_call = text[end : end + 1] == "(" and (_CODE.match(value) or (text[at - 1].isspace() and value.isidentifier()))
    return None if is_call or _INDEXED.fullmatch(text, start, end) else span


def _is_in_connection_string(text: str, at: int, end: int) -> bool:
    return re.match(r";[A-Za-z][\w ]{0,40}=", text[end : end + 50]) is not None or ";" in text[max(at - 50, 0) : at]


def _items(text: str, at: int) -> Iterator[Range]:
    while True:
        span = quoted_or_plain(text, at) if text[at : at + 1] in ('"', "'", "\\") else None
        if span is None:
            item = _ITEM.match(text, at)
            if item is None:
                return
            span = item.span()
        if not _NUMBER.fullmatch(text, *span):
            yield span
        after = _NEXT_ITEM.match(text, span[1])
        if after is None:
            return
        at = after.end()


def _header(text: str, at: int) -> Iterator[Range]:
    """Yield the value of a header, what follows a scheme such as `Bearer`, and each cookie."""
    found = _END_OF_HEADER.search(text, at)
    end = found.start() if found else len(text)
    start = min(_match_end(_BLANKS, text, at), end)
    value = text[start:end].rstrip()
    yield start, start + len(value)
    if scheme := _SCHEME.match(value):
        yield start + scheme.end(), start + len(value)
    for part in _PART_OF_HEADER.finditer(value):
        yield start + part.start(1), start + part.end(1)


def _line(text: str, at: int) -> Iterator[Range]:
    """Yield the values of a line of YAML, and of a block or list below it."""
    end = text.find("\n", at)
    end = end if end >= 0 else len(text)
    start = _match_end(_TAG, text, min(_match_end(_BLANKS, text, at), end))
    if start >= end or _BLOCK.match(text[start:end]):
        yield from _below(text, end + 1, _depth(text[text.rfind("\n", 0, at) + 1 : end]), is_block=start < end)
    elif text[start] in "\"'\\":
        if span := quoted_or_plain(text, start):
            yield span
    elif text[start] != "{":
        line = text[start:end]
        for mark in (" #", "\t#", "\\n"):
            line = line.partition(mark)[0]
        # A text around the line ends with a quote.
        if line := line.rstrip().rstrip("\"'"):
            yield start, start + len(line)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _below(text: str, at: int, indent: int, *, is_block: bool) -> Iterator[Range]:
    """Yield the lines of a block as one value, or the items of a list."""
    first = last = -1
    while at < len(text):
        end = text.find("\n", at)
        end = end if end >= 0 else len(text)
        line = text[at:end]
        depth = _depth(line)
        is_item = line[depth : depth + 2] == "- "
        if line.strip() and not (depth > indent if is_block else is_item and depth >= indent):
            break
        if line.strip() and is_block:
            first, last = (first if first >= 0 else at + depth), at + len(line.rstrip())
        elif line.strip():
            yield from _item(text, at + depth + 2, at + len(line.rstrip()))
        at = end + 1
    if first >= 0:
        yield first, last


def _item(text: str, at: int, end: int) -> Iterator[Range]:
    if text[at : at + 1] in ("'", '"'):
        if span := quoted_or_plain(text, at):
            yield span
    elif not (": " in text[at:end] or text[at:end].endswith(":")):
        # Otherwise the item is a mapping with names of its own.
        yield at, end
