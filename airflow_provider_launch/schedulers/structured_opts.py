"""Typed options: a dataclass field is the option, its type is the check, the text below it is the help.

```python
@dataclass(frozen=True)
class SlurmOpts(StructuredOpts):
    partition: str | None = None
    \"\"\"The partition to submit to.\"\"\"
```

The runopts, the help, the check of untrusted values and the JSON schema of a form are generated from such a class.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import cached_property, lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from annotated_types import Gt

from airflow_provider_launch.specs import cases
from airflow_provider_launch.specs.errors import InvalidRunConfigException, _shown
from airflow_provider_launch.specs.runopts import runopt, runopts
from airflow_provider_launch.util.types import decode_optional, get_type_name, strip_annotated

if typing.TYPE_CHECKING:
    from typing_extensions import Self

_O = TypeVar("_O", bound="StructuredOpts")
_ABSENT = object()
RoleValue = Union[str, int, float, bool, list[str], dict[str, str]]  # noqa: UP007 - evaluated at run time
"""A value in option `by_role`; the option that it is for checks it."""


@dataclasses.dataclass(frozen=True)
class _Field:
    """One field of an options class, with its type resolved."""

    name: str
    key: str  # the external name
    hint: Any
    opt_type: Any  # without None and without constraints
    admits_none: bool
    default: Any
    default_factory: Any
    aliases: tuple[str, ...]
    deprecated_aliases: tuple[str, ...]
    owner: type
    other_help: str  # if the source has no text for it
    json_schema: Mapping[str, Any]

    @property
    def help(self) -> str:
        return _texts(self.owner).get(self.name) or self.other_help

    @property
    def is_required(self) -> bool:
        return self.default is MISSING and self.default_factory is MISSING

    @property
    def group(self) -> type[StructuredOpts] | None:
        """The options class of a nested group."""
        # On Python 3.10 list[str] is an instance of `type`, but not a class.
        is_class = isinstance(self.opt_type, type) and get_origin(self.opt_type) is None
        return self.opt_type if is_class and issubclass(self.opt_type, StructuredOpts) else None

    @property
    def is_optional_group(self) -> bool:
        return self.group is not None and self.default is None

    @property
    def spellings(self) -> tuple[str, ...]:
        camel = tuple(cases.snake_to_camel(name) for name in (self.name, self.key))
        return (self.key, self.name, *self.aliases, *self.deprecated_aliases, *camel)

    def make_default(self) -> Any:
        return self.default if self.default_factory is MISSING else self.default_factory()


class _Option(runopt):
    """An option whose help is read when it is needed, because reading the source takes longer than all the rest."""

    _field: _Field

    @classmethod
    def of(cls, option: runopt, field: _Field) -> Self:
        made = cls(**vars(option))
        made._field = field
        del made.help
        return made

    @cached_property
    def help(self) -> str:  # type: ignore[override]  # an attribute, once it is read
        return self._field.help


class StructuredOpts(Mapping[str, Any]):
    """Base of typed options: subclasses are frozen dataclasses, instances are mappings from option name to value."""

    @staticmethod
    def snake_to_camel(name: str) -> str:
        """Return `clusterName` for `cluster_name`."""
        return cases.snake_to_camel(name)

    @classmethod
    def get_docstrings(cls) -> dict[str, str]:
        """Return the help of each field: the text below it, else `metadata={"help": ...}`, else its name."""
        docs: dict[str, str] = {}
        for field in _fields(cls):
            if field.group is None:
                docs[field.name] = field.help
            else:
                docs |= {f"{field.name}.{name}": text for name, text in field.group.get_docstrings().items()}
        return docs

    @classmethod
    def as_runopts(cls) -> runopts:
        """Return one option for each field, in order; the fields of a group are `group.field`."""
        opts = runopts()
        for field in _fields(cls):
            if field.group is None:
                has_default = field.default_factory is MISSING and not field.is_required
                opts.add(
                    field.key,
                    field.opt_type,
                    "",
                    default=field.default if has_default else None,
                    required=field.is_required,
                    aliases=(*field.aliases, *_own_name(field)),
                    deprecated_aliases=field.deprecated_aliases,
                )
                opts._opts[field.key] = _Option.of(opts._opts[field.key], field)  # noqa: SLF001 - a name of the plug-in interface
                continue
            # An optional group stays None unless one of its fields is given: no field is required or filled in.
            given = {} if field.is_required else (field.make_default() or {})
            for name, opt in field.group.as_runopts():
                opts.add(
                    f"{field.key}.{name}",
                    opt.opt_type,
                    opt.help,
                    default=opt.default if field.is_required else given.get(name),
                    required=opt.is_required and field.is_required,
                    aliases=[f"{field.key}.{alias}" for alias in opt.aliases],
                    deprecated_aliases=[f"{field.key}.{alias}" for alias in opt.deprecated_aliases],
                )
        return opts

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, Any]) -> Self:
        """Return the options in `cfg`; unknown names are ignored, absent fields get their defaults.

        None means absent for a field whose type does not allow None.

        Raises:
            InvalidRunConfigException: a required option is absent.
        """
        if isinstance(cfg, cls):
            return cfg
        values = _present(cls, cfg)
        for field in _fields(cls):
            if field.is_required and field.name not in values:
                raise InvalidRunConfigException(
                    f"required option {field.key!r} is missing ({field.help})", field.key, cfg
                )
        return cls(**values)

    def __getitem__(self, key: str) -> Any:
        """Return the value of a field by its name, external name, camelCase form, or `group.field`."""
        found = _lookup(self, key)
        if found is _ABSENT:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        """Yield external names in order, fields of groups as `group.field`."""
        for field in _fields(type(self)):
            if field.group is None:
                yield field.key
            elif (group := getattr(self, field.name)) is not None:
                yield from (f"{field.key}.{name}" for name in group)

    def __len__(self) -> int:
        """Return the number of names that iteration yields."""
        return sum(1 for _ in self)

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        """Return a plain dict of both; the right one wins, also with None."""
        return {**self, **other}

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        """Return a plain dict of both; the right one wins, also with None."""
        return {**other, **self}


@lru_cache(maxsize=512)
def checked_options(cls: type[StructuredOpts]) -> runopts:
    """Return the options as `as_runopts` does, but always the same object: change no part of it."""
    return cls.as_runopts()


def resolve_options(cls: type[_O], cfg: Mapping[str, Any], *, strict: bool = True, cast_text: bool = True) -> _O:
    """Return checked options from an unchecked mapping: a cfg or the extras of a connection.

    None means unset. With `cast_text`, text for an option of another type is parsed. A group may be given as
    `group.field` or as a nested mapping.

    Raises:
        InvalidRunConfigException: an option is unknown (only if `strict`), missing, given twice, or wrong.
    """
    opts, fields = checked_options(cls), _leaves(cls)
    values: dict[str, Any] = {}
    for name, given in opts.registered(_flat(cls, cfg), strict=strict).items():
        if name not in fields or given is None:
            continue
        opt, value = opts._opts[name], given  # noqa: SLF001 - a name of the plug-in interface
        if cast_text and isinstance(value, str) and not opts.is_type(value, opt.opt_type):
            try:
                value = opt.cast_to_type(value)
            except ValueError as error:
                raise _wrong(name, given, opt.opt_type, cfg, str(error)) from error
        if not opts.is_type(value, opt.opt_type):
            raise _wrong(name, given, opt.opt_type, cfg, f"it is {type(value).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise _wrong(name, given, opt.opt_type, cfg, "it is not finite; leave the option out for no limit")
        _check_constraints(name, value, fields[name].hint, cfg)
        values[name] = value
    try:
        return cls.from_cfg(values)
    except InvalidRunConfigException as error:
        raise InvalidRunConfigException(str(error.args[0]).partition(". Given:")[0], error.cfg_key, cfg) from None
    except (TypeError, ValueError) as error:
        # Raised by `__post_init__` of the options.
        raise InvalidRunConfigException(str(error), "", cfg) from error


def json_schema_fields(cls: type[StructuredOpts]) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each option, with its help as `description`, and its default if it has one.

    Further keywords are taken from the field's `metadata={"json_schema": {...}}`.
    """
    from pydantic import TypeAdapter

    schemas: dict[str, dict[str, Any]] = {}
    for key, field in _leaves(cls).items():
        schema = TypeAdapter(field.hint).json_schema()
        schema["description"] = field.help
        if not field.is_required:
            schema["default"] = copy.copy(field.make_default())
        schemas[key] = {**schema, **field.json_schema}
    return schemas


