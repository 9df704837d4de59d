"""Help texts of dataclass fields: the string literal below a field."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap

__all__ = ["field_docstrings"]


def field_docstrings(cls: type) -> dict[str, str]:
    """Return the text below each annotated field, own and inherited; nothing where there is no source.

    Works for sources in zip archives, because the import system is asked for them.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        own = inspect.get_annotations(base)
        if base is object or not own:
            continue
        # A field declared again without a text has no text; the inherited one described another field.
        inherited = {name: text for name, text in docs.items() if name not in own}
        docs = inherited | {name: text for name, text in _own_docstrings(base).items() if name in own}
    return docs


def _own_docstrings(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    # Classes made at run time have no source, or only that of the call which made them.
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
