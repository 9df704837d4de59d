"""Names of components that a mapped operator of an author puts together, and that no value of a run may change."""

from __future__ import annotations

import contextlib
import dis
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

from airflow_provider_launch.operators._code import codes_in
from airflow_provider_launch.operators._values import functions_in, texts_in, variables_of

_LONGEST = 1000
_MOST = 10_000
"""Most functions, classes and values that are read."""
_MARK, _LETTER, _SHORT, _WORD = range(4)
"""Kinds of pieces: without letters, of one letter, of at most 3 letters and digits, and longer."""
_SHORTEST = 3
_STEP = re.compile(r"(?<![^/])(?:\.\.|~[^/:]*)(?![^/:])")
"""A step of a path that leads out of its folder."""
_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
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
                texts |= {"/"} if issubclass(each, PurePath) else set()
                waiting += _members(each) if each in classes or is_of_author(each) else []
                continue
            # These join the parts of a path.
            texts |= {"/"} if issubclass(type(each), PurePath) or each is os.path.join else set()
            # The methods of settings make parts of names, too.
            waiting += [type(each)] if is_of_author(type(each)) else []
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
    """Yield the variables that code names, also of modules: `settings.PACKAGE`, and the names of functions."""
    value: Any = None
    for each in dis.get_instructions(code):
        kind, name = type(value), each.argval
        if each.opname in _LOADS:
            value = variables.get(name)
            yield Path(value).parent if name == "__file__" and value else None
        elif each.opname in _ATTRIBUTES and issubclass(kind, ModuleType):
            value = variables_of(value).get(name)
        elif each.opname in _ATTRIBUTES and kind is FunctionType and name in {"__module__", "__name__"}:
            value = getattr(value, name)
        elif each.opname != "EXTENDED_ARG":
            value = None
        yield value


def consists_of(name: str, pieces: Collection[str]) -> bool:
    """Return whether a name consists of whole pieces only.

    Two short pieces, or two marks such as `.`, do not follow each other: code has many, which make any name. A number
    may follow a letter: `v2`. Only longer pieces lead out of a folder.
    """
    own = [(piece, _kind_of(piece)) for piece in pieces if piece and piece in name]
    steps = [match.span() for match in _STEP.finditer(name)]
    reached = {(0, _WORD)}
    for at in range(len(name)) if len(name) <= _LONGEST else ():
        for before in [kind for kind in range(_WORD + 1) if (at, kind) in reached]:
            reached |= {
                (at + len(piece), kind)
                for piece, kind in own
                if name.startswith(piece, at)
                and _may_follow(name, at, before, piece, kind)
                and all(
                    end <= at or at + len(piece) <= start or (kind == _WORD and at <= start and end <= at + len(piece))
                    for start, end in steps
                )
            }
    return any((len(name), kind) in reached for kind in range(_WORD + 1))


def _kind_of(piece: str) -> int:
    count = sum(map(str.isalnum, piece))
    return _WORD if count > _SHORTEST else _SHORT if count > 1 or piece.isdigit() else _LETTER if count else _MARK


def _may_follow(name: str, at: int, before: int, piece: str, kind: int) -> bool:
    """Return whether a piece may be at a place of a name, behind a piece of another kind."""
    if _WORD in {before, kind}:
        return True
    if _MARK in {before, kind}:
        return before != kind
    # A mark is between them, or it is the number of a version.
    is_apart = not (name[at - 1].isalnum() and piece[0].isalnum())
    return is_apart or (before == _LETTER and piece.isdigit())
