"""Build apps from Hydra configs; needs the extra `hydra`.

The worker calls the functions in the files of a directory, which the author of the DAG trusts. A run may choose
overrides, so an override is only one of these:

* the choice of a file by its plain name: `role=gpu`, if the config has the group `role` and `role/gpu.yaml` exists;
* data: it is set after the files were chosen, without any `$` that Hydra could see, or keys that begin with `_`.

With such data, the app has only calls of `_PARTS`, and calls that a file describes: with the name that is written
there, and the arguments that are written there. An argument may be an interpolation of a key that is overridden.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_launch.specs.errors import InvalidAppError, MissingDependencyError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.util.paths import expanded

# Hydra resolves a config more than once, and would read a `$` of a macro or of a value as its own interpolation. The
# number is random, so that no text of a run contains a placeholder.
_PLACEHOLDER = f"<launch {secrets.token_hex(8)} {{}}>"
_DOLLAR = _PLACEHOLDER.format("dollar")
_CODE = "_target_"
"""The key with which a config names the function that is called."""
_PARTS = re.compile(
    r"airflow_provider_launch\.specs\."
    r"(AppDef|BindMount|DeviceMount|Resource|RetryPolicy|Role|VolumeMount|Workspace|parse_mounts|resource)"
)
"""Functions that make parts of an app and do nothing else, so that overrides may change their arguments."""
_DEEPEST, _MOST_BRACKETS, _LONGEST = 30, 100, 10_000
"""Limits of an override, and of the characters of all: the parser needs minutes for ten times as many."""
_MACROS = ("img_root", "app_id", "replica_id", "rank0_env")
_MACRO = re.compile(rf"\$\{{(?:torchx|launch)\.({'|'.join(_MACROS)}):\}}")
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
_OVERRIDE = re.compile(rf"(\+?)({_NAME}(?:[./]{_NAME}){{0,19}})=(.*)", re.DOTALL)
_FILE = re.compile(r"\w[\w.-]{0,99}(/\w[\w.-]{0,99}){0,19}")


def app_from_config(config_name: str, config_dir: str, overrides: Sequence[str]) -> AppDef:
    """Return the app described by the key `app` of a config.

    `${torchx.<macro>:}` and `${launch.<macro>:}` become the text of a macro. Data of overrides are set after the files
    were chosen, so that a defaults list with an interpolation does not see them.

    Raises:
        MissingDependencyError: Hydra is not installed.
        InvalidAppError: the config does not exist, has no `app`, or its `app` is not an app; or an override is neither
            a choice of a file nor data, or would choose a function or its arguments.
    """
    try:
        from hydra import errors, utils
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError
    except ImportError as error:
        raise MissingDependencyError(
            "component 'utils.hydra' needs Hydra; install the extra 'hydra' of airflow-provider-launch"
        ) from error
    directory = _directory(config_dir)
    if not directory.is_dir():
        raise InvalidAppError(f"config_dir {config_dir!r} is not a directory; it was expected at {str(directory)!r}")
    if not _has_config(directory, config_name.removesuffix(".yaml")):
        raise InvalidAppError(f"config_name {config_name!r} is not the name of a .yaml file inside of {config_dir!r}")
    choices, data = _read(overrides, directory)
    try:
        config = _composed(config_name, directory, choices)
        app: object = utils.instantiate(_resolved(config, data), _convert_="all")
    except (errors.HydraException, OmegaConfBaseException, YAMLError, TypeError, ValueError) as error:
        hint = "a group that is overridden must be in the defaults list, such as '- role: null'; "
        # Hydra's error for a value that cannot be parsed has no text, only a cause.
        reason = str(error) or str(error.__cause__)
        shown = f"{hint if choices and isinstance(error, errors.ConfigCompositionException) else ''}{reason}"
        raise InvalidAppError(f"config {config_name!r} in {config_dir!r} cannot be used: {shown}") from error
    if not isinstance(app, AppDef):
        raise InvalidAppError(f"'app' of config {config_name!r} must give an AppDef, not {type(app).__name__}")
    found: AppDef = _changed(app, _with_macros)
    return found


def written_part(config_name: str, config_dir: str, overrides: Sequence[str], written: Collection[str]) -> Any:
    """Return the resolved `app` of a config, in which all data of a run are replaced.

    A text that the result contains as well as the app does not depend on data of a run. It is None if the config
    cannot be resolved with other data.

    Args:
        config_name: name of a config that was used by `app_from_config`.
        config_dir: its directory.
        overrides: all overrides.
        written: overrides that did not come from a run; they are applied. So are all choices of files.
    """
    from omegaconf import OmegaConf

    directory = _directory(config_dir)
    choices, _ = _read(overrides, directory)
    with contextlib.suppress(Exception):  # also those of resolvers
        config = _composed(config_name, directory, choices)
        known = OmegaConf.to_container(config)
        data = []
        for one in overrides:
            for key, value, is_new in _read([one], directory)[1]:
                if one in written:
                    data.append((key, value, is_new))
                # A key that a run adds would be a text, too.
                elif _has_key(known, key):
                    data.append((key, _other(value), is_new))
        return _changed(_resolved(config, data), _with_macros)
    return None


def _has_key(config: Any, key: str) -> bool:
    """Return whether plain data have a key such as `app.roles.0`; its value may be missing."""
    for part in key.split("."):
        if isinstance(config, list) and part.isdecimal() and int(part) < len(config):
            config = config[int(part)]
        elif isinstance(config, dict) and part in config:
            config = config[part]
        else:
            return False
    return True


def _other(value: Any) -> Any:
    """Return another value of the same form."""
    if isinstance(value, list):
        return [_other(item) for item in value]
    if isinstance(value, dict):
        return {_other(key): _other(item) for key, item in value.items()}
    if value is None or isinstance(value, bool):
        return value
    return f"x{secrets.token_hex(8)}" if isinstance(value, str) else type(value)(10**9 + secrets.randbelow(10**9))


def _directory(config_dir: str) -> Path:
    return expanded(config_dir).resolve()


def _composed(config_name: str, directory: Path, choices: list[str]) -> Any:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    for name in _MACROS:
        for prefix in ("torchx", "launch"):
            OmegaConf.register_new_resolver(f"{prefix}.{name}", _constant(_PLACEHOLDER.format(name)), replace=True)
    with initialize_config_dir(str(directory), version_base=None):
        return compose(config_name, overrides=choices)


def _has_config(directory: Path, name: str) -> bool:
    file = (directory / f"{name}.yaml").resolve() if _FILE.fullmatch(name) else directory
    return file.is_file() and file.is_relative_to(directory)


def _read(overrides: Sequence[str], directory: Path) -> tuple[list[str], list[tuple[str, Any, bool]]]:
    """Return overrides that choose files, and the data of the others: key, value, and whether the key may be new."""
    if sum(map(len, overrides)) > _LONGEST:
        raise InvalidAppError(f"the overrides have more than {_LONGEST} characters; write some into the config")
    choices: list[str] = []
    data: list[tuple[str, Any, bool]] = []
    for override in overrides:
        # Without the value, which may be a secret.
        shown = f"the override of {override.partition('=')[0][:200]!r}"
        match = _OVERRIDE.fullmatch(override)
        if match is None or re.split(r"[./]", match[2])[0] == "hydra":
            raise InvalidAppError(
                f"{shown} is not 'key=value' or '+key=value' with a key such as app.roles.0.image, without names that "
                f"begin with '_', or it changes Hydra itself; write it into the config"
            )
        plus, key, text = match.groups()
        if plus and "." not in key:
            raise InvalidAppError(f"{shown} adds a key or group to the config; write '{key}: null' there, and omit '+'")
        if "/" in key or ("." not in key and (directory / key).is_dir()):
            if plus or "/" in text or not _has_config(directory, f"{key}/{text}"):
                raise InvalidAppError(f"{shown} is not '{key}=name' with a file {key}/name.yaml inside of config_dir")
            choices.append(f"{key}='{text}'")
            continue
        try:
            data.append((key, _value(text), bool(plus)))
        except ValueError as error:
            raise InvalidAppError(f"{shown} {error}") from error
    return choices, data


def _value(text: str) -> Any:
    """Return the value of an override as data with placeholders; anything else is a ValueError."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if sum(map(text.count, "[{(")) > _MOST_BRACKETS:
        raise ValueError(f"has more than {_MOST_BRACKETS} brackets; write it into the config")
    try:
        value = OverridesParser.create().parse_override(f"value={text}").value()
    except (HydraException, ValueError):
        raise ValueError("cannot be parsed; quote the value: key='some text'") from None
    return _plain(value)


def _plain(value: Any, levels: int = _DEEPEST) -> Any:
    if isinstance(value, str):
        text = _MACRO.sub(lambda match: _PLACEHOLDER.format(match[1]), value)
        if "${" in text:
            raise ValueError("has an interpolation that is not a macro; write it into the config")
        return text.replace("$", _DOLLAR)
    if isinstance(value, (list, dict)) and not levels:
        raise ValueError(f"is nested more than {_DEEPEST} levels deep; write it into the config")
    if isinstance(value, list):
        return [_plain(item, levels - 1) for item in value]
    if isinstance(value, dict):
        if any(str(key).startswith("_") for key in value):
            raise ValueError("has a key that begins with '_', as _target_, which calls code; write it into the config")
        return {_plain(key): _plain(item, levels - 1) for key, item in value.items()}
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    raise ValueError("is a sweep or a function of Hydra; give one value, and quote texts with a comma: key='a,b'")


def _resolved(config: Any, data: Sequence[tuple[str, Any, bool]]) -> Any:
    """Return the app of a config with data of overrides, with calls that make parts, or that a file describes."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    in_files = {repr(call) for call in _calls(OmegaConf.to_container(config)) if "${" not in str(call[_CODE])}
    for key, value, may_be_new in data:
        try:
            was_mapping = OmegaConf.is_dict(OmegaConf.select(config, key))
            OmegaConf.update(config, key, value, force_add=may_be_new)
        except (OmegaConfBaseException, TypeError, ValueError) as error:
            raise ValueError(f"the override of {key!r} does not fit; a new key needs '+': {error}") from error
        if was_mapping and isinstance(value, str):
            raise ValueError(f"the override of {key!r} replaces a mapping; a group must be a directory in config_dir")
    if "app" not in config:
        raise ValueError("it has no key 'app', which describes the app")
    app = OmegaConf.to_container(config.app, resolve=True) if OmegaConf.is_config(config.app) else config.app
    others = [call for call in _calls(app) if not _PARTS.fullmatch(str(call[_CODE]))]
    described = set()
    for node in _call_nodes(config) if data and others else ():
        if repr(OmegaConf.to_container(node)) in in_files:
            with contextlib.suppress(OmegaConfBaseException):
                described.add(repr(OmegaConf.to_container(node, resolve=True)))
    for call in others if data else ():
        if repr(call) not in described:
            raise ValueError(
                f"an override may choose the function {call[_CODE]!r} or an argument of it; write its name at {_CODE} "
                f"of the config, and for an argument '${{key}}' with a key that is overridden"
            )
    return _changed(app, lambda text: text.replace("$", _DOLLAR))


def _calls(value: Any) -> Iterator[dict[Any, Any]]:
    """Yield each mapping that calls a function."""
    if isinstance(value, dict) and _CODE in value:
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _calls(item)


def _call_nodes(node: Any) -> Iterator[Any]:
    """Yield each node that is written in the config, not an interpolation, and calls a function."""
    from omegaconf import OmegaConf

    if OmegaConf.is_dict(node) and _CODE in node:
        yield node
    for key in node if OmegaConf.is_dict(node) else range(len(node)):
        is_value = not OmegaConf.is_interpolation(node, key) and not OmegaConf.is_missing(node, key)
        if is_value and OmegaConf.is_config(node[key]):
            yield from _call_nodes(node[key])


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return the value with other texts: changed in place in objects, and in copies of lists and dicts."""
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_changed(item, change) for item in value)
    if isinstance(value, dict):
        return {_changed(key, change): _changed(item, change) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            object.__setattr__(value, field.name, _changed(getattr(value, field.name), change))
    return value


def _with_macros(text: str) -> str:
    for name in _MACROS:
        text = text.replace(_PLACEHOLDER.format(name), getattr(macros, name))
    return text.replace(_DOLLAR, "$")


def _constant(text: str) -> Any:
    return lambda: text
