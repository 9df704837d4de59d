"""The texts that the authors of a function wrote; an app that a function builds may name only these."""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import importlib.util
import inspect
import linecache
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from airflow_provider_launch.operators._sources import is_mark, strings_in
from airflow_provider_launch.operators._values import (
    attributes_of,
    file_of,
    functions_in,
    held_by,
    module_of,
    texts_in,
    variables_of,
)

_MOST_PARTS = 64
"""Most parts of a path that is searched."""
_MOST_MODULES = 100
_TRIES = 5
_IMPORT = dis.opmap["IMPORT_NAME"]
_SETTINGS = frozenset({"argparse", "configparser", "omegaconf"})
"""Libraries whose objects are the settings of an author."""
_OWN = __name__.partition(".")[0]
_WORKSPACES = ("Workspace", "from_str")
_LIBRARIES = (
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    f"{Path(__file__).parents[1]}{os.sep}",
)
"""Folders of Python and of installed packages, whose many texts no author of an app has in mind."""


class Code:
    """The texts that a function could name before its call; afterwards its variables may have texts of the run.

    These are the texts in its module, and in modules of its author which that imports; values of variables and
    attributes that these modules name, and what functions among them hold; and, as the start of a path, the folders of
    the modules.

    Args:
        functions: functions, objects that can be called, results of `functools.partial`, and classes.
        dag_file: path of the file of the DAG; it may be missing.
        texts: others that authors or the administrator wrote.
    """

    def __init__(self, functions: Iterable[Any] = (), dag_file: str = "", texts: Iterable[str] = ()) -> None:
        self.texts = {*texts}
        self._starts: set[str] = set()
        self._marks: set[str] = set()
        self._modules: set[str] = set()
        self._packages: set[str] = set()
        self._seen: dict[int, Any] = {}
        """Objects that were read, by `id()`."""
        self._known_packages = 0
        self._with_ours: dict[str, bool] = {}
        """Whether a module of an installed package names ours, by file."""
        for function in functions:
            self.read(function)
        # Last, because the function may be in this file, whose variables only it knows.
        self._read_file(dag_file, {}, is_limited=False)
        self._seen = {}
        self.texts |= {str(Path(text).expanduser()) for text in self.texts if text.startswith("~/")}
        self._temporary = Path(os.path.realpath(tempfile.gettempdir()))
        self._older: set[str] | None = None
        with contextlib.suppress(OSError):  # then no folder counts as new
            self._older = {path.name for path in self._temporary.iterdir()}

    def names(self, location: str) -> bool:
        """Return whether the location was written, as a whole or in parts, or is a new temporary folder."""
        is_written = location in self._marks or is_joined(location, self.texts, self._starts)
        return is_written or self._is_new(location)

    def _is_new(self, location: str) -> bool:
        """Return whether the function made the location in the folder for temporary files."""
        path = Path(os.path.realpath(location))
        is_below = path.is_relative_to(self._temporary) and path != self._temporary
        if self._older is None or not Path(location).is_absolute() or not is_below:
            return False
        top = path.relative_to(self._temporary).parts[0]
        with contextlib.suppress(OSError):
            return top not in self._older and os.lstat(self._temporary / top).st_uid == os.geteuid()
        return False

    def read(self, function: Any) -> None:
        """Add the texts of one more function or class."""
        if issubclass(type(function), type):
            file = file_of(module_of(function))
            if is_library(file) and not package_of(file):
                return  # such as `typing.Generic`
            self._packages.update(package_of(file))
            self._read_module(function.__module__)
            # An operator of an author: its constructor makes the fields.
            for each in [*vars(function).values()]:
                self.read(next(functions_in(each), None))
            return
        if isinstance(function, functools.partial):
            self._read_values([function.args, function.keywords])
            self.read(function.func)
            return
        with contextlib.suppress(Exception):  # functions of C have no code
            self._read_values([function])
            wrappers: list[Any] = []
            wrapped = inspect.unwrap(function, stop=wrappers.append)
            for each in wrappers:
                self._read_function(each, is_wrapper=True)
            self._read_function(wrapped)

    def _read_function(self, function: Any, *, is_wrapper: bool = False) -> None:
        method = function if inspect.isroutine(function) else function.__call__
        if inspect.ismethod(method):
            self._read_values(attributes_of(method.__self__))
        function = getattr(method, "__func__", method)
        if is_wrapper and not (type(function) is FunctionType and self.is_of_author(function)):
            return  # such as that of `functools.lru_cache`
        self._read_values(held_by(function))
        file = inspect.getsourcefile(function) or ""
        self._packages.update(package_of(file))
        self._read_file(file, function.__globals__, code=function.__code__)

    def _read_module(self, name: str) -> None:
        """Read a module of an author by its name, also one that a function has not imported yet."""
        module = sys.modules.get(name)
        spec = _found(name) if module is None else None
        file = file_of(module) or (spec.origin if spec and spec.has_location else "")
        # The loader of a zip archive finds the source by the first two of these variables.
        later = {"__name__": name, "__loader__": spec.loader, "__package__": spec.parent} if spec else {}
        variables = variables_of(module) or later
        if file and not self._is_library(file, variables):
            self._read_file(file, variables)

    def _is_library(self, file: str, variables: dict[str, Any]) -> bool:
        """Return whether an author of apps did not write a module; an installed package with components counts."""
        if not is_library(file) or not package_of(file).isdisjoint(self._packages):
            return False
        # Such a package imports this one.
        if file not in self._with_ours:
            lines = linecache.getlines(file, variables) if package_of(file) else []
            self._with_ours[file] = any(_OWN in line for line in lines)
        is_of_author = self._with_ours[file]
        self._packages.update(package_of(file) if is_of_author else ())
        return not is_of_author

    def _read_file(
        self, file: str, variables: dict[str, Any], *, is_limited: bool = True, code: CodeType | None = None
    ) -> None:
        """Read a module and those that it imports; if there is no such file, read only the code."""
        if file in self._modules:
            return
        lines = linecache.getlines(file, variables)
        # Installed packages take nothing from the limit for the modules of the DAG.
        count = sum(bool(package_of(each)) is bool(package_of(file)) for each in self._modules)
        if not (lines or code) or (is_limited and count >= _MOST_MODULES):
            return
        self._modules |= {file} if lines else set()
        names: set[str] = set()
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            text = "".join(lines)
            made = compile(text, file, "exec", dont_inherit=True) if lines or code is None else code
            for each in codes_in(made):
                names.update(each.co_names, each.co_freevars)
                # Only here, because it takes time: `src:app` may describe a workspace.
                self.texts.update(strings_in(each.co_consts))
                for name in _imports_in(each, str(variables.get("__package__") or "")):
                    self._read_module(name)
            if any(word in text for word in (*_WORKSPACES, "workspace")):
                self._marks.update(_marks_in(_tree(text, file), variables))
        if Path(file).is_absolute():  # not "<stdin>"
            folders = {Path(file).parent, Path(os.path.realpath(file)).parent}
            # Of "f.py" also "f", for `Path(__file__).with_suffix(".yaml")`.
            self._read_values([folders, file, Path(file).stem] if "__file__" in names else ())
            self._starts |= {tempfile.gettempdir()} if "gettempdir" in names else set()
            self._starts |= {str(parent) for each in folders for parent in (each, *each.parents)}
        pairs = [*variables.items()]
        self._read_values(value for name, value in pairs if not name.startswith("__"))
        self._read_attributes([value for name, value in pairs if name in names], names)

    def _read_attributes(self, values: list[Any], names: Collection[str]) -> None:
        """Read what a module may name with dots, such as `settings.PLACE`, without calling properties."""
        seen = {id(value) for value in values}
        read = set[int]()
        for value in values:
            with contextlib.suppress(Exception):  # the class of an object may do anything
                module = module_of(value)
                file, variables = file_of(module), variables_of(module)
                # A folder of modules may have no file, and neither do the modules of C.
                if self._is_library(file, variables) if file else "__path__" not in variables_of(value):
                    continue
                self._read_file(file, variables)
                for scope in [each for each in self._scopes_of(value) if id(each) not in read]:
                    read.add(id(scope))
                    members = variables_of(scope) or type.__getattribute__(scope, "__dict__")
                    found = [members[name] for name in members.keys() & names]
                    self._read_values(found)
                    new = [each for each in found if id(each) not in seen]
                    values += [each for each in new if issubclass(type(each), (ModuleType, type))]
                    seen.update(map(id, found))

    def _scopes_of(self, value: Any) -> Iterator[Any]:
        """Yield a module, or a class with its bases and its own class, as far as an author wrote them."""
        if issubclass(type(value), ModuleType):
            yield value
        elif issubclass(type(value), type):
            yield from filter(self.is_of_author, (*value.__mro__, *type(value).__mro__))

    def _read_values(self, values: Iterable[Any]) -> None:
        if len(self._packages) != self._known_packages:
            # More classes are those of authors now.
            self._seen, self._known_packages = {}, len(self._packages)
        self.texts |= texts_in(values, self.is_of_author, seen=self._seen)

    def is_of_author(self, kind: Any) -> bool:
        """Return whether an author wrote a function or class, and not Airflow, which knows the run."""
        if type(kind) is FunctionType:
            file = kind.__code__.co_filename
            return not is_library(file) or not package_of(file).isdisjoint(self._packages)
        module = module_of(kind)
        file = file_of(module)
        if kind.__module__.partition(".")[0] in _SETTINGS:
            return True
        is_of_airflow = any(base.__module__.partition(".")[0] == "airflow" for base in kind.__mro__)
        return bool(file) and not is_of_airflow and not self._is_library(file, variables_of(module))


