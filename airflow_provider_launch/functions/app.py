"""Builds the app that runs a function: its source and arguments travel in variables, and a program runs them."""

from __future__ import annotations

import ast
import base64
import dataclasses
import functools
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_launch.functions.arguments import bound, defaults_of, named_args, written
from airflow_provider_launch.functions.source import FunctionSource, source_of
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.specs.roles import AppDef, Mount, RetryPolicy, Role
from airflow_provider_launch.specs.secrets import FUNCTION_VARIABLES
from airflow_provider_launch.specs.workspaces import Workspace

LARGEST_BYTES = 1_000_000
"""Limit for the source and the arguments of a function, any text. Kubernetes stores 1.5 MB, and Linux passes 2 MB."""
_PART_CHARS = 120_000
"""Linux passes 131 071 bytes in one variable."""
# It also runs with Python 2, to name the reason. It contains `LAUNCH_RESULT_PATH`, because a scheduler that cannot
# return a result refuses programs with this name.
_COMMAND = (
    "import os,sys;sys.version_info>=(3,8) or sys.exit('a function needs Python 3.8 or newer in the image, "
    "and this is '+sys.version.split()[0]);import base64,zlib;E=os.environ;N='@NAME@';"
    "P,A=''.join(E.pop(N+str(i)) for i in range(int(E.pop(N+'PARTS')))).split(' ',1);"
    "P,S=zlib.decompress(base64.b64decode(P)).decode().split('\\0');"
    "exec(compile(P,'<launch_function>','exec'),"
    "{'__name__':'<launch_function>','TEXTS':(P,S,A,E.get('LAUNCH_RESULT_PATH'))})"
).replace("@NAME@", FUNCTION_VARIABLES)


def function_app(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    torch: bool = False,
    gather: bool = False,
    **fields: Any,
) -> AppDef:
    """Return an app with one role, whose replicas run the function.

    The function's source travels with what it uses of its file: imports, functions, classes and plain values. The image
    needs Python 3.8 or newer, and the modules that the function imports. `value_of` reads the result of the app.

    Args:
        function: made with `def` or `async def`.
        args: its arguments by position, as JSON can hold them.
        kwargs: its arguments by name. A parameter `replica` gets the `Replica` in which the function runs.
        torch: whether the replicas are the processes of one PyTorch training: `torch_env` of `Role`.
        gather: whether the result is a list of what all replicas have returned; otherwise that of replica 0 counts.
        fields: those of `role_app`.

    Raises:
        InvalidAppError: the function or an argument cannot travel.
    """
    app = role_app(getattr(function, "__name__", "function"), torch=torch, **fields)
    return with_function(app, function, args, kwargs or {}, gather=gather)


def role_app(
    name: str,
    *,
    image: str = "",
    python: str = "python3",
    num_replicas: int = 1,
    resource: Resource | None = None,
    env: Mapping[str, str] | None = None,
    max_retries: int = 0,
    retry_policy: RetryPolicy = RetryPolicy.APPLICATION,
    port_map: Mapping[str, int] | None = None,
    mounts: Sequence[Mount] = (),
    metadata: Mapping[str, Any] | None = None,
    workspace: Workspace | None = None,
    torch: bool = False,
    max_disruptions: int | None = None,
) -> AppDef:
    """Return the app of a function, still without the function.

    Args:
        name: the name of the function.
        image: the image of the replicas; this and the following arguments are those of `Role`.
        python: the interpreter in the image.
        num_replicas: number of replicas.
        resource: the resources of a replica.
        env: variables of each replica.
        max_retries: retries of the app.
        retry_policy: the replicas to restart.
        port_map: ports by name.
        mounts: of each replica.
        metadata: by scheduler or tool.
        workspace: local directories; modules next to the file of the function may then be imported.
        torch: its `torch_env`.
        max_disruptions: restarts after the loss of a replica that do not count as retries.
    """
    role = Role(
        name=name,
        image=image,
        entrypoint=python,
        args=["-c", _COMMAND],
        env={**(env or {})},
        num_replicas=num_replicas,
        max_retries=max_retries,
        retry_policy=retry_policy,
        port_map={**(port_map or {})},
        mounts=[*mounts],
        metadata={**(metadata or {})},
        workspace=workspace,
        torch_env=torch,
        max_disruptions=max_disruptions,
    )
    if resource is not None:
        role.resource = resource
    return AppDef(name, [role])


