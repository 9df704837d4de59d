"""Convert arguments of a component, an argument vector or a mapping, to typed values."""

from __future__ import annotations

import argparse
import functools
import inspect
import shlex
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NoReturn, get_args, get_origin

from airflow_provider_launch.specs.errors import InvalidAppError, _shown
from airflow_provider_launch.specs.runopts import runopts
from airflow_provider_launch.specs.secrets import MASK, hidden_in_args
from airflow_provider_launch.util.docstrings import google_docstring
from airflow_provider_launch.util.strings import closest
from airflow_provider_launch.util.types import (
    decode,
    decode_optional,
    get_argparse_param_type,
    get_type_name,
    strip_annotated,
)


class TorchXArgumentHelpFormatter(argparse.HelpFormatter):
    """Ends the help of each argument with ` (required)` or ` (default: X)`."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or " "
        if action.required:
            return f"{text} (required)"
        return text if action.default is argparse.SUPPRESS else f"{text} (default: %(default)s)"


def get_fn_docstring(fn: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description of a component, and the help of each of its parameters: a blank if it has none."""
    description, documented = google_docstring(inspect.getdoc(fn) or "")
    parameters = {name: documented.get(name) or " " for name in inspect.signature(fn).parameters}
    name = getattr(fn, "__name__", "component")
    return description or f"{name} has no docstring; write one, and its first lines are shown here", parameters


_SHORTEST = 5
"""Characters of a secret that an error hides."""
_EMPTY = inspect.Parameter.empty


@dataclass
class ComponentArgs:
    """Typed arguments of a component: `fn(*positional_args.values(), *var_args, **kwargs)` calls it."""

    positional_args: dict[str, Any] = field(default_factory=dict)
    var_args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)


class ComponentUsageError(InvalidAppError):
    """Arguments of a component are wrong, or `--help` was given; the text ends with the usage, or is the help."""

    def __init__(self, text: str, *, is_help: bool = False) -> None:
        self.is_help = is_help
        super().__init__(text)


class ComponentSignatureError(InvalidAppError, TypeError):
    """The component has parameters that cannot be given by name."""


def namespace_of(
    fn: Callable[..., Any],
    vector: Sequence[str],
    defaults: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    is_open: Callable[[Any], bool] | None = None,
) -> argparse.Namespace:
    """Return the parsed vector by parameter: numbers, texts, and the list of remaining words.

    `defaults` are texts, used where the vector and `config`, typed values, do not set a parameter. `is_open` returns
    whether a text gets its value later (a template) and stays as it is now.

    Raises:
        ComponentUsageError: an argument is unknown, wrong or missing.
    """
    given_words: object = vector
    if not isinstance(given_words, (list, tuple)) or not all(isinstance(word, str) for word in given_words):
        raise ComponentUsageError(f"arguments of component {fn.__name__!r} must be a list of strings or a mapping")
    given = {**(defaults or {}), **(config or {})}
    parser = _parser(fn, given, is_open)
    parser.hidden = [value for value in hidden_in_args(vector) if len(value) >= _SHORTEST]
    namespace = parser.parse_args([*vector])
    for name, parameter in _parameters(fn).items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            words = getattr(namespace, name)
            words = words[1:] if words[:1] == ["--"] else words
            setattr(namespace, name, words or _var_args(fn, name, given.get(name, [])))
    return namespace


def parsed_args(
    fn: Callable[..., Any],
    vector: Sequence[str],
    defaults: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    is_open: Callable[[Any], bool] | None = None,
) -> ComponentArgs:
    """Return the typed arguments of a vector; parameters and errors of `namespace_of`.

    Refuses texts that are not valid values, and components that take `**kwargs`.
    """
    return _bind(fn, vars(namespace_of(fn, vector, defaults, config, is_open)), is_open)