def is_library(file: str) -> bool:
    """Return whether a module belongs to Python or an installed package."""
    return file.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in file


def package_of(file: str) -> set[str]:
    """Return the installed package with this file, as a set; empty for our own and Airflow's, and for other files."""
    found = re.match(r".*/(?:site|dist)-packages/([^/]+)", file)
    return set() if found is None or found[1] in {_OWN, "airflow"} else {found[0]}


def _found(name: str) -> Any:
    """Return where a module would be imported from, without importing it or its package; None if nowhere."""
    found, places = None, None
    steps = name.split(".")
    for at in range(len(steps)):
        if at and not places:
            return None
        with contextlib.suppress(Exception):  # those of finders
            found = PathFinder.find_spec(".".join(steps[: at + 1]), places)
            # Editable installs have a finder of their own.
            found = importlib.util.find_spec(steps[0]) if found is None and at == 0 else found
        if found is None:
            return None
        places = found.submodule_search_locations
    return found


def _tree(text: str, file: str) -> ast.AST:
    # Python 3.11 raises a SystemError if a destructor parses code at the same time.
    for _ in range(_TRIES):
        with contextlib.suppress(SystemError):
            return ast.parse(text, file)
    return ast.Module([], [])


def _imports_in(code: CodeType, package: str) -> Iterator[str]:
    """Yield the modules that code imports; each name that it imports from one may be a module, too."""
    before: list[Any] = [None, None]
    for each in dis.get_instructions(code) if _IMPORT in code.co_code[::2] else ():
        if each.opcode == _IMPORT:
            level, names = before
            with contextlib.suppress(ImportError, ValueError, TypeError):  # no package
                base = importlib.util.resolve_name("." * level + each.argval, package)
                yield base
                yield from (f"{base}.{name}" for name in names or ())
        if each.opname != "EXTENDED_ARG":
            before = [before[1], each.argval]


