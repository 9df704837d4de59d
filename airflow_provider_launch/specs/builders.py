"""Build an app from a component and its arguments, and parts of an app from text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.component_args import (
    ComponentArgs,
    ComponentUsageError,
    bound_args,
    namespace_of,
    parsed_args,
)
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.handles import make_app_handle
from airflow_provider_launch.specs.roles import AppDef, BindMount, DeviceMount, VolumeMount, parse_mounts
from airflow_provider_launch.util.types import (
    decode,
    decode_from_string,
    decode_optional,
    get_argparse_param_type,
    is_bool,
    is_primitive,
    none_throws,
    to_dict,
    to_list,
)

if TYPE_CHECKING:
    import argparse

__all__ = [
    "BindMount",
    "ComponentArgs",
    "DeviceMount",
    "VolumeMount",
    "build_app",
    "component_args_from_str",
    "decode",
    "decode_from_string",
    "decode_optional",
    "get_argparse_param_type",
    "is_bool",
    "is_primitive",
    "make_app_handle",
    "materialize_appdef",
    "none_throws",
    "parse_args",
    "parse_mounts",
    "to_dict",
    "to_list",
]


def parse_args(
    cmpnt_fn: Callable[..., Any],
    cmpnt_args: Sequence[str],
    cmpnt_defaults: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> argparse.Namespace:
    """Return the arguments as argparse reads them: numbers and texts by the name of their parameter.

    Args:
        cmpnt_fn: the component.
        cmpnt_args: the argument vector, as from a command line.
        cmpnt_defaults: parameter to text, used where the vector and `config` do not set it.
        config: parameter to typed value, used where the vector does not set it.

    Raises:
        SystemExit: an argument is unknown, wrong or missing; the usage was printed. `--help` also ends the process.
    """
    with _usage_on_terminal():
        return namespace_of(cmpnt_fn, cmpnt_args, cmpnt_defaults, config)


def component_args_from_str(
    cmpnt_fn: Callable[..., Any],
    cmpnt_args: Sequence[str],
    cmpnt_args_defaults: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> ComponentArgs:
    """Return the typed arguments of a component, ready for its call; parameters and errors of `parse_args`.

    Raises:
        TypeError: the component takes `**kwargs`, whose names cannot be checked.
        InvalidAppError: a text is not a valid value of its parameter's type.
    """
    with _usage_on_terminal():
        return parsed_args(cmpnt_fn, cmpnt_args, cmpnt_args_defaults, config)


def materialize_appdef(
    cmpnt_fn: Callable[..., AppDef],
    cmpnt_args: Sequence[str],
    cmpnt_defaults: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> AppDef:
    """Return the app that the component builds from these arguments; parameters and errors of `parse_args`.

    Raises:
        TypeError: the component takes `**kwargs`, or does not return an `AppDef`.
    """
    return _call(cmpnt_fn, component_args_from_str(cmpnt_fn, cmpnt_args, cmpnt_defaults, config))


def build_app(
    cmpnt_fn: Callable[..., AppDef],
    arguments: Sequence[str] | Mapping[str, Any],
    cmpnt_defaults: Mapping[str, str] | None = None,
) -> AppDef:
    """Return the app that the component builds: `materialize_appdef` for programs, which never ends the process.

    Args:
        cmpnt_fn: the component.
        arguments: an argument vector, or a mapping of parameter to value. Text is cast to the type of the parameter.
        cmpnt_defaults: parameter to text, used for parameters that `arguments` leaves out.

    Raises:
        InvalidAppError: an argument is unknown, wrong or missing, and the text shows the usage; or the component
            rejects its arguments with a `ValueError` or `KeyError`.
        TypeError: the component takes `**kwargs`, or does not return an `AppDef`.
    """
    try:
        return _call(cmpnt_fn, bound_args(cmpnt_fn, arguments, cmpnt_defaults))
    except InvalidAppError:
        raise
    except (ValueError, KeyError) as error:
        # `str` of a KeyError would quote the text.
        reason = error.args[0] if error.args else type(error).__name__
        raise InvalidAppError(f"component {cmpnt_fn.__name__!r}: {reason}") from error


def _call(cmpnt_fn: Callable[..., AppDef], arguments: ComponentArgs) -> AppDef:
    app: object = cmpnt_fn(*arguments.positional_args.values(), *arguments.var_args, **arguments.kwargs)
    if not isinstance(app, AppDef):
        raise ComponentResultError(
            f"component {cmpnt_fn.__name__!r} must return an AppDef, not {type(app).__name__}; return the app"
        )
    return app


class ComponentResultError(InvalidAppError, TypeError):
    """A component did not return an app."""


class _usage_on_terminal:  # noqa: N801 - used as a function
    """Print the usage and end the process, as programs with arguments do."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ComponentUsageError):
            import sys

            (sys.stdout if error.is_help else sys.stderr).write(f"{error}\n")
            raise SystemExit(0 if error.is_help else 2) from None