def with_function(
    app: AppDef,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    gather: bool = False,
    has_workspace: bool = False,
    seen: Callable[[Any], object] | None = None,
) -> AppDef:
    """Return a copy of the app whose replicas run the function.

    Args:
        app: of `role_app`.
        function: made with `def` or `async def`.
        args: its arguments by position.
        kwargs: its arguments by name.
        gather: as in `function_app`.
        has_workspace: whether the role will get a workspace.
        seen: called with all values that travel as JSON, before they are written.

    Raises:
        InvalidAppError: the function or an argument cannot travel.
    """
    (role,) = app.roles
    source = source_of(function, has_workspace=has_workspace or bool(role.workspace), is_final=True)
    values, texts, plain = _divided(source.values)
    own = {"defaults": defaults_of(function), "plain": plain, "texts": texts}
    data = {**bound(function, args, kwargs), **own}
    if seen is not None:
        # Values of the DAG file first, so that no number of values of a run pushes them out of the limit of masks.
        seen(own)
        # With the names of the arguments, which decide what is a secret.
        seen({**data, "named": named_args(function, data["args"])})
    document = {"name": source.name, "values": values, **data, "gather": gather}
    env = {**role.env, **_variables(source, document)}
    return dataclasses.replace(app, roles=[dataclasses.replace(role, env=env)])


def _variables(source: FunctionSource, document: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables with the program, the source and the arguments.

    The arguments are not packed, so that masks find the secrets in them.
    """
    text = json.dumps({"file": source.file, "line": source.line, "pieces": source.pieces})
    # A task renders the variables of its app: text with braces is data, and no template that could end its string.
    arguments = written(document)
    # Kubernetes stores each `$` twice.
    if (size := len(text) + len(arguments) + arguments.count("$")) > LARGEST_BYTES:
        raise InvalidAppError(
            f"function {source.name!r} and its arguments have {size} bytes, the limit is {LARGEST_BYTES}; store the "
            f"data, and pass its address"
        )
    packed = base64.b64encode(zlib.compress(f"{_program()}\0{text}".encode(), 9)).decode()
    whole = f"{packed} {arguments}"
    # Divided first: an escaped `$` has two letters, which must not be separated.
    parts = [macros.escape(whole[at : at + _PART_CHARS]) for at in range(0, len(whole), _PART_CHARS)]
    return {
        f"{FUNCTION_VARIABLES}PARTS": str(len(parts)),
        **{f"{FUNCTION_VARIABLES}{at}": part for at, part in enumerate(parts)},
    }


def _divided(values: Mapping[str, str]) -> tuple[dict[str, str], list[str], dict[str, Any]]:
    """Return the values that only Python can write, their texts, and the values that JSON can hold.

    In the texts of JSON masks find the secrets; `repr` would change quotes before JSON does.
    """
    of_python: dict[str, str] = {}
    texts: list[str] = []
    plain: dict[str, Any] = {}
    for name, text in values.items():
        value = eval(text, dict(_NAMES))  # noqa: S307 - `repr` has written it, of plain values only
        if _is_json(value):
            plain[name] = value
        else:
            of_python[name] = _written(value, texts)
    return of_python, texts, plain


_NAMES = {"inf": math.inf, "nan": math.nan, "set": set, "frozenset": frozenset, "Ellipsis": ..., "__builtins__": {}}
"""The names in what `repr` writes of plain values."""


def _written(value: Any, texts: list[str]) -> str:
    """Return the value as Python writes it, with `T[0]` for the first of the texts, which are added to `texts`."""
    kind = type(value)
    if kind is str or (kind is bytes and value):
        texts.append(value if kind is str else value.decode("utf-8", "surrogateescape"))
        return f"T[{len(texts) - 1}]" + (".encode('utf-8','surrogateescape')" if kind is bytes else "")
    if kind is dict:
        return f"{{{','.join(f'{_written(name, texts)}:{_written(each, texts)}' for name, each in value.items())}}}"
    if kind in (set, frozenset) and value:
        # Texts have another order in each process, which would be another app.
        items = "".join(f"{_written(each, texts)}," for each in sorted(value, key=_set_order))
        return f"{{{items}}}" if kind is set else f"frozenset({{{items}}})"
    if kind in (list, tuple):
        items = "".join(f"{_written(each, texts)}," for each in value)
        return f"[{items}]" if kind is list else f"({items})" if items else "()"
    return repr(value)


def _set_order(value: Any) -> str:
    """Return a key by which the elements of a set have the same order in each process, also sets and tuples of them."""
    if type(value) is frozenset:
        return f"{{{','.join(sorted(map(_set_order, value)))}}}"
    if type(value) is tuple:
        return f"({','.join(map(_set_order, value))})"
    return repr(value)


def _is_json(value: Any) -> bool:
    """Return whether a value is the same after a journey as JSON: not a tuple."""
    kind = type(value)
    if kind is list:
        return all(map(_is_json, value))
    if kind is dict:
        return all(type(name) is str and _is_json(each) for name, each in value.items())
    return value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value))


@functools.cache
def _program() -> str:
    """Return the program without docstrings, comments and annotations, which would be half of it: AWS Batch counts."""
    tree = ast.parse(Path(__file__).with_name("program.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [each for each in node.body if not _is_text(each)] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
