"""Read help texts: the string literal below a field of a dataclass, and parts of function docstrings."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
import threading

# Python 3.11 raises a SystemError if two threads parse at the same time: https://github.com/python/cpython/issues/106905
_PARSES = threading.Lock()


def field_docstrings(cls: type) -> dict[str, str]:
    """Return the text below each annotated field, own and inherited; empty if there is no source.

    It also works for sources in zip archives, because it uses the import system.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        own = inspect.get_annotations(base)
        if base is object or not own:
            continue
        # A field that is declared again without a text has none; the inherited text described another field.
        inherited = {name: text for name, text in docs.items() if name not in own}
        docs = inherited | {name: text for name, text in _own_docstrings(base).items() if name in own}
    return docs


def _own_docstrings(cls: type) -> dict[str, str]:
    try:
        with _PARSES:
            tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    # Classes created at run time have no source, or only the source of the call that created them.
    except (OSError, TypeError, SyntaxError, IndexError):
        return {}
    if not tree.body or not isinstance(tree.body[0], ast.ClassDef):
        return {}
    docs: dict[str, str] = {}
    body = tree.body[0].body
    for statement, below in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            docs[statement.target.id] = inspect.cleandoc(below.value.value)
    return docs


_SECTION = re.compile(
    r"(Args|Arguments|Attributes|Example|Examples|Keyword Args|Note|Notes|Raises|Return|Returns|Usage|Warning|Warnings|"
    r"Yield|Yields|See Also|Todo)\s*:\s*$"
)
_DOCUMENTED = re.compile(r"\*{0,2}(?P<name>\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)$")


def google_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description in a Google-style docstring, and the text of each parameter below `Args:`."""
    lines = inspect.cleandoc(text).splitlines()
    first = next((number for number, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    short, _, rest = "\n".join(lines[:first]).strip().partition("\n")
    description = "\n".join(part for part in (short.strip(), rest.strip()) if part)
    parameters: dict[str, list[str]] = {}
    indent, current, is_args = 0, "", False
    for line in lines[first:]:
        depth = len(line) - len(line.lstrip())
        if _SECTION.match(line):
            is_args, indent, current = line.startswith(("Args", "Arguments")), 0, ""
        elif is_args and line.strip():
            indent = indent or depth
            found = _DOCUMENTED.match(line.strip()) if depth == indent else None
            if found:
                current = found["name"]
                parameters[current] = [found["text"].strip()]
            elif current:
                parameters[current].append(line.strip())
    return description, {name: " ".join(filter(None, parts)) for name, parts in parameters.items()}
