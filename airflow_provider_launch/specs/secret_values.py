"""The value after a name in a text: shell, connection string, YAML, JSON or header.

Each function reads the text that it returns, and little more: a search for all names of a text takes linear time.
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
_CALL = re.compile(r"\([^\n]{0,200}\)")
_INDEXED = re.compile(r"[A-Za-z_][\w.]*\[(?:\w*\])?")
_ANNOTATION = re.compile(r"[ \t]*(?:Optional\[)?(?:str|bytes|SecretStr)\]?(?:[ \t]*\|[ \t]*None)?[ \t]*=[ \t]*")
"""The type of a variable in Python, before its value."""
DEFAULT = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*):?[\-=][\"']?(?P<value>[^}\"'\s]{1,1000})")
"""`${NAME:-value}` of a shell."""
_IN_CONNECTION_STRING = re.compile(r"\{(?P<braces>(?:[^}\n]|\}\}){1,1000})\}(?!\})|(?P<plain>[^\s\"';\\]{1,1000})")
_NEXT_IN_CONNECTION_STRING = re.compile(r";[A-Za-z][\w ]{0,40}=")
_SHELL = ("&&", "||", "$(", "`")
_OPEN_LIST = re.compile(r"\[\s*")
_ITEM = re.compile(r"[^\s,\[\]\"'{}\\]+")
_NEXT_ITEM = re.compile(r"(?:\\*[\"'])?\s*,\s*")
_EMPTY_ITEM = re.compile(r"(?:\"\"|''|\\\"\\\")\s*,\s*")
_NUMBER = re.compile(r"[\d.+\-]+")
_BLANKS = re.compile(r"\s*")
_END_OF_HEADER = re.compile(r"[\"'\r\n]|\\|\Z")
_PART_OF_HEADER = re.compile(r"(?<![^\s;])[^\s;=]+=([^\s;]+)")
_SCHEME = re.compile(r"[A-Za-z][\w\-]*[ \t]+(?=\S+\Z)")
_TAG = re.compile(r"(?:[!&][^\s]*[ \t]+)+")
_SINGLE = re.compile(r"'(?P<value>[^']*(?:''[^']*)*)")
_BLOCK = re.compile(r"[|>][+\-\d]{0,2}[ \t]*(?:#[^\n]*)?\r?\Z")


class Position(Enum):
    """Where a name and its value are."""

    SHELL = "shell"
    """`NAME=value`, also in code, in a connection string and in a query."""
    LINE = "line"
    """A line of YAML."""
    QUOTED_LINE = "quoted line"
    """A line of YAML in quotes, where the end of a line is written as two letters, `\\n`."""
    FLOW = "flow"
    """JSON, or YAML in braces."""
    HEADER = "header"


def values_in_text(text: str, begin: int, at: int, position: Position, *, is_json: bool) -> Iterator[Range]:
    """Yield the values that follow a name; the parts of a value after the whole.

    Args:
        text: the whole text.
        begin: position of the name.
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
    elif position is Position.QUOTED_LINE:
        yield from _quoted_line(text, at)
    elif position is Position.LINE and not is_json:
        annotation = _ANNOTATION.match(text, at)
        if annotation is None:
            yield from _line(text, at)
        elif span := quoted_or_plain(text, annotation.end()):
            yield span
    elif span := (_in_shell(text, at, begin) if position is Position.SHELL else quoted_or_plain(text, at)):
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


def _in_shell(text: str, at: int, begin: int) -> Range | None:
    """Return the value of an assignment in a shell, in a connection string, or in code; None for a call."""
    if span := _in_connection_string(text, at, begin):
        return span
    span = quoted_or_plain(text, at)
    if span is None:
        return None
    start, end = span
    if default := DEFAULT.match(text, start):
        return default.span("value")
    if start != at:
        return span  # in quotes
    value = text[start:end]
    is_call = value.replace(".", "_").isidentifier() and _CALL.match(text, end)
    is_item = _INDEXED.fullmatch(value) and (value[-1] == "[" or text[at - 1].isspace())
    return None if is_call or is_item else span