def bound_args(
    fn: Callable[..., Any],
    arguments: Sequence[str] | Mapping[str, Any],
    defaults: Mapping[str, str] | None = None,
    is_open: Callable[[Any], bool] | None = None,
) -> ComponentArgs:
    """Return the typed arguments of a vector or a mapping; parameters and errors of `parsed_args`."""
    if not isinstance(arguments, Mapping):
        return parsed_args(fn, arguments, defaults, None, is_open)
    known = _parameters(fn)
    for name in arguments:
        if name not in known:
            near = closest(str(name), known)
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(known) or 'none'}"
            raise ComponentUsageError(f"component {fn.__name__!r} has no argument {name!r}; {hint}\n{_usage(fn)}")
    values = {name: value for name, value in {**(defaults or {}), **arguments}.items() if name in known}
    for name, parameter in known.items():
        if name in values or parameter.kind is parameter.VAR_POSITIONAL:
            values[name] = values.get(name, [])
        elif parameter.default is _EMPTY:
            raise ComponentUsageError(f"component {fn.__name__!r} needs the argument {name!r}; give it\n{_usage(fn)}")
        else:
            values[name] = parameter.default
    return _bind(fn, values, is_open)


def gives_text(fn: Callable[..., Any], name: str, value: object) -> bool:
    """Return whether a parameter takes the texts in this value unchanged, and does not parse them."""
    parameter = _parameters(fn).get(name)
    if parameter is None:
        return False
    tp = strip_annotated(decode_optional(strip_annotated(parameter.annotation)))
    is_variadic = parameter.kind is parameter.VAR_POSITIONAL
    if isinstance(value, str):
        return tp is str and not is_variadic
    return is_variadic or (get_origin(tp) in {list, dict} and get_args(tp)[-1] is str)


def _bind(fn: Callable[..., Any], values: Mapping[str, Any], is_open: Callable[[Any], bool] | None) -> ComponentArgs:
    bound = ComponentArgs()
    for name, parameter in _parameters(fn).items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            words = values[name]
            bound.var_args = [words] if is_open and is_open(words) else _var_args(fn, name, words)
            continue
        value = values[name]
        if value is not parameter.default and not (is_open and is_open(value)):
            value = _convert(fn, parameter, value, is_open)
        target = bound.kwargs if parameter.kind is parameter.KEYWORD_ONLY else bound.positional_args
        target[name] = value
    return bound


def _convert(
    fn: Callable[..., Any], parameter: inspect.Parameter, value: Any, is_open: Callable[[Any], bool] | None
) -> Any:
    tp, name = parameter.annotation, parameter.name
    plain = strip_annotated(decode_optional(strip_annotated(tp)))
    try:
        found = decode(value, tp)
    except ValueError as error:
        shown = _shown(name, value)
        reason = "" if shown == "***" else f": {error}"
        raise ComponentUsageError(
            f"component {fn.__name__!r}: argument {name!r} must be {get_type_name(plain)}, "
            f"but {shown} is not{reason}\n{_usage(fn)}"
        ) from None
    is_none_fine = parameter.default is None or plain is not strip_annotated(tp) or isinstance(value, str)
    if (found is None and is_none_fine) or plain is _EMPTY or _fits(found, plain, is_open):
        return found
    raise ComponentUsageError(
        f"component {fn.__name__!r}: argument {name!r} must be {get_type_name(plain)}, "
        f"but {_shown(name, value)} is {type(value).__name__}\n{_usage(fn)}"
    )


def _fits(value: Any, tp: Any, is_open: Callable[[Any], bool] | None) -> bool:
    if isinstance(value, (list, tuple)) and is_open:
        value = [item for item in value if not is_open(item)]
    elif isinstance(value, dict) and is_open:
        value = {key: item for key, item in value.items() if not is_open(key) and not is_open(item)}
    # Classes of the user, and types that `runopts` does not support, are checked by the component.
    return runopts.is_type(value, tp) or (get_origin(tp) or tp) not in {int, float, str, bool, list, dict}


def _var_args(fn: Callable[..., Any], name: str, words: Any) -> list[Any]:
    if isinstance(words, str):
        return shlex.split(words)
    if not isinstance(words, Sequence):
        raise ComponentUsageError(
            f"component {fn.__name__!r}: {name!r} takes a list of strings, not {type(words).__name__}\n{_usage(fn)}"
        )
    wrong = next((word for word in words if isinstance(word, (Mapping, list, tuple)) or word is None), words)
    if wrong is not words:
        raise ComponentUsageError(
            f"component {fn.__name__!r}: {name!r} takes a list of strings, but it has a {type(wrong).__name__}\n"
            f"{_usage(fn)}"
        )
    return [word if isinstance(word, str) else _as_text(word) for word in words]


