"""A parsed file of Python source: where its functions, classes and names are defined."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.functions.loaded_names import Names

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_COMPOUND = (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.AsyncFor, ast.AsyncWith)
_SIMPLE = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Pass, ast.Expr, ast.Raise)


@dataclass(frozen=True)
class BoundName:
    """A statement that gives a name its value."""

    node: ast.stmt
    alias: ast.alias | None = None
    """The part of an import."""
    whole: ast.stmt | None = None
    """The outermost `try` or `if` that contains it and nothing but imports, definitions and assignments."""
    is_for_checkers: bool = False
    """Whether it stands below `if TYPE_CHECKING`."""


@dataclass
class DagFile:
    """The definitions of a file. Names are those of the module; functions and classes also those inside of others."""

    lines: list[str]
    bindings: dict[str, list[BoundName]] = field(default_factory=dict)
    stars: list[ast.ImportFrom] = field(default_factory=list)
    """Imports of all names of a module."""
    functions: dict[tuple[int, str], ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    """By the first line, with decorators, and the name."""
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    """By the qualified name."""
    methods: set[tuple[int, str]] = field(default_factory=set)
    """The functions that belong to a class."""
    names: dict[tuple[int, str], Names] = field(default_factory=dict)
    """The names that pieces of the file use, because many tasks of a file use one helper."""

    def text_of(self, node: ast.stmt, *, with_decorators: bool = True) -> tuple[int, str]:
        """Return the number of its first line, and its lines as they are."""
        first = first_line(node) if with_decorators else node.lineno
        return first, "".join(self.lines[first - 1 : node.end_lineno]).rstrip("\n") + "\n"


def first_line(node: ast.stmt) -> int:
    """Return the line of its first decorator, or of itself."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


_PARSED: dict[str, DagFile] = {}
_MOST_PARSED = 8


def parsed_file(path: str, module_globals: Mapping[str, Any]) -> DagFile | None:
    """Return the file, parsed once for each content; None: its source cannot be read.

    Args:
        path: of the source, possibly inside of an archive.
        module_globals: of a module of that file; its loader reads from an archive.
    """
    # Python 3.13 keeps the command of `python -c` under the name that `exec` gives to any text.
    if path == "<string>":
        return None
    linecache.checkcache(path)
    lines = linecache.getlines(path, dict(module_globals))
    if not lines:
        return None
    found = _PARSED.get(path)
    # The same list as long as the file has not changed.
    if found is None or found.lines is not lines:
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            return None
        while len(_PARSED) >= _MOST_PARSED:
            del _PARSED[next(iter(_PARSED))]
        found = _PARSED[path] = DagFile(lines)
        _Reader(found).read(tree.body)
    return found


class _Reader:
    """Collects the definitions of a file."""

    def __init__(self, file: DagFile) -> None:
        self._file = file

    def read(self, body: list[ast.stmt]) -> None:
        for node in body:
            self._module_statement(node, whole=node if _is_definitions(node) else None, checkers=False)

    def _module_statement(self, node: ast.stmt, *, whole: ast.stmt | None, checkers: bool) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if alias.name == "*" and isinstance(node, ast.ImportFrom):
                    self._file.stars.append(node)
                else:
                    name = alias.asname or (
                        alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name
                    )
                    self._bind(name, BoundName(node, alias, whole, checkers))
        elif isinstance(node, Definition):
            self._bind(node.name, BoundName(node, None, whole, checkers))
            self._definition(node, "")
        else:
            for name in _assigned(node):
                self._bind(name, BoundName(node, None, whole, checkers))
            for block, is_checked in _blocks(node):
                for each in block:
                    self._module_statement(each, whole=whole, checkers=checkers or is_checked)

    def _bind(self, name: str, binding: BoundName) -> None:
        self._file.bindings.setdefault(name, []).append(binding)

    def _definition(self, node: Definition, prefix: str, *, is_in_class: bool = False) -> None:
        name = f"{prefix}{node.name}"
        if isinstance(node, ast.ClassDef):
            self._file.classes[name] = node
            self._nested(node.body, f"{name}.", is_in_class=True)
            return
        key = (first_line(node), node.name)
        self._file.functions[key] = node
        if is_in_class:
            self._file.methods.add(key)
        self._nested(node.body, f"{name}.<locals>.", is_in_class=False)

    def _nested(self, body: list[ast.stmt], prefix: str, *, is_in_class: bool) -> None:
        for node in body:
            if isinstance(node, Definition):
                self._definition(node, prefix, is_in_class=is_in_class)
            else:
                for block, _ in _blocks(node):
                    self._nested(block, prefix, is_in_class=is_in_class)


def _blocks(node: ast.stmt) -> Iterator[tuple[list[ast.stmt], bool]]:
    """Yield the statements inside of a statement, and whether they stand below `if TYPE_CHECKING`."""
    if isinstance(node, ast.Match):
        yield from ((case.body, False) for case in node.cases)
    elif isinstance(node, _COMPOUND) or type(node).__name__ == "TryStar":
        is_checked = isinstance(node, ast.If) and is_type_checking(node.test)
        yield getattr(node, "body", []), is_checked
        # In the order in which they run, because the last binding of a name counts.
        yield from ((handler.body, False) for handler in getattr(node, "handlers", ()))
        yield getattr(node, "orelse", []), False
        yield getattr(node, "finalbody", []), False


def is_type_checking(test: ast.expr) -> bool:
    """Return whether a condition is `TYPE_CHECKING`."""
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _is_definitions(node: ast.stmt) -> bool:
    """Return whether a compound statement contains nothing but imports, definitions and assignments."""
    return isinstance(node, (ast.Try, ast.If)) and all(
        isinstance(each, (*_SIMPLE, Definition)) or _is_definitions(each)
        for block, _ in _blocks(node)
        for each in block
    )


def _assigned(node: ast.stmt) -> set[str]:
    """Return the names that a statement assigns itself, without the statements inside of it."""
    targets: list[ast.AST] = []
    if isinstance(node, ast.Assign):
        targets = [*node.targets, node.value]
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor)):
        targets = [node.target]
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
    elif isinstance(node, (ast.If, ast.While)):
        targets = [node.test]
    elif isinstance(node, ast.Expr):
        targets = [node.value]
    elif isinstance(node, ast.Match):
        targets = [case.pattern for case in node.cases]
    elif type(node).__name__ == "TypeAlias":
        # A statement of Python 3.12.
        targets = [node.name]  # type: ignore[attr-defined]
    return {name for target in targets for each in ast.walk(target) if (name := _stored(each)) is not None}


def _stored(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.name if isinstance(node, (ast.MatchAs, ast.MatchStar)) else None
