"""A check of a function that reads no syntax tree of its file, because each parse of each DAG file pays for that."""

from __future__ import annotations

import builtins
import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from airflow_provider_launch.functions.loaded_names import Names, names_in
from airflow_provider_launch.functions.source import GENERATORS, is_in_image, is_of_airflow, is_plain

_IMPORT = re.compile(r"(?:from[ \t]+([\w.]+)[ \t]+)?import[ \t]+\(?([\w.,\s]+)\)?\s*")
_WORD = re.compile(r"[\w.]+")


def surely_travels(function: Callable[..., Any], *, has_workspace: bool = False) -> bool:
    """Return True if `source_of` would accept the function, so far as the file is read; False: ask `source_of`.

    Only functions that use imports at the start of a line, plain values and simple helpers are checked here.

    Args:
        function: made with `def` or `async def`.
        has_workspace: as in `source_of`.
    """
    if type(function) is not FunctionType or not _is_simple(function):
        return False
    path = function.__code__.co_filename
    imports = _imports_of(path, function.__globals__)
    if imports is None:
        return False
    return _Check(function, path, imports, has_workspace=has_workspace).passes()


@dataclass
class _Imports:
    """The import statements of a file, found in its lines."""

    lines: list[str]
    modules: dict[str, set[str]] = field(default_factory=dict)
    """The modules that a name may come from."""
    unclear: set[str] = field(default_factory=set)
    """Words of other lines that contain `import`."""
    helpers: dict[CodeType, Names | None] = field(default_factory=dict)
    """The names that helpers of many tasks use; None: the complete check is needed."""


_READ: dict[str, _Imports] = {}


def _imports_of(path: str, module_globals: dict[str, Any]) -> _Imports | None:
    linecache.checkcache(path)
    lines = linecache.getlines(path, module_globals)
    found = _READ.get(path)
    # The same list as long as the file has not changed.
    if lines and (found is None or found.lines is not lines):
        _READ.clear()
        found = _READ[path] = _Imports(lines)
        for at, line in enumerate(lines):
            if "import" in line:
                _read_import(found, _whole(lines, at))
    return found if lines else None


def _whole(lines: list[str], at: int) -> str:
    """Return the statement that starts in a line, without comments."""
    text = lines[at].partition("#")[0]
    is_open = text.count("(") > text.count(")")
    while at + 1 < len(lines) and (is_open or text.endswith("\\\n")):
        at += 1
        text = text.removesuffix("\\\n") + lines[at].partition("#")[0]
        is_open = text.count("(") > text.count(")")
    return text


def _read_import(found: _Imports, text: str) -> None:
    match = _IMPORT.fullmatch(text)
    if match is None:
        found.unclear.update(re.findall(r"\w+|\*", text))
        return
    module, names = match.groups()
    words = _WORD.findall(names)
    for word in words:
        for part in {word, word.partition(".")[0]}:
            found.modules.setdefault(part, set()).update([module] if module else words)


class _Check:
    def __init__(self, function: FunctionType, path: str, imports: _Imports, *, has_workspace: bool) -> None:
        self._function, self._path, self._imports = function, path, imports
        self._has_workspace = has_workspace
        self._seen: set[str] = {function.__name__}

    def passes(self) -> bool:
        function = self._function
        if "*" in self._imports.unclear or function.__name__ in function.__globals__ or not _has_plain_cells(function):
            return False
        todo = [names_in(function.__code__)]
        while todo:
            names = todo.pop()
            if not all(self._has_module(name) for name in names.modules):
                return False
            for name in names.needed.keys() - self._seen:
                self._seen.add(name)
                value = function.__globals__.get(name, self)
                if helper := self._helper(name, value):
                    todo.append(helper)
                elif not self._is_known(name, value):
                    return False
        return True

    def _is_known(self, name: str, value: Any) -> bool:
        if name in self._imports.unclear or name[:2] == "__":
            return False
        if value is self:
            return hasattr(builtins, name)
        if modules := self._imports.modules.get(name):
            return not is_of_airflow(value) and all(self._has_module(each) for each in modules)
        return is_plain(value)

    def _has_module(self, module: str) -> bool:
        return is_in_image(module, self._path, has_workspace=self._has_workspace)

    def _helper(self, name: str, value: Any) -> Names | None:
        """Return the names that a simple function of the file uses."""
        if type(value) is not FunctionType or name in self._imports.modules or self._function.__closure__:
            # Helpers share one module with the values of functions around this one.
            return None
        if value.__defaults__ or value.__kwdefaults__ or value.__dict__ or value.__closure__ or value.__name__ != name:
            return None
        code, known = value.__code__, self._imports.helpers
        if code not in known:
            known[code] = names_in(code) if self._is_alone(name, value) else None
        return known[code]

    def _is_alone(self, name: str, value: FunctionType) -> bool:
        code, lines = value.__code__, self._imports.lines
        if code.co_filename != self._path or code.co_firstlineno > len(lines):
            return False
        found = re.match(rf"\s*(?:async\s+)?def\s+{name}\b", lines[code.co_firstlineno - 1])
        return found is not None and _is_simple(value, may_yield=True)


def _has_plain_cells(function: FunctionType) -> bool:
    """Return whether the names of functions around it have plain values."""
    try:
        return all(is_plain(cell.cell_contents) for cell in function.__closure__ or ())
    except ValueError:
        return False


def _is_simple(function: FunctionType, *, may_yield: bool = False) -> bool:
    """Return whether it is a function at the top of a file or of a block, without definitions inside of it."""
    code, owner = function.__code__, function.__qualname__.rpartition(".")[0]
    return (
        (may_yield or not code.co_flags & GENERATORS)
        and not hasattr(function, "__wrapped__")
        and code.co_name[0] != "<"
        and code.co_name == function.__name__
        and (not owner or owner.endswith("<locals>"))
        and not any(type(const) is CodeType and const.co_name[0] != "<" for const in code.co_consts)
    )