def _as_text(word: Any) -> Any:
    # Numbers become text; templates, which get their value later, stay.
    return str(word) if isinstance(word, (int, float)) else word


@functools.lru_cache(maxsize=256)
def _parameters(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a component with their annotations as types."""
    try:
        hints = typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise ComponentSignatureError(
            f"component {fn.__name__!r}: an annotation uses {error.name!r}, which its module does not import at "
            f"run time; import it there, outside of TYPE_CHECKING"
        ) from error
    found = {}
    for name, parameter in inspect.signature(fn).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            raise ComponentSignatureError(
                f"component {fn.__name__!r} takes **{name}, whose keys cannot be checked; "
                f"give it named parameters, or one that is a dict of texts"
            )
        found[name] = parameter.replace(annotation=hints.get(name, _EMPTY))
    return found


class _Parser(argparse.ArgumentParser):
    """Parser that raises instead of ending the process."""

    hidden: Sequence[str] = ()
    """Secrets among the arguments."""

    def error(self, message: str) -> NoReturn:
        for value in sorted(self.hidden, key=len, reverse=True):
            message = message.replace(value, MASK)
        unknown = message.partition("unrecognized arguments: ")[2].partition(" ")[0].partition("=")[0]
        near = closest(unknown, self._option_string_actions) if unknown else None
        message += f"; did you mean {near!r}?" if near else ""
        raise ComponentUsageError(f"component {self.prog!r}: {message}\n{self.format_usage().rstrip()}")


class _Help(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_args: object, **_kwargs: object) -> None:
        raise ComponentUsageError(parser.format_help().rstrip(), is_help=True)


def _parser(fn: Callable[..., Any], given: Mapping[str, Any], is_open: Callable[[Any], bool] | None = None) -> _Parser:
    description, helps = get_fn_docstring(fn)
    parser = _Parser(
        prog=fn.__name__,
        description=description,
        formatter_class=TorchXArgumentHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--help", action=_Help, nargs=0, default=argparse.SUPPRESS, help="what the arguments of the component mean"
    )
    for name, parameter in _parameters(fn).items():
        # argparse shows nothing for an argument whose help is blank.
        text = helps[name].strip() or get_type_name(decode_optional(strip_annotated(parameter.annotation)))
        text = text.replace("%", "%%")
        if parameter.kind is parameter.VAR_POSITIONAL:
            words = parser.add_argument(name, nargs=argparse.REMAINDER, default=argparse.SUPPRESS, help=text)
            words.required = False
            continue
        if name == "help":
            raise ComponentSignatureError(f"component {fn.__name__!r}: a parameter cannot be named 'help'; rename it")
        parser.add_argument(
            *_flags(parameter),
            dest=name,
            type=_converter(parameter, is_open),
            default=given.get(name, None if parameter.default is _EMPTY else parameter.default),
            required=parameter.default is _EMPTY and name not in given,
            help=text,
            metavar=name.upper(),
        )
    return parser


def _flags(parameter: inspect.Parameter) -> list[str]:
    flags = [f"--{parameter.name}", *([f"-{parameter.name}"] if len(parameter.name) == 1 else [])]
    if get_origin(parameter.annotation) is Annotated:
        flags += [extra for extra in get_args(parameter.annotation)[1:] if isinstance(extra, str) and extra[:1] == "-"]
    return flags


def _converter(parameter: inspect.Parameter, is_open: Callable[[Any], bool] | None) -> Callable[[str], Any]:
    plain = get_argparse_param_type(parameter)

    def read(text: str) -> Any:
        return text if is_open and is_open(text) else plain(text)

    # argparse shows this name in its errors: "invalid int value".
    read.__name__ = plain.__name__
    return read


def _usage(fn: Callable[..., Any]) -> str:
    return _parser(fn, {}).format_usage().rstrip()