@lru_cache(maxsize=512)
def _texts(cls: type) -> dict[str, str]:
    # Imported here, because only the help needs it.
    from airflow_provider_launch.util.docstrings import field_docstrings

    return field_docstrings(cls)


@lru_cache(maxsize=512)
def _fields(cls: type[StructuredOpts]) -> tuple[_Field, ...]:
    if not hasattr(cls, "__dataclass_fields__"):
        raise TypeError(f"{cls.__name__} must be a dataclass to have options")
    hints = typing.get_type_hints(cls, include_extras=True)
    found = []
    for field in dataclasses.fields(cls):  # type: ignore[arg-type] # the base itself is not a dataclass
        if not field.init:
            continue
        hint, metadata = hints[field.name], field.metadata
        plain = strip_annotated(hint)
        found.append(
            _Field(
                name=field.name,
                key=metadata.get("cfg_key", field.name),
                hint=hint,
                opt_type=_without_extras(decode_optional(plain)),
                admits_none=plain is Any or (get_origin(plain) in {Union, UnionType} and NoneType in get_args(plain)),
                default=field.default,
                default_factory=field.default_factory,
                aliases=tuple(metadata.get("aliases", ())),
                deprecated_aliases=tuple(metadata.get("deprecated_aliases", ())),
                owner=cls,
                other_help=metadata.get("help") or field.name,
                json_schema=metadata.get("json_schema", {}),
            )
        )
    return tuple(found)