def _in_connection_string(text: str, at: int, begin: int) -> Range | None:
    """Return the value between semicolons, as in `a=b;PWD=c;d=e`: only the next semicolon ends it."""
    before = text[begin - 1 : begin]
    found = None if before in ("?", "&") else _IN_CONNECTION_STRING.match(text, at)
    if found is None:
        return None
    is_last = before == ";" and text[found.end() : found.end() + 1] in ("", ";", '"', "'", "\\")
    if not is_last and not _NEXT_IN_CONNECTION_STRING.match(text, found.end()):
        return None
    is_shell = any(mark in found[0] for mark in _SHELL)
    return None if is_shell else found.span(str(found.lastgroup))


def _items(text: str, at: int) -> Iterator[Range]:
    while True:
        while empty := _EMPTY_ITEM.match(text, at):
            at = empty.end()
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


def _quoted_line(text: str, at: int) -> Iterator[Range]:
    start = _match_end(_BLANKS, text, at)
    found = _END_OF_HEADER.search(text, start)
    end = found.start() if found else len(text)
    if value := text[start:end].rstrip():
        yield start, start + len(value)
    elif span := quoted_or_plain(text, start):
        yield span


def _line(text: str, at: int) -> Iterator[Range]:
    """Yield the values of a line of YAML, and of a block or list below it."""
    end = _line_end(text, at)
    start = _match_end(_TAG, text, min(_match_end(_BLANKS, text, at), end))
    if start >= end or _BLOCK.match(text[start:end]) or text[start] == "#":
        depth = _depth(text[text.rfind("\n", 0, at) + 1 : end])
        yield from _block(text, end + 1, depth) if text[start:end][:1] in ("|", ">") else _below(text, end + 1, depth)
    elif text[start] == "'" and (quoted := _SINGLE.match(text, start)):
        yield quoted.span("value")
    elif text[start] in '"\\':
        if span := quoted_or_plain(text, start):
            yield span
    # A text around the line ends with a quote.
    elif text[start] != "{" and (line := _without_comment(text[start:end]).rstrip("\"'")):
        yield start, start + len(line)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return end if end >= 0 else len(text)


def _without_comment(line: str) -> str:
    for mark in (" #", "\t#", "\\n"):
        line = line.partition(mark)[0]
    return line.rstrip()


def _lines(text: str, at: int) -> Iterator[tuple[int, int, int]]:
    """Yield the depth of each line that is not empty, and start and end of the text in it; a NUL ends the text."""
    while at < len(text):
        end = _line_end(text, at)
        line, nul, _ = text[at:end].partition("\0")
        line = line.rstrip()
        if line:
            yield _depth(line), at + _depth(line), at + len(line)
        at = len(text) if nul else end + 1


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _block(text: str, at: int, indent: int) -> Iterator[Range]:
    """Yield the lines of a block as one value."""
    found: list[Range] = []
    for depth, start, end in _lines(text, at):
        if depth <= indent:
            break
        found.append((start, end))
    if found:
        yield found[0][0], found[-1][1]


def _below(text: str, at: int, indent: int) -> Iterator[Range]:
    """Yield the items of a list, or the text in the next line."""
    is_first = True
    for depth, start, end in _lines(text, at):
        content = _without_comment(text[start:end])
        if not content or content.startswith("#"):
            continue
        is_item = content.startswith("- ") and depth >= indent
        value = content[2:].lstrip() if is_item else content
        # A mapping has names of its own.
        is_mapping = ": " in value or value.endswith(":")
        if is_mapping or not (is_item or (is_first and depth > indent)):
            return
        begin = start + len(content) - len(value)
        span = quoted_or_plain(text, begin) if value[:1] in ("'", '"') else (begin, begin + len(value))
        if span:
            yield span
        if not is_item:
            return
        is_first = False
