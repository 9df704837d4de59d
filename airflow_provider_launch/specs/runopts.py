"""The options of a scheduler: names, types and defaults, and how text becomes values."""

from __future__ import annotations

import copy
import json
import logging
import types
import typing
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from airflow_provider_launch.specs.cases import is_spelling_of
from airflow_provider_launch.specs.errors import InvalidRunConfigException, _shown
from airflow_provider_launch.util.openapi_models import plain
from airflow_provider_launch.util.strings import closest
from airflow_provider_launch.util.types import decode_optional, get_type_name, str_to_bool, strip_annotated, to_dict

CfgVal = str | int | float | bool | list[str] | dict[str, str] | None

log = logging.getLogger(__name__)

_UNIONS = frozenset({Union, types.UnionType})


@dataclass
class runopt:  # noqa: N801 - a name of the launcher model
    """One option: its type, its default and its help."""

    default: CfgVal
    opt_type: Any
    is_required: bool
    help: str
    aliases: tuple[str, ...] = ()
    deprecated_aliases: tuple[str, ...] = ()

    @property
    def is_type_list_of_str(self) -> bool:
        """Return whether the option is a list of strings."""
        return get_origin(self.opt_type) is list and get_args(self.opt_type) == (str,)

    @property
    def is_type_dict_of_str(self) -> bool:
        """Return whether the option maps texts to texts."""
        return get_origin(self.opt_type) is dict and get_args(self.opt_type) == (str, str)

    def cast_to_type(self, value: str) -> CfgVal:
        """Return the typed value of a text.

        Lists are `a,b;c`, dicts are `k:v,k2:v2`, plain `list` and `dict` are JSON.

        Raises:
            ValueError: the text is not a valid value of the option's type.
        """
        return typing.cast("CfgVal", _cast(value, self.opt_type))


