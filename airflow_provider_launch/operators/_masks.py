"""Masking of the secrets in the fields of an operator, before Airflow stores them and before the app starts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_launch._task.places import hidden_in_app
from airflow_provider_launch._task.secrets import (
    forms_of,
    hidden_in_arguments,
    hidden_in_options,
    register,
    register_parts,
    register_some,
    register_written,
)
from airflow_provider_launch.operators._sources import roles_of
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.specs.secret_names import is_secret_name
from airflow_provider_launch.specs.secrets import hidden_in_args, hidden_in_env, hidden_in_text


def register_elements(elements: Iterable[Mapping[str, Any]]) -> list[str]:
    """Mask the secrets in arguments of the DAG file, with their names, which decide what is a secret; return them."""
    from airflow_provider_launch.functions.arguments import named_args

    elements = list(elements)
    found = register_written([element.get("cfg") for element in elements], by_name=False)
    for element in elements:
        others = {name: value for name, value in element.items() if name not in ("app", "cfg")}
        found += register_written([element.get("app"), *others.values(), others])
    functions = [(element.get("python_callable"), element.get("op_args") or ()) for element in elements]
    named = (named_args(function, args) for function, args in functions if callable(function) and args)
    return found + register_written(named)


def register_field(
    content: Any, rendered: Any, function: Callable[..., Any] | None = None, *, is_option: bool = False
) -> list[str]:
    """Mask the secrets in a rendered field; return those whose names are in the DAG file.

    Args:
        content: the field in the DAG file.
        rendered: the field.
        function: takes the values of the field by position.
        is_option: whether the field has options of the scheduler.
    """
    if is_option:
        register(hidden_in_options(rendered))
        return []
    own = [*hidden_in_names(content, rendered)]
    named: Mapping[str, Any] = {}
    if isinstance(content, (list, tuple)) and isinstance(rendered, (list, tuple)):
        if function is None:
            own += _parts_of_args([each for each in rendered if isinstance(each, str)])
        else:
            from airflow_provider_launch.functions.arguments import named_args

            named = named_args(function, rendered)
            own += hidden_in_names(dict.fromkeys(named), named)
    found = register_some(own)
    register_parts(named)
    register_parts(rendered)
    return found


def register_texts(written: Any, rendered: Any) -> list[str]:
    """Mask the secrets in variables and arguments of an app in the DAG file, before values of a run; return them."""
    found, parts = [], []
    for given, made in zip(roles_of(written), roles_of(rendered), strict=False):
        with contextlib.suppress(Exception):  # an app that is not valid is refused later
            found += [hidden_in_env({name: made["env"][name]}) for name in given.get("env") or ()]
            if isinstance(given.get("args"), list):
                parts += [*_parts_of_args(made["args"]), *(forms_of(hidden_in_text(each)) for each in made["args"])]
    return register_some([*map(forms_of, found), *parts])


def hidden_in_names(written: Any, rendered: Any) -> Iterator[dict[str, int]]:
    """Yield the secrets under each name of the DAG file, with which no value of a run competes."""
    if isinstance(written, Mapping) and isinstance(rendered, Mapping):
        for name in written:
            if name in rendered and is_secret_name(str(name)):
                yield hidden_in_arguments({name: rendered[name]})
            elif name in rendered:
                yield from hidden_in_names(written[name], rendered[name])
    elif isinstance(written, (list, tuple)) and isinstance(rendered, (list, tuple)):
        for pair in zip(written, rendered, strict=False):
            yield from hidden_in_names(*pair)


def _parts_of_args(args: Sequence[str]) -> list[dict[str, int]]:
    """Return the secrets of each argument with the flag before it, so that none takes the places of another."""
    return [forms_of(hidden_in_args(pair)) for pair in zip(["", *args], args, strict=False)]


def with_masks(value: Any) -> Any:
    """Return a rendered app as an `AppDef`, and mask its secrets.

    Airflow stores rendered fields before the task starts, and the `repr` of an `AppDef` hides secrets. Invalid apps are
    refused later.
    """
    from airflow_provider_launch.specs.app_dict import app_from_dict

    with contextlib.suppress(Exception):
        app = app_from_dict(value) if isinstance(value, Mapping) else value
        if isinstance(app, AppDef):
            register(hidden_in_app(app))
            return app
    register(hidden_in_arguments(value))
    return value