def _without_extras(tp: Any) -> Any:
    """Return the type without constraints, also nested ones: `list[Annotated[int, Ge(1)]]`."""
    tp = strip_annotated(tp)
    args = get_args(tp)
    if not any(get_origin(arg) is Annotated for arg in args):
        return tp
    bare = tuple(strip_annotated(arg) for arg in args)
    return Union[bare] if get_origin(tp) in {Union, UnionType} else get_origin(tp)[bare]  # noqa: UP007


def _own_name(field: _Field) -> tuple[str, ...]:
    """Return the field name and its camelCase form as further spellings, if the external name differs."""
    if field.key == field.name:
        return ()
    return tuple(dict.fromkeys((field.name, cases.snake_to_camel(field.name))))


@lru_cache(maxsize=512)
def _leaves(cls: type[StructuredOpts]) -> dict[str, _Field]:
    """Return all fields by external name; fields of groups are `group.field`."""
    leaves: dict[str, _Field] = {}
    for field in _fields(cls):
        if field.group is None:
            leaves[field.key] = field
            continue
        for name, leaf in _leaves(field.group).items():
            changes: dict[str, Any] = {}
            if field.is_optional_group:
                changes = {"default": None, "default_factory": MISSING}
            elif not field.is_required:
                given = field.make_default()
                changes = {"default": None if given is None else given[name], "default_factory": MISSING}
            leaves[f"{field.key}.{name}"] = dataclasses.replace(leaf, **changes)
    return leaves


