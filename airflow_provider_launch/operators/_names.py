"""Names of components that a mapped operator of an author puts together, and that no value of a run may change."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from airflow_provider_launch.operators._code import codes_in
from airflow_provider_launch.operators._values import functions_in, texts_in, variables_of

_LONGEST = 1000
_MOST = 10_000
"""Most functions, classes and values that are read."""
_WORD = 2
"""Letters and digits of a piece that may be anywhere."""
_PLACE = re.compile(r"%(?:\(\w+\))?[sd]|\{[^{}]*\}")
"""Where `%` and `str.format` put a value."""


def pieces_of(classes: Collection[type], values: Iterable[Any], is_of_author: Callable[[Any], bool]) -> set[str]:
    """Return the texts of which classes could put a name together.

    These are texts and numbers among the values, in attributes of the classes, in defaults, and in variables that their
    functions name; and the texts in the code of these functions, and of functions and classes that they name.

    Args:
        classes: classes of an author.
        values: arguments in the DAG file.
        is_of_author: whether an author wrote a function or class.
    """
    read: dict[int, Any] = {}
    texts = texts_in(values, is_of_author, with_numbers=True, seen=read)
    waiting: list[Any] = [*classes]
    seen: set[int] = set()
    for each in waiting:
        if id(each) in seen or len(seen) >= _MOST:
            continue
        seen.add(id(each))
        with contextlib.suppress(Exception):  # the class of an object may do anything
            if issubclass(type(each), type):
                waiting += _members(each) if each in classes or is_of_author(each) else []
                continue
            texts |= texts_in([each], is_of_author, with_numbers=True, seen=read)
            for function in filter(is_of_author, functions_in(each)):
                for code in codes_in(function.__code__):
                    texts |= texts_in(code.co_consts, is_of_author)
                    waiting += _named_by(code, function.__globals__)
    texts |= {part for text in texts for part in _PLACE.split(text)}
    return texts | {text.lower() for text in texts}


def _members(kind: type) -> list[Any]:
    """Return the attributes of a class without those that Python adds."""
    found = vars(kind).items()
    return [each for name, each in found if name == "__module__" or type(each) is FunctionType or name[:2] != "__"]


def _named_by(code: CodeType, variables: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the variables that code names, also of modules: `settings.PACKAGE`."""
    scopes = [variables]
    for scope in scopes:
        for name in code.co_names:
            value = scope.get(name)
            yield value
            if name == "__file__" and value:
                yield Path(value).parent
            if issubclass(type(value), ModuleType) and not any(variables_of(value) is each for each in scopes):
                scopes.append(variables_of(value))


def consists_of(name: str, pieces: Collection[str]) -> bool:
    """Return whether a name consists of whole pieces only.

    Two letters, or two marks such as `.`, do not follow each other: code has many, which make any name.
    """
    own = [(piece, min(sum(map(str.isalnum, piece)), _WORD)) for piece in pieces if piece and piece in name]
    reached = {(0, _WORD)}
    for at in range(len(name)) if len(name) <= _LONGEST else ():
        for before in [size for size in range(_WORD + 1) if (at, size) in reached]:
            reached |= {
                (at + len(piece), size)
                for piece, size in own
                if (size == _WORD or size != before) and name.startswith(piece, at)
            }
    return any((len(name), size) in reached for size in range(_WORD + 1))
