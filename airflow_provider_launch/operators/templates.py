"""Rendering templates in apps without changing the DAG's own objects.

Airflow renders nested objects in place, which mixes up mapped tasks and repeated runs. These functions return copies.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import jinja2

T = TypeVar("T")


def is_plain_object(value: object) -> bool:
    """Return whether the value is a dataclass that Airflow does not render by itself, such as the specs."""
    kind: type = type(value)
    return _is_plain_class(kind)


@functools.cache
def _is_plain_class(kind: type) -> bool:
    return (
        dataclasses.is_dataclass(kind)
        and not issubclass(kind, Enum)
        and not hasattr(kind, "template_fields")
        and not hasattr(kind, "resolve")
    )


def rendered_copy(value: T, render: Callable[[str, Any], Any]) -> T:
    """Return a copy of the dataclass with `render(name, value)` applied to every field.

    With `render_template_as_native_obj=True` Jinja turns templates into numbers, lists and dicts. Arguments and
    variables of a program are strings, so these values become strings again: JSON for lists and dicts.
    """
    clone = copy.copy(value)
    for item in dataclasses.fields(value):  # type: ignore[arg-type]  # the caller has checked `is_plain_object`
        # Not `replace`: a subclass of Role may have its own constructor or be frozen.
        given = getattr(value, item.name)
        rendered = render(item.name, given)
        # Metadata may hold any type.
        object.__setattr__(clone, item.name, rendered if item.name == "metadata" else as_text(given, rendered))
    return clone


def as_text(given: Any, rendered: Any) -> Any:
    """Return `rendered` with a string wherever `given` has a string."""
    if isinstance(given, str):
        if isinstance(rendered, str):
            return rendered
        return json.dumps(rendered) if isinstance(rendered, (list, tuple, dict)) else str(rendered)
    if isinstance(given, list) and isinstance(rendered, list) and len(given) == len(rendered):
        return [as_text(old, new) for old, new in zip(given, rendered, strict=True)]
    if isinstance(given, dict) and isinstance(rendered, dict):
        return {key: as_text(given.get(key), new) for key, new in rendered.items()}
    return rendered


def has_template(text: str, jinja_env: jinja2.Environment) -> bool:
    """Return whether the string contains a template.

    A string without a template must not go through Jinja, which drops a final newline and turns CRLF into LF.
    """
    marks = (jinja_env.block_start_string, jinja_env.variable_start_string, jinja_env.comment_start_string)
    prefixes = (jinja_env.line_statement_prefix, jinja_env.line_comment_prefix)
    return any(mark in text for mark in marks) or any(prefix and prefix in text for prefix in prefixes)


def with_final_newline(template: str, rendered: object, jinja_env: jinja2.Environment) -> object:
    """Restore the final newline that Jinja removes."""
    if jinja_env.keep_trailing_newline or not isinstance(rendered, str) or not template.endswith("\n"):
        return rendered
    return rendered + "\n"
