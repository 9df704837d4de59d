"""The arguments of a function: bound by its signature, as JSON can hold them."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from enum import Enum
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType
from typing import Any

from airflow_provider_launch.functions.program import cure_of
from airflow_provider_launch.schedulers.environment import FIELD_PATH
from airflow_provider_launch.specs.errors import InvalidAppError

REPLICA = "replica"
"""Name of the parameter for the replica in which the function runs."""
_TEMPLATE = re.compile(r"\{(?=[{%#])")
_SHOWN_CHARS = 60
_HALF_OF_PAIR = re.compile("[\ud800-\udfff]")


def bound(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{args, kwargs, replica}` of a call, with defaults; `replica` is the position or name of that argument.

    Raises:
        InvalidAppError: the arguments do not fit the signature, or JSON cannot hold one of them.
    """
    signature = inspect.signature(function)
    takes_replica = REPLICA in signature.parameters
    name = getattr(function, "__name__", "function")
    if takes_replica and REPLICA in kwargs:
        raise InvalidAppError(f"argument {REPLICA!r} of {name!r} is given by the launcher; leave it out")
    try:
        call = signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise InvalidAppError(f"function {name!r}: {error}") from None
    if REPLICA in call.arguments and takes_replica:
        raise InvalidAppError(
            f"argument {REPLICA!r} of {name!r} is given by the launcher; pass the arguments after it by name"
        )
    known = {**call.arguments, **({REPLICA: None} if takes_replica else {})}
    # In the order of the signature, as `bind` has it.
    call.arguments = {each: known[each] for each in signature.parameters if each in known}
    call.apply_defaults()
    try:
        call = signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise InvalidAppError(f"function {name!r}: {error}") from None
    for parameter, value in call.arguments.items():
        check_json(value, parameter)
    place: int | str | None = None
    if takes_replica:
        is_by_name = signature.parameters[REPLICA].kind is inspect.Parameter.KEYWORD_ONLY or REPLICA in call.kwargs
        place = REPLICA if is_by_name else [*signature.parameters].index(REPLICA)
    return {"args": [*call.args], "kwargs": dict(call.kwargs), "replica": place}


def written(value: Any) -> str:
    """Return the value as JSON in which no text is a template, or names a field of a pod.

    `{{`, `{%` and `[FIELD_PATH]` stand in texts only, so they can be escaped.
    """
    text = _TEMPLATE.sub(r"\\u007b", json.dumps(value, separators=(",", ":")))
    # A variable may begin at any character of a long text.
    return text.replace(FIELD_PATH, f"\\u005b{FIELD_PATH[1:]}")


def named_args(function: Callable[..., Any], args: Sequence[Any]) -> dict[str, Any]:
    """Return arguments by position with the names of their parameters; empty if they do not fit the signature."""
    with contextlib.suppress(TypeError, ValueError):
        return dict(inspect.signature(function).bind_partial(*args).arguments)
    return {}


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters; a tenth of the cost of a signature, which counts when a DAG is parsed."""
    code: CodeType = function.__code__
    flags = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + flags]


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of the parameters, which count when the function calls itself.

    Raises:
        InvalidAppError: JSON cannot hold one of them.
    """
    given = function.__defaults__ or ()
    code: CodeType = function.__code__
    names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
    found = {**dict(zip(names, given, strict=True)), **(function.__kwdefaults__ or {})}
    for name, value in found.items():
        check_json(value, name)
    return found


def check_json(value: Any, path: str, later: Callable[[Any], bool] = lambda _value: False) -> None:
    """Refuse an argument that JSON cannot hold.

    Args:
        value: the argument, or a part of it.
        path: where it stands: `x['a'][0]`.
        later: whether a part gets its value only in a run.

    Raises:
        InvalidAppError: names the part, its type and the cure.
    """
    try:
        for wrong, at, cure in _wrong_parts(value, path, later):
            # Other values may be secrets.
            text = f" ({_short(wrong)})" if isinstance(wrong, (int, float, date)) else ""
            raise InvalidAppError(f"argument {at} is a {type(wrong).__name__}{text}, which JSON cannot hold; {cure}")
    except RecursionError:
        raise InvalidAppError(f"argument {path} contains itself, which JSON cannot hold; pass its parts") from None


def _wrong_parts(value: Any, path: str, later: Callable[[Any], bool]) -> Iterator[tuple[Any, str, str]]:
    if value is None or isinstance(value, (bool, str, int, float)):
        if cure := _scalar_cure(value):
            yield value, path, cure
    elif isinstance(value, dict):
        for name, each in value.items():
            if not isinstance(name, str):
                yield name, f"{path}, key {name!r},", "use texts as keys"
            yield from _wrong_parts(each, f"{path}[{name!r}]", later)
    elif isinstance(value, (list, tuple)):
        for at, each in enumerate(value):
            yield from _wrong_parts(each, f"{path}[{at}]", later)
    elif not later(value):
        template = ", or a template such as '{{ ts }}'" if hasattr(value, "isoformat") else ""
        yield value, path, cure_of(value, "pass") + template


def _scalar_cure(value: Any) -> str:
    """Return the cure for a value that JSON cannot hold; empty: it can."""
    if isinstance(value, Enum):
        return "use .value"
    if isinstance(value, float) and not math.isfinite(value):
        return "use None, or a text"
    if isinstance(value, str) and _HALF_OF_PAIR.search(value):
        return "remove the half of a surrogate pair"
    return ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
