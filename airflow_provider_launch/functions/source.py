"""The source of a function, with what it uses of its file: imports, functions, classes and plain values.

Source travels, not byte code and not a pickle: the Python of an image may be another version. No text is changed, so
that a traceback in the replica names the lines of the file.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, GenericAlias, ModuleType, UnionType
from typing import Any

from airflow_provider_launch.functions.dag_file import BoundName, DagFile, parsed_file
from airflow_provider_launch.functions.loaded_names import Names, names_in
from airflow_provider_launch.functions.program import ANNOTATIONS
from airflow_provider_launch.specs.errors import InvalidAppError

DECORATOR = "@task.launch_python"
_OF_MODULES = frozenset({"__name__", "__doc__", "__builtins__", "__spec__", "__package__", "__loader__", "__debug__"})
_AIRFLOW = "airflow"
_ASSIGNMENTS = frozenset({"Assign", "AnnAssign", "TypeAlias"})
GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True)
class FunctionSource:
    """A function as it travels."""

    file: str
    """Path of the file, as tracebacks show it."""
    name: str
    line: int
    """The line of its `def`."""
    pieces: list[tuple[int, str]]
    """Number of the first line, and the lines, in the order of the file."""
    values: dict[str, str]
    """Names with plain values, as Python writes them."""
    later: tuple[str, ...] = ()
    """Names whose values do not exist yet, because the file is being read."""


def source_of(function: Callable[..., Any], *, has_workspace: bool = False, is_final: bool = False) -> FunctionSource:
    """Return the source of a function and of what it uses.

    Args:
        function: made with `def` or `async def`.
        has_workspace: whether modules next to the file of the function travel in a workspace.
        is_final: whether the file has been read to its end, so that each name has its value.

    Raises:
        InvalidAppError: the function cannot travel; names the function, its file and line, and the cure.
    """
    made = _plain_function(function)
    code = made.__code__
    where = f"function {made.__name__!r} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    file = parsed_file(code.co_filename, made.__globals__)
    if file is None:
        raise InvalidAppError(f"{where} cannot travel: its source cannot be read from {code.co_filename!r}")
    try:
        return _Collector(made, file, has_workspace=has_workspace, is_final=is_final).collect()
    except _CannotTravelError as error:
        raise InvalidAppError(f"{where} cannot travel: {error}") from None


def _plain_function(function: Callable[..., Any]) -> FunctionType:
    function = _task_function(function) or function
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        kind = "a lambda" if isinstance(function, FunctionType) else f"a {type(function).__name__}"
        raise InvalidAppError(f"{DECORATOR} needs a function made with 'def', not {kind}")
    return function


class _CannotTravelError(Exception):
    """Something that the function uses cannot travel."""


class _Collector:
    """Collects the pieces of one function."""

    def __init__(self, function: FunctionType, file: DagFile, *, has_workspace: bool, is_final: bool) -> None:
        self._function, self._file = function, file
        self._has_workspace, self._is_final = has_workspace, is_final
        self._path = function.__code__.co_filename
        self._globals = function.__globals__
        self._pieces: dict[tuple[int, str], None] = {}
        self._values: dict[str, str] = {}
        self._meanings: dict[str, object] = {}
        """The object behind each name, because all pieces share one module."""
        self._later: dict[str, None] = {}
        self._unknown: dict[str, None] = {}
        """Names that the file does not define; one of its functions may do that with `global`."""
        self._made: dict[str, None] = {}

    def collect(self) -> FunctionSource:
        function, code = self._function, self._function.__code__
        node = self._node_of(function)
        if (code.co_firstlineno, node.name) in self._file.methods:
            raise InvalidAppError(f"{DECORATOR} needs a function made with 'def', not a method ({node.name!r})")
        if hasattr(function, "__wrapped__"):
            raise _CannotTravelError(f"a decorator below {DECORATOR} wraps it; call that inside of the function")
        if code.co_flags & GENERATORS:
            raise _CannotTravelError("it is a generator; return a list")
        self._meanings[function.__name__] = code
        line, text = self._file.text_of(node, with_decorators=False)
        self._pieces[line, text] = None
        if self._is_final:
            # The replica would find this later.
            self._compiled(line, text)
        if any(isinstance(const, CodeType) and const.co_name[0] != "<" for const in code.co_consts):
            # Annotations of inner functions do not travel, so their names are not needed.
            inner = next(
                const for const in self._compiled(line, text).co_consts
                if isinstance(const, CodeType) and const.co_name == code.co_name
            )  # fmt: skip
            self._use(names_in(inner), _cells(function))
        else:
            names = names_in(code)
            names.needed.update(dict.fromkeys(code.co_freevars))
            self._use(names, _cells(function))
        for name in self._unknown.keys() - self._made.keys():
            raise _CannotTravelError(_unknown(name, self._path))
        return FunctionSource(
            self._path, function.__name__, line, sorted(self._pieces), self._values, tuple(self._later)
        )

    def _node_of(self, function: FunctionType) -> ast.FunctionDef | ast.AsyncFunctionDef:
        code = function.__code__
        node = self._file.functions.get((code.co_firstlineno, code.co_name))
        if node is None or [arg.arg for arg in _parameters(node)] != [*code.co_varnames[: len(_parameters(node))]]:
            raise _CannotTravelError("its file has changed since it was read")
        return node

    def _compiled(self, line: int, text: str) -> CodeType:
        """Return the code of a piece, as the replica compiles it."""
        header = "if 1:\n" if text[:1] in " \t\f" else ""
        try:
            code: CodeType = compile(header + text, self._path, "exec", ANNOTATIONS, dont_inherit=True)
        except SyntaxError as error:
            raise _CannotTravelError(f"line {line + (error.lineno or 1) - 1 - bool(header)}: {error.msg}") from None
        return code

    # ---- names -----------------------------------------------------------------------------------------------

    def _use(self, names: Names, cells: dict[str, CellType], own: str = "") -> None:
        self._made.update(names.made)
        for name in names.modules:
            self._check_module(name, name)
        for name in names.needed:
            if name != own:
                self._name(name, cells)
        for name in names.maybe:
            if name != own:
                self._try_name(name, cells)

    def _try_name(self, name: str, cells: dict[str, CellType]) -> None:
        """Add a name if it can travel; the replica may not need it."""
        fields = ("_pieces", "_values", "_meanings", "_later", "_unknown", "_made")
        before = {field: dict(getattr(self, field)) for field in fields}
        try:
            self._name(name, cells)
            can_travel = self._unknown.keys() <= before["_unknown"].keys() | self._made.keys()
        except _CannotTravelError:
            can_travel = False
        if not can_travel:
            vars(self).update(before)

    def _name(self, name: str, cells: dict[str, CellType]) -> None:
        if name in cells:
            try:
                value = cells[name].cell_contents
            except ValueError:
                self._is_unset(name)
                return
            if self._is_new(name, value):
                self._value(name, value, None)
            return
        bindings = self._file.bindings.get(name, [])
        if name in self._globals:
            value = self._globals[name]
            if (bindings or name not in _OF_MODULES) and self._is_new(name, value):
                self._value(name, value, bindings)
        elif bindings:
            if self._is_new(name, bindings[-1].node):
                self._unread(name, bindings)
        elif not hasattr(builtins, name) and name not in _OF_MODULES:
            self._unknown[name] = None

    def _is_new(self, name: str, meaning: object) -> bool:
        """Return whether the name is not collected yet; it must not stand for two things."""
        meaning = meaning.__code__ if isinstance(meaning, FunctionType) else meaning
        if name not in self._meanings:
            self._meanings[name] = meaning
            return True
        known = self._meanings[name]
        is_task = _task_function(meaning)
        if known is meaning or (is_task is not None and is_task.__code__ is known):
            return False
        raise _CannotTravelError(f"{name!r} stands for two different things in what it uses; rename one")

    def _is_unset(self, name: str) -> None:
        if self._is_final:
            raise _CannotTravelError(f"{name!r} has no value yet; move its definition up")
        self._later[name] = None

    def _unread(self, name: str, bindings: list[BoundName]) -> None:
        """Add a name that the file defines further down, or only for type checkers."""
        binding = next((each for each in reversed(bindings) if not each.is_for_checkers), None)
        if binding is None:
            raise _CannotTravelError(f"it uses {name!r}, which is imported for type checkers only")
        if isinstance(binding.node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
            self._bound(name, binding, {})
        else:
            self._is_unset(name)

    # ---- values ----------------------------------------------------------------------------------------------

    def _value(self, name: str, value: Any, bindings: list[BoundName] | None) -> None:
        """Add what a name stands for.

        Args:
            name: as the function uses it.
            value: the object.
            bindings: where the module defines it. None: it belongs to a function around this one.
        """
        found = [each for each in bindings or () if not each.is_for_checkers]
        self._refuse_airflow(name, value)
        if name == "__file__":
            raise _CannotTravelError("it uses '__file__', but its file is not in the image; pass what it needs")
        imports = [each for each in found if each.alias is not None]
        is_own = isinstance(value, FunctionType) and value.__code__.co_filename == self._path
        if imports and not is_own:
            for binding in imports:
                self._bound(name, binding, {})
        elif isinstance(value, FunctionType) and is_own:
            self._helper(name, value, found)
        elif isinstance(value, ModuleType):
            self._check_module(value.__name__, name)
            self._pieces[1, f"import {value.__name__} as {name}\n"] = None
        elif is_plain(value):
            self._values[name] = repr(value)
        elif isinstance(value, type) and value.__module__ == self._globals.get("__name__"):
            self._class(name, value)
        elif text := self._import_of(name, value):
            self._pieces[1, text] = None
        else:
            self._object(name, value, found)

    def _object(self, name: str, value: Any, found: list[BoundName]) -> None:
        """Add an object that a definition made, such as a function with a decorator, or refuse it."""
        if hasattr(value, "registry") and hasattr(value, "dispatch"):
            raise _CannotTravelError(f"functions are registered for {name!r}, which would be missing; use one function")
        if _is_hint(value) and [type(each.node).__name__ in _ASSIGNMENTS for each in found] == [True]:
            self._bound(name, found[0], {})
            return
        definitions = [each for each in found if isinstance(each.node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        if definitions and len(definitions) == len(found):
            wrapped = inspect.unwrap(value) if callable(value) else value
            cells = _cells(wrapped) if isinstance(wrapped, FunctionType) else {}
            self._bound(name, definitions[-1], cells)
            return
        kind = "lambda" if getattr(value, "__name__", "") == "<lambda>" else type(value).__name__
        raise _CannotTravelError(f"{name!r} is not a plain value but a {kind}; make it inside of the function")

    def _helper(self, name: str, value: FunctionType, found: list[BoundName]) -> None:
        if value.__name__ == "<lambda>":
            raise _CannotTravelError(f"{name!r} is a lambda; write it with 'def'")
        node = self._node_of(value)
        is_wrapped = node.name != name and any(getattr(each.node, "name", None) == name for each in found)
        if is_wrapped or hasattr(value, "__wrapped__"):
            self._object(name, value, found)
            return
        if node.name != name:
            raise _CannotTravelError(f"it calls {node.name!r} by another name, {name!r}; use one name")
        if value.__dict__ and not node.decorator_list:
            raise _CannotTravelError(f"{name!r} has attributes, which would be missing: {', '.join(value.__dict__)}")
        whole = next((each.whole for each in found if each.node is node), None)
        self._bound(name, BoundName(node, None, whole), _cells(value))

    def _class(self, name: str, value: type) -> None:
        node = self._file.classes.get(value.__qualname__)
        if node is None:
            raise _CannotTravelError(f"the class {name!r} is not in its file; define it with 'class'")
        if node.name != name:
            raise _CannotTravelError(f"it uses the class {node.name!r} by another name, {name!r}; use one name")
        cells: dict[str, CellType] = {}
        for method in vars(value).values():
            inner = getattr(method, "__func__", getattr(method, "fget", method))
            if isinstance(inner, FunctionType):
                cells.update(_cells(inner))
        cells.pop("__class__", None)
        found = self._file.bindings.get(name, [])
        whole = next((each.whole for each in found if each.node is node), None)
        self._bound(name, BoundName(node, None, whole), cells)

    def _bound(self, name: str, binding: BoundName, cells: dict[str, CellType]) -> None:
        """Add the statement that defines a name, and what that uses."""
        node = binding.whole or binding.node
        if binding.alias is not None:
            self._check_import(name, binding)
            if binding.whole is None or binding.whole is binding.node:
                self._pieces[binding.node.lineno, self._import_text(binding)] = None
                return
        line, text = self._file.text_of(node)
        self._pieces[line, text] = None
        names = self._file.names.get((line, text))
        if names is None:
            names = self._file.names[line, text] = names_in(self._compiled(line, text))
        # The piece defines the name itself.
        self._use(names, cells, name)
        if isinstance(node, ast.ClassDef) or getattr(node, "decorator_list", None):
            # Libraries read annotations of classes and of decorated functions.
            for each in _annotation_names(node):
                if each not in self._meanings:
                    self._try_name(each, cells)

    # ---- modules ---------------------------------------------------------------------------------------------

    def _import_text(self, binding: BoundName) -> str:
        node, alias = binding.node, binding.alias
        assert alias is not None
        renamed = f" as {alias.asname}" if alias.asname else ""
        if isinstance(node, ast.ImportFrom):
            return f"from {self._module_of(node)} import {alias.name}{renamed}\n"
        return f"import {alias.name}{renamed}\n"

    def _module_of(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = str(self._globals.get("__package__") or "")
        try:
            return importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        except ImportError as error:
            raise _CannotTravelError(f"line {node.lineno} imports by a relative name: {error}") from None

    def _check_import(self, name: str, binding: BoundName) -> None:
        node = binding.node
        assert binding.alias is not None
        module = self._module_of(node) if isinstance(node, ast.ImportFrom) else binding.alias.name
        self._check_module(module, name)

    def _import_of(self, name: str, value: Any) -> str:
        """Return an import of an object of another module; empty: its module does not have it under a name."""
        for star in self._file.stars:
            module = self._module_of(star)
            if getattr(sys.modules.get(module), name, None) is value:
                self._check_module(module, name)
                return f"from {module} import {name}\n"
        owner, qualname = str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", ""))
        is_elsewhere = owner != self._globals.get("__name__") and qualname.isidentifier()
        if not is_elsewhere or getattr(sys.modules.get(owner), qualname, None) is not value:
            return ""
        self._check_module(owner, name)
        return f"from {owner} import {qualname} as {name}\n"

    def _check_module(self, module: str, name: str) -> None:
        root = module.partition(".")[0]
        if root == _AIRFLOW:
            raise _CannotTravelError(_of_airflow(name))
        if not root:
            raise _CannotTravelError("it imports by a relative name; use the full name of the module")
        if not is_in_image(module, self._path, has_workspace=self._has_workspace):
            raise _CannotTravelError(f"module {root!r} lies next to its file; send it with workspace='.'")

    def _refuse_airflow(self, name: str, value: Any) -> None:
        function = _task_function(value)
        if function is not None:
            if function.__code__ is self._function.__code__:
                raise _CannotTravelError(f"it calls {function.__name__!r} by another name, {name!r}; use one name")
            raise _CannotTravelError(
                f"it uses the task {name!r}; call that outside, and pass its output as an argument"
            )
        if not is_of_airflow(value):
            return
        if hasattr(value, "resolve") and hasattr(value, "operator"):
            raise _CannotTravelError(
                f"{name!r} is the output of a task, which stays on the worker; pass what it needs as an argument"
            )
        raise _CannotTravelError(_of_airflow(name))


def _unknown(name: str, path: str) -> str:
    return f"it uses {name!r}, which is neither in it nor in {os.path.basename(path)}"


def _of_airflow(name: str) -> str:
    return f"{name!r} is a part of Airflow, which stays on the worker; pass what it needs as an argument"


def is_of_airflow(value: Any) -> bool:
    """Return whether the value, or its class, is a module or a part of Airflow."""
    module = value.__name__ if isinstance(value, ModuleType) else _module_name(value)
    return module.partition(".")[0] == _AIRFLOW


def is_in_image(module: str, path: str, *, has_workspace: bool) -> bool:
    """Return whether the image or the workspace has the module; False: Airflow, a relative name, next to the file."""
    root = module.partition(".")[0]
    if not root or root == _AIRFLOW:
        return False
    if has_workspace or root in sys.stdlib_module_names:
        return True
    nearby = os.path.join(os.path.dirname(path), root)
    return not (os.path.isfile(f"{nearby}.py") or os.path.isfile(os.path.join(nearby, "__init__.py")))


def _module_name(value: Any) -> str:
    """Return the module of a class or function, or of the class of another object."""
    owner = value if isinstance(value, (type, FunctionType)) else type(value)
    return str(getattr(owner, "__module__", ""))


def _task_function(value: Any) -> FunctionType | None:
    """Return the function of a task decorator; without an import of Airflow, because this room works alone."""
    if getattr(type(value), "_airflow_is_task_decorator", False):
        function = getattr(value, "function", None)
        return function if isinstance(function, FunctionType) else None
    return None


def _cells(function: FunctionType) -> dict[str, CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    given = node.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def _annotation_names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        found = [getattr(each, "annotation", None), getattr(each, "returns", None)]
        for annotation in found:
            if isinstance(annotation, ast.AST):
                yield from (part.id for part in ast.walk(annotation) if isinstance(part, ast.Name))


def _is_hint(value: Any) -> bool:
    """Return whether it is made for type hints, such as `TypeVar("T")`, `dict[str, int]` or `int | None`."""
    return type(value).__module__ == "typing" or isinstance(value, (GenericAlias, UnionType))


def is_plain(value: Any, depth: int = 50) -> bool:
    """Return whether `repr` writes the value as Python reads it again."""
    kind = type(value)
    if value is None or value is ... or kind in (bool, int, float, str, bytes):
        return True
    if kind in (list, tuple, set, frozenset, dict):
        if not depth:
            return False
        if kind is dict:
            return all(is_plain(each, depth - 1) for pair in value.items() for each in pair)
        return all(is_plain(each, depth - 1) for each in value)
    return False