def _present(cls: type[StructuredOpts], cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return field name to value, for all fields in `cfg` and all groups that must exist."""
    values: dict[str, Any] = {}
    for field in _fields(cls):
        if field.group is not None:
            group = _built_group(field, cfg)
            if group is not _ABSENT:
                values[field.name] = group
            continue
        found = next((cfg[name] for name in field.spellings if name in cfg), _ABSENT)
        if found is not _ABSENT and (found is not None or field.admits_none):
            values[field.name] = found
    return values


def _built_group(field: _Field, cfg: Mapping[str, Any]) -> Any:
    assert field.group is not None
    whole: Mapping[str, Any] = next((cfg[name] for name in field.spellings if isinstance(cfg.get(name), Mapping)), {})
    if isinstance(whole, field.group):
        return whole
    part = dict(whole)
    for spelling in reversed(field.spellings):
        prefix = f"{spelling}."
        part |= {key[len(prefix) :]: value for key, value in cfg.items() if key.startswith(prefix)}
    if field.is_required:
        return field.group.from_cfg(part)
    if all(value is None for value in part.values()):
        return _ABSENT
    default = field.make_default()
    if default is None:
        return field.group.from_cfg({key: value for key, value in part.items() if value is not None})
    return dataclasses.replace(default, **_present(field.group, part))


def _lookup(opts: StructuredOpts, key: object) -> Any:
    if not isinstance(key, str):
        return _ABSENT
    # Not `_fields`: type hints of a class defined in a function may not resolve, and they are not needed here.
    for field in dataclasses.fields(opts):  # type: ignore[arg-type] # the base itself is not a dataclass
        external = field.metadata.get("cfg_key", field.name)
        names = {field.name, external, cases.snake_to_camel(field.name), cases.snake_to_camel(external)}
        value = getattr(opts, field.name)
        if key in names:
            return value
        for name in names:
            if isinstance(value, StructuredOpts) and key.startswith(f"{name}."):
                return _lookup(value, key[len(name) + 1 :])
    return _ABSENT


def _flat(cls: type[StructuredOpts], cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cfg with nested mappings of groups flattened to `group.field`."""
    flat: dict[str, Any] = {}
    for key, value in cfg.items():
        field = next((f for f in _fields(cls) if f.group is not None and key in f.spellings), None)
        if field is None or field.group is None:
            flat[key] = value
        elif isinstance(value, Mapping):
            flat |= {f"{field.key}.{name}": item for name, item in _flat(field.group, value).items()}
        elif value is not None:
            raise _wrong(key, value, dict, cfg, "it is a group of options")
    return flat


def _check_constraints(name: str, value: object, hint: Any, cfg: Mapping[str, Any]) -> None:
    if not _has_constraints(hint):
        return
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        # A union gives one reason for each member; the one for None does not help.
        reasons = [reason["msg"] for reason in error.errors() if "none_required" not in reason["type"]]
        why = "; ".join(dict.fromkeys(reasons))
        raise _wrong(name, value, _without_extras(decode_optional(strip_annotated(hint))), cfg, why) from None


def _has_constraints(hint: Any) -> bool:
    return get_origin(hint) is Annotated or any(_has_constraints(arg) for arg in get_args(hint))


def _wrong(name: str, value: object, tp: Any, cfg: Mapping[str, Any], why: str) -> InvalidRunConfigException:
    shown = _shown(name, value)
    # The reason may quote the value, which must not be shown if it is a secret.
    reason = f": {why}" if why and shown != "***" else ""
    return InvalidRunConfigException(
        f"option {name!r} must be of type {get_type_name(tp)}, {shown} is not accepted{reason}", name, cfg
    )


@dataclass(frozen=True)
class WorkspaceOpts(StructuredOpts):
    """Options of every scheduler with workspaces."""

    workspace_max_mb: Annotated[float, Gt(0)] = 200.0
    """Maximum size of a workspace in megabytes, without the files that its ignore file excludes."""


@dataclass(frozen=True)
class ImageWorkspaceOpts(WorkspaceOpts):
    """Options of schedulers that build a workspace into an image."""

    image_repo: str | None = None
    """Repository, with its registry, to which workspace images are pushed: `registry.example/team/launch`. None
    means that they are not pushed."""

    build_host: str | None = None
    """Docker engine that builds workspace images, as `unix:///path`, `tcp://host:port` or `ssh://user@host`. None
    means the engine of the connection, or `DOCKER_HOST` or the default socket for schedulers without an engine."""

    quiet: bool = False
    """Whether the output of workspace builds is left out of the log."""
