"""Check from its source whether a function can be a component; the file is never imported."""

from __future__ import annotations

import abc
import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_launch.specs.component_args import TorchXArgumentHelpFormatter, get_fn_docstring

__all__ = [
    "ArgTypeValidator",
    "ComponentFunctionValidator",
    "LinterMessage",
    "ReturnTypeValidator",
    "TorchXArgumentHelpFormatter",
    "get_fn_docstring",
    "read_conf_file",
    "validate",
]

_FunctionDef = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class LinterMessage:
    """A problem and its position."""

    name: str
    description: str
    line: int
    char: int
    severity: str = "error"


class ComponentFunctionValidator(abc.ABC):
    """One check of the definition of a component."""

    @abc.abstractmethod
    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return the problems of the function; empty if there are none."""

    def _message(self, text: str, node: _FunctionDef | ast.arg) -> LinterMessage:
        return LinterMessage("LaunchComponent", text, line=node.lineno, char=node.col_offset)


class ArgTypeValidator(ComponentFunctionValidator):
    """Each parameter has a type that text can express: a name, or dict, list or tuple of names; None may be added."""

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return one message for each parameter of an unsupported type."""
        args = app_specs_func_def.args
        listed = [*args.posonlyargs, *args.args, *([args.vararg] if args.vararg else []), *args.kwonlyargs]
        return [
            self._message(f"{problem} for argument '{ast.unparse(arg)}' in function '{app_specs_func_def.name}'", arg)
            for arg in listed
            if (problem := _problem(arg))
        ]


class ReturnTypeValidator(ComponentFunctionValidator):
    """The return annotation of the function is an app."""

    def __init__(self, supported_return_type: str = "AppDef") -> None:
        self._type = supported_return_type

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return a message if the return annotation is missing or wrong."""
        found = app_specs_func_def.returns
        if found is None:
            problem = "missing return annotation"
        elif self._is_supported(found):
            return []
        else:
            problem = f"incorrect return annotation '{ast.unparse(found)}'"
        text = f"function '{app_specs_func_def.name}' has a {problem}; write `-> {self._type}`"
        return [self._message(text.replace("has a incorrect", "has an incorrect"), app_specs_func_def)]

    def _is_supported(self, found: ast.expr) -> bool:
        if isinstance(found, ast.Constant) and isinstance(found.value, str):
            return found.value.rpartition(".")[2] == self._type
        return (isinstance(found, ast.Name) and found.id == self._type) or (
            isinstance(found, ast.Attribute) and found.attr == self._type
        )


def validate(
    path: str, component_function: str, validators: Sequence[ComponentFunctionValidator] | None = None
) -> list[LinterMessage]:
    """Return why a function of a file is not a valid component; empty if it is one.

    Args:
        path: the file.
        component_function: name of the function.
        validators: the checks. None: `ArgTypeValidator` and `ReturnTypeValidator`.
    """
    try:
        tree = ast.parse(read_conf_file(path), filename=path)
    except SyntaxError as error:
        return [LinterMessage("LaunchComponent", error.msg, line=error.lineno or 0, char=error.offset or 0)]
    checks = [ArgTypeValidator(), ReturnTypeValidator("AppDef")] if validators is None else validators
    function = next((found for found in _functions(tree) if found.name == component_function), None)
    if function is None:
        return [LinterMessage("LaunchComponent", not_found(component_function), line=0, char=0)]
    return [message for check in checks for message in check.validate(function)]


def not_found(component_function: str) -> str:
    """Return the description of the message about a missing function."""
    return f"Function {component_function} not found"


def read_conf_file(path: str) -> str:
    """Return the source of a file."""
    return Path(path).read_text(encoding="utf-8")


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield the functions of a module, also those inside `if` and `try`; of equal names the last one first."""
    for node in reversed([*ast.iter_child_nodes(tree)]):
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _functions(node)


def _problem(arg: ast.arg) -> str:
    """Return the problem with the type of a parameter; empty if there is none."""
    if arg.annotation is None:
        return "Missing type annotation"
    tp = _without_none(_without_extras(_without_none(_unquoted(arg.annotation))))
    if isinstance(tp, ast.Name):
        return ""
    if not isinstance(tp, ast.Subscript):
        return f"Unsupported argument type '{ast.unparse(tp)}'"
    return _container_problem(tp)


def _container_problem(tp: ast.Subscript) -> str:
    container, items = _name(tp.value).lower(), _items(tp)
    text = ast.unparse(tp)
    kinds = {"dict": ["key", "value"], "list": ["element"], "tuple": ["element"] * len(items)}
    if container not in kinds:
        return f"Unsupported container type '{ast.unparse(tp.value)}'"
    if container == "dict" and len(items) != len(kinds["dict"]):
        return f"Malformed dict type '{text}'"
    if container == "tuple" and len(items) == 1:
        return f"Unsupported tuple type '{text}'"
    for kind, item in zip(kinds[container], items, strict=False):
        if not isinstance(item, ast.Name) and not _is_ellipsis(item):
            return f"Non-primitive {kind} type '{ast.unparse(item)}'"
    return ""


def _without_none(tp: ast.expr) -> ast.expr:
    """Return X for `Optional[X]`, `Union[X, None]` and `X | None`."""
    if isinstance(tp, ast.Subscript) and _name(tp.value) == "Optional":
        return _unquoted(tp.slice)
    members = [tp.left, tp.right] if isinstance(tp, ast.BinOp) and isinstance(tp.op, ast.BitOr) else []
    if isinstance(tp, ast.Subscript) and _name(tp.value) == "Union":
        members = _items(tp)
    rest = [member for member in members if not (isinstance(member, ast.Constant) and member.value is None)]
    return rest[0] if members and len(rest) == 1 else tp


def _without_extras(tp: ast.expr) -> ast.expr:
    """Return X for `Annotated[X, ...]`."""
    return _items(tp)[0] if isinstance(tp, ast.Subscript) and _name(tp.value) == "Annotated" else tp


def _unquoted(tp: ast.expr) -> ast.expr:
    if isinstance(tp, ast.Constant) and isinstance(tp.value, str):
        try:
            return ast.parse(tp.value, mode="eval").body
        except SyntaxError:
            return tp
    return tp


def _items(tp: ast.Subscript) -> list[ast.expr]:
    return tp.slice.elts if isinstance(tp.slice, ast.Tuple) else [tp.slice]


def _name(tp: ast.expr) -> str:
    if isinstance(tp, ast.Attribute):
        return tp.attr
    return tp.id if isinstance(tp, ast.Name) else ""


def _is_ellipsis(tp: ast.expr) -> bool:
    return isinstance(tp, ast.Constant) and tp.value is ...
