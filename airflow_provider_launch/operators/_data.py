"""Strings from templates and XComs are data: macros of the launcher in them are not replaced.

Each `$` in these strings is marked while an app is rendered and built, and becomes a plain `$` again in the built app.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.operators.templates import is_plain_object
from airflow_provider_launch.specs.macros import SUBSTITUTED

if TYPE_CHECKING:
    import jinja2

_MARK = "\U0010fffd"
"""Stands for a `$`; from the last private use area, where no characters are assigned."""


def data_env(env: jinja2.Environment, *, native: bool, as_text: bool, values: list[Any]) -> jinja2.Environment:
    """Return the environment for templates in an app.

    Args:
        env: the Jinja environment of the DAG.
        native: whether the DAG has `render_template_as_native_obj=True`.
        as_text: whether the result is a string even in a native DAG: "3.10" stays a string, and a list becomes JSON.
        values: the value of each expression is appended to this list.
    """
    import jinja2.compiler

    inner: Callable[..., Any] | None = env.finalize

    def finalize(*args: Any) -> Any:
        value = inner(*args) if inner is not None else args[-1]
        values.append(value)
        if isinstance(value, str):
            return value.replace("$", _MARK)
        if not as_text:
            return value
        return (json.dumps(value) if native and isinstance(value, (list, tuple, dict)) else str(value)).replace(
            "$", _MARK
        )

    if inner is not None:
        # Copy its attributes, by which Jinja finds out whether it takes the context.
        functools.update_wrapper(finalize, inner)
    found: jinja2.Environment = env.overlay(finalize=finalize)
    if as_text:
        found.code_generator_class = jinja2.compiler.CodeGenerator
    return found


def marked(value: Any) -> Any:
    """Return the value with each `$` in its strings marked."""
    return _replaced(value, "$", _MARK)


def settled(value: Any) -> Any:
    """Return the value with each mark turned back into `$`."""
    return _replaced(value, _MARK, "$")


def settled_app(app: Any) -> Any:
    """Return the app with each mark turned into `$`, or into `$$` in fields where macros are applied."""
    if isinstance(app, Mapping):
        return {name: _settled_roles(each) if name == "roles" else settled(each) for name, each in app.items()}
    if not is_plain_object(app):
        return app
    return _changed(app, lambda name, each: _settled_roles(each) if name == "roles" else settled(each))


def _settled_roles(roles: Any) -> Any:
    return [_settled_role(role) for role in roles] if isinstance(roles, list) else settled(roles)


def _settled_role(role: Any) -> Any:
    def settle(name: str, each: Any) -> Any:
        return _replaced(each, _MARK, "$$") if name in SUBSTITUTED else settled(each)

    if isinstance(role, Mapping):
        return {name: settle(name, each) for name, each in role.items()}
    return _changed(role, settle) if is_plain_object(role) else settled(role)


def _changed(value: Any, change: Callable[[str, Any], Any]) -> Any:
    clone = copy.copy(value)
    for item in dataclasses.fields(value):
        # Not `replace`: a subclass of Role may have its own constructor or be frozen.
        object.__setattr__(clone, item.name, change(item.name, getattr(value, item.name)))
    return clone


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return value.replace(old, new) if type(value) is str and old in value else value
    if isinstance(value, dict):
        # Names of variables have no macros.
        plain = "$" if new == "$$" else new
        return {_replaced(name, old, plain): _replaced(each, old, new) for name, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, old, new) for each in value]
    if type(value) is tuple:
        return tuple(_replaced(each, old, new) for each in value)
    if is_plain_object(value):
        return _changed(value, lambda _, each: _replaced(each, old, new))
    return value