class runopts:  # noqa: N801 - a name of the launcher model
    """The options of a scheduler, in order of registration."""

    def __init__(self) -> None:
        self._opts: dict[str, runopt] = {}
        self._exact: set[str] = set()  # options whose camelCase form is not accepted

    def __iter__(self) -> Iterator[tuple[str, runopt]]:
        """Yield pairs of name and option."""
        return iter(self._opts.items())

    def __len__(self) -> int:
        """Count the options."""
        return len(self._opts)

    def add(
        self,
        cfg_key: str,
        type_: Any,
        help: str,  # noqa: A002 - same
        default: CfgVal = None,
        required: bool = False,
        aliases: Sequence[str] | None = None,
        deprecated_aliases: Sequence[str] | None = None,
        auto_aliases: bool = True,
    ) -> None:
        """Register an option, or replace the one with this name; `auto_aliases` also accepts its camelCase form.

        Raises:
            ValueError: the option is required and has a default.
            TypeError: the default is not of the option's type.
        """
        if required and default is not None:
            raise ValueError(f"required option {cfg_key!r} has a default: {default!r}; remove one of the two")
        if default is not None and not self._is_valid_default(default, type_):
            raise TypeError(
                f"option {cfg_key!r} must be of type {get_type_name(type_)}, "
                f"but its default is {default!r} ({type(default).__name__})"
            )
        self._opts[cfg_key] = runopt(
            default, type_, required, help, tuple(aliases or ()), tuple(deprecated_aliases or ())
        )
        (self._exact.discard if auto_aliases else self._exact.add)(cfg_key)

    @classmethod
    def _is_valid_default(cls, default: object, type_: Any) -> bool:
        if default in ([], {}):
            return any((get_origin(tp) or tp) in {list, dict} for tp in _members(type_)) or cls.is_type(default, type_)
        return cls.is_type(default, type_)

    def get(self, name: str) -> runopt | None:
        """Return the option with this name, alias or camelCase form, or None."""
        registered = self.registered_name(name)
        return None if registered is None else self._opts[registered]

    def registered_name(self, name: str) -> str | None:
        """Return the registered name of an option that may also be spelt `name`, or None."""
        if name in self._opts:
            return name
        for key, opt in self._opts.items():
            if name in opt.aliases or name in opt.deprecated_aliases:
                return key
        return next((key for key in self._opts if key not in self._exact and is_spelling_of(name, key)), None)

    @staticmethod
    def is_type(obj: object, tp: Any) -> bool:
        """Return whether `obj` is of type `tp`, checking inside lists and dicts.

        A bool is not an int, an int counts as a float, and None has no type.
        """
        return _is_type(obj, tp)

    def resolve(self, cfg: Mapping[str, CfgVal], *, strict: bool = False) -> dict[str, CfgVal]:
        """Return a new cfg with registered names, checked values and defaults.

        Unknown names pass through unless `strict`. Resolving the result again does not change it.

        Raises:
            InvalidRunConfigException: an option is missing, of the wrong type, given twice or (strict) unknown.
        """
        resolved = self.registered(cfg, strict=strict)
        for name, opt in self._opts.items():
            value = resolved.get(name)
            if value is None and opt.is_required:
                raise InvalidRunConfigException(f"required option {name!r} is missing ({opt.help})", name, cfg)
            if name not in resolved:
                resolved[name] = copy.copy(opt.default)
            elif value is not None:
                self.check(name, value, cfg)
        return resolved

    def check(self, name: str, value: CfgVal, cfg: Mapping[str, Any]) -> None:
        """Check the value of one option, by its registered name."""
        if not self._is_valid(value, self._opts[name]):
            raise _wrong_value(name, value, self._opts[name], cfg)

    def registered(self, cfg: Mapping[str, Any], *, strict: bool = False) -> dict[str, Any]:
        """Return a new cfg with the registered name of each option; values are not checked.

        Refuses different values for two spellings of an option, and with `strict` unknown names.
        """
        result: dict[str, Any] = {}
        spelt: dict[str, str] = {}
        for key, value in cfg.items():
            name = self.registered_name(key)
            if name is None:
                if strict:
                    raise self.unknown(key, cfg)
                result[key] = value
                continue
            if key in self._opts[name].deprecated_aliases:
                warnings.warn(f"option {key!r} is deprecated; use {name!r}", DeprecationWarning, stacklevel=3)
            if name in spelt and result[name] != plain(value):
                raise InvalidRunConfigException(
                    f"{spelt[name]!r} and {key!r} are the same option but have different values; remove one", name, cfg
                )
            result[name] = plain(value)
            spelt[name] = key
        return result

    def cast(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """Return a new cfg with registered names, and text cast to the type of its option; other values stay."""

        def value_of(name: str, value: Any) -> Any:
            spelt = isinstance(value, str) and not self.is_type(value, self._opts[name].opt_type)
            return self._cast(name, value, cfg) if spelt else value

        return {name: value_of(name, value) for name, value in self.registered(cfg, strict=True).items()}

    def unknown(self, key: str, cfg: Mapping[str, Any]) -> InvalidRunConfigException:
        """Return the error for an unknown option: it names the counterpart or the closest one, and lists all."""
        # Imported here, because only errors need it.
        from airflow_provider_launch.specs.peers import counterpart

        words = {word: name for name, opt in self._opts.items() for word in (*opt.aliases, name)}
        near = closest(str(key), words)
        hint = f"; did you mean {words[near]!r}?" if near else "."
        if (found := counterpart(str(key), self._opts)) is not None:
            hint = f", {found.text()}."
        known = ", ".join(self._opts) or "<none>"
        return InvalidRunConfigException(f"unknown option {key!r}{hint} Known options: {known}", str(key), cfg)

    def cfg_from_str(self, cfg_str: str, *, strict: bool = False) -> dict[str, CfgVal]:
        """Return the options of the text `k=v,k2=v2`, cast to their types; no defaults are added.

        Unknown names are dropped with a warning, or refused if `strict`.
        """
        cfg = to_dict(cfg_str)
        return {name: self._cast(name, value, cfg) for name, value in self._known(cfg, strict=strict)}

    def cfg_from_json_repr(self, json_repr: str, *, strict: bool = False) -> dict[str, CfgVal]:
        """Return the options of a JSON object, with text cast to their types; null stays None.

        Unknown names are dropped with a warning, or refused if `strict`.
        """
        cfg = json.loads(json_repr)
        if not isinstance(cfg, dict):
            raise ValueError(  # noqa: TRY004 - the text is wrong, not the type of the argument
                f"options must be a JSON object, not {type(cfg).__name__}"
            )
        return {name: self._from_json(name, value, cfg) for name, value in self._known(cfg, strict=strict)}

    def _known(self, cfg: Mapping[str, Any], *, strict: bool) -> Iterator[tuple[str, Any]]:
        for key, value in self.registered(cfg, strict=strict).items():
            if key in self._opts:
                yield key, value
            else:
                log.warning("%s", self.unknown(key, {}).args[0].partition(" Known options")[0] + " It was ignored.")

    def _cast(self, name: str, text: str, cfg: Mapping[str, Any]) -> CfgVal:
        opt = self._opts[name]
        try:
            return opt.cast_to_type(text)
        except ValueError as error:
            raise _wrong_value(name, text, opt, cfg, str(error)) from error

    def _from_json(self, name: str, value: Any, cfg: Mapping[str, Any]) -> CfgVal:
        opt = self._opts[name]
        if value is None:
            return None
        if isinstance(value, str) and not self.is_type(value, opt.opt_type):
            return self._cast(name, value, cfg)
        if isinstance(value, list) and opt.is_type_list_of_str:
            return [_text(item) for item in value]
        if isinstance(value, dict) and opt.is_type_dict_of_str:
            return {key: _text(item) for key, item in value.items()}
        if not self._is_valid(value, opt):
            raise _wrong_value(name, value, opt, cfg)
        return typing.cast("CfgVal", value)

    def _is_valid(self, value: object, opt: runopt) -> bool:
        # An empty collection is a valid default of any collection type, so it must survive `resolve` too.
        return self.is_type(value, opt.opt_type) or (value in ([], {}) and value == opt.default)

    def update(self, other: runopts) -> None:
        """Add the options of `other`, which take precedence."""
        self._opts.update(other._opts)
        self._exact = (self._exact - set(other._opts)) | other._exact

    def __or__(self, other: runopts) -> runopts:
        """Return both schemas merged; the right one takes precedence."""
        merged = runopts()
        merged.update(self)
        merged.update(other)
        return merged

    def __repr__(self) -> str:
        """Return the usage text."""
        required = [(name, opt) for name, opt in self if opt.is_required]
        optional = [(name, opt) for name, opt in self if not opt.is_required]
        words = [f"{name}={name.upper()}" for name, _ in required]
        words += [f"[{name}={name.upper()}]" for name, _ in optional]
        sections = [f"    usage:\n        {','.join(words)}"]
        if required:
            sections.append(_section("required", ((name, opt, "") for name, opt in required)))
        if optional:
            sections.append(_section("optional", ((name, opt, f", {opt.default}") for name, opt in optional)))
        return "\n\n".join(sections)


def _section(title: str, rows: Iterable[tuple[str, runopt, str]]) -> str:
    lines = [f"    {title} arguments:"]
    for name, opt, default in rows:
        lines.append(f"        {name}={name.upper()} ({get_type_name(opt.opt_type)}{default})")
        lines += [f"            {line}".rstrip() for line in opt.help.splitlines() or [""]]
    return "\n".join(lines)


def _wrong_value(
    name: str, value: object, opt: runopt, cfg: Mapping[str, Any], why: str = ""
) -> InvalidRunConfigException:
    shown, kind = _shown(name, value), get_type_name(opt.opt_type)
    if get_origin(opt.opt_type) is Literal:
        reason = f"option {name!r} must be {kind}, not {shown}"
    else:
        found = type(value).__name__
        if isinstance(value, (Mapping, list, tuple)) and found in kind:
            parts = value.values() if isinstance(value, Mapping) else value
            found += f" of {' and '.join(sorted({type(part).__name__ for part in parts}))}"
        reason = f"option {name!r} must be of type {kind}, but {shown} is {found}"
    # The cause may quote the value, which must not be shown if it is a secret.
    if why and shown != "***":
        reason += f": {why}"
    return InvalidRunConfigException(reason, name, cfg)


def _text(item: object) -> str:
    return json.dumps(item) if isinstance(item, list | dict) else str(item)


def _members(tp: Any) -> tuple[Any, ...]:
    tp = strip_annotated(tp)
    return tuple(strip_annotated(arg) for arg in get_args(tp)) if get_origin(tp) in _UNIONS else (tp,)


def _is_type(obj: object, tp: Any) -> bool:  # noqa: PLR0911 - one line for each kind of type
    tp = strip_annotated(tp)
    if obj is None:
        return False
    if tp is Any:
        return True
    origin, args = get_origin(tp) or tp, get_args(tp)
    if origin in _UNIONS:
        return any(_is_type(obj, arg) for arg in args)
    if origin is Literal:
        return any(obj == arg and type(obj) is type(arg) for arg in args)
    if origin is float:
        return isinstance(obj, int | float) and not isinstance(obj, bool)
    if origin is int:
        return isinstance(obj, int) and not isinstance(obj, bool)
    if not isinstance(origin, type) or not isinstance(obj, origin):
        return False
    if isinstance(obj, Mapping) and args:
        return all(_is_item(k, args[0]) and _is_item(v, args[1]) for k, v in obj.items())
    if isinstance(obj, list | set | frozenset) and args:
        return all(_is_item(item, args[0]) for item in obj)
    return True


def _is_item(item: object, tp: Any) -> bool:
    """Return whether an element has the type; unlike an option, an element may be null if its type allows it."""
    return (item is None and (tp is Any or type(None) in _members(tp))) or _is_type(item, tp)


def _cast(text: str, tp: Any) -> Any:
    tp = strip_annotated(decode_optional(strip_annotated(tp)))
    origin, args = get_origin(tp) or tp, get_args(tp)
    if origin in _UNIONS:
        return _cast_to_union(text, args)
    if tp in {str, Any}:
        return text
    if tp in {int, float}:
        return tp(text)
    if tp is bool:
        return str_to_bool(text)
    if origin is Literal:
        found = [arg for arg in args if str(arg).lower() == text.strip().lower()]
        if not found:
            raise ValueError(f"{text!r} is not one of {', '.join(map(repr, args))}")
        return next((arg for arg in found if str(arg) == text), found[0])
    if origin in {list, dict}:
        return _cast_collection(text, origin, args)
    raise ValueError(f"text cannot be turned into {get_type_name(tp)}")


def _cast_to_union(text: str, members: tuple[Any, ...]) -> Any:
    if str in members:
        return text
    for member in members:
        try:
            return _cast(text, member)
        except ValueError:
            continue
    raise ValueError(f"{text!r} is not one of {', '.join(map(get_type_name, members))}")


def _with_texts(value: Any) -> Any:
    """Return a list or dict whose members are converted to text."""
    if isinstance(value, dict):
        return {key: _text(item) for key, item in value.items()}
    return [_text(item) for item in value]


def _cast_collection(text: str, origin: type, args: tuple[Any, ...]) -> Any:
    is_json = not args or any((get_origin(arg) or arg) in {list, dict, Any} for arg in args)
    if is_json or text.lstrip()[:1] in {"[", "{"}:
        try:
            value: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            cure = "in a template write `| tojson`, and in Python json.dumps"
            raise ValueError(f"{text!r} is not JSON ({error}); {cure}") from error
        if not isinstance(value, origin):
            raise ValueError(f"{text!r} is JSON of type {type(value).__name__}, not {origin.__name__}")
        # Members of `list[str]` and `dict[str, str]` are text, but JSON may have numbers there.
        if args and args[-1] is str:
            value = _with_texts(value)
        if args and not _is_type(value, types.GenericAlias(origin, args)):
            raise ValueError(f"{text!r} has members of a wrong type")
        return value
    items = [item.strip() for item in text.replace(";", ",").split(",") if item.strip()]
    if origin is list:
        return [_cast(item, args[0]) for item in items]
    pairs = [item.partition(":") for item in items]
    for item, (_, colon, _) in zip(items, pairs, strict=True):
        if not colon:
            raise ValueError(f"item {item!r} is not of the form key:value")
    return {_cast(key.strip(), args[0]): _cast(value.strip(), args[1]) for key, _, value in pairs}