def _marks_in(tree: ast.AST, variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the marks such as `.` that a module writes as a workspace, and not to cut or join texts."""
    for node in ast.walk(tree):
        given: list[Any] = []
        if isinstance(node, ast.Call):
            is_workspace = getattr(node.func, "attr", getattr(node.func, "id", "")) in _WORKSPACES
            given += node.args if is_workspace else []
            given += [each.value for each in node.keywords if is_workspace or each.arg == "workspace"]
        elif isinstance(node, ast.Dict):
            # `{"workspace": {"projects": {".": ""}}}`, as in JSON.
            given += [value for key, value in zip(node.keys, node.values, strict=True) if _is_key(key)]
        elif isinstance(node, ast.Assign):
            given += [node.value] if any(_is_key(getattr(each, "slice", None)) for each in node.targets) else []
        elif isinstance(node, ast.arguments):
            pairs: list[tuple[ast.arg, ast.expr | None]] = [
                *zip([*node.posonlyargs, *node.args][::-1], node.defaults[::-1], strict=False)
            ]
            pairs += zip(node.kwonlyargs, node.kw_defaults, strict=True)
            given += [value for parameter, value in pairs if parameter.arg == "workspace"]
        for part in [part for each in given for part in (each.keys if isinstance(each, ast.Dict) else [each])]:
            text = getattr(part, "value", None)
            if isinstance(part, ast.Name) and part.id.isupper():  # no parameter
                text = variables.get(part.id)
            if isinstance(text, str) and text and is_mark(text):
                yield text


def _is_key(node: object) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("workspace", "projects")


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield code and that of functions and classes in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_in(each)


def is_joined(location: str, texts: Collection[str], starts: Collection[str] = ()) -> bool:
    """Return whether a path consists of whole texts, joined by slashes, and ends with a name.

    Args:
        location: the path, or an address.
        texts: texts of authors: `/opt/conf/a.yaml` consists of `/opt/conf` and `a.yaml`, also of `a` and `.yaml`.
        starts: folders in which such paths may be.
    """
    path = _plain(location)
    first, others = _known(frozenset(texts))
    ends = [*(match.start() for match in re.finditer("/", path)), len(path)]
    reached = [0]
    for start in reached if len(ends) <= _MOST_PARTS and not is_mark(path.rpartition("/")[2]) else ():
        for end in ends:
            part, known = path[start:end], others if start else first
            stem, dot, suffix = part.rpartition(".")
            is_written = part in known or (stem in known and dot + suffix in others)
            if is_written and end == len(path) > start:
                return True
            if end > start and end + 1 not in reached and (is_written or (not start and part in starts)):
                reached.append(end + 1)
    return False


@functools.lru_cache(maxsize=2)
def _known(texts: frozenset[str]) -> tuple[set[str], set[str]]:
    """Return the texts with which a path may begin, and its later parts."""
    first = {_plain(text) for text in texts if not is_mark(text)}
    return first, {text.strip("/") for text in first} | ({".."} & texts)


def _plain(path: str) -> str:
    """Return a path as a `Path` would write it: without `//`, `/./` or a slash at its end."""
    scheme, mark, rest = path.rpartition("://")
    return f"{scheme}{mark}{re.sub('/(?:[.]?/)+', '/', rest).removeprefix('./').rstrip('/')}"
