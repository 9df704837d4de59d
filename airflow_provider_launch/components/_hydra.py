"""Build apps from Hydra configs; needs the extra `hydra`."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from airflow_provider_launch.specs.errors import InvalidAppError, MissingDependencyError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import AppDef

# Hydra resolves a config more than once, and would read a `$` of a macro or of a value as its own interpolation.
_PLACEHOLDER = "<launch macro {}>"
_DOLLAR = "<launch dollar>"
_CODE = "_target_"
"""The key with which a config names the function that is called."""
_DEEPEST = 50
"""Levels of brackets in an override: the parser needs a minute for thousands of them."""
_SHORTEST = 2
"""Minimum length of the texts of overrides that are searched in names of functions."""
_MACROS = ("img_root", "app_id", "replica_id", "rank0_env")
_MACRO = re.compile(rf"\$\{{(torchx|launch)\.({'|'.join(_MACROS)}):\}}")


def app_from_config(config_name: str, config_dir: str, overrides: Sequence[str]) -> AppDef:
    """Return the app described by the key `app` of a config.

    `${torchx.<macro>:}` and `${launch.<macro>:}` become the text of a macro.

    Raises:
        MissingDependencyError: Hydra is not installed.
        InvalidAppError: the config does not exist, has no `app`, or its `app` is not an app; or an override names code
            or a file outside of the directory, changes Hydra itself, or has an interpolation that is not a macro.
    """
    try:
        from hydra import compose, initialize_config_dir
        from hydra.errors import HydraException
        from hydra.utils import instantiate
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError as error:
        raise MissingDependencyError(
            "component 'utils.hydra' needs Hydra; install the extra 'hydra' of airflow-provider-launch"
        ) from error
    directory = Path(config_dir).expanduser().resolve()
    if not directory.is_dir():
        raise InvalidAppError(f"config_dir {config_dir!r} is not a directory; it was expected at {str(directory)!r}")
    texts = _refuse_code(config_name, overrides, directory)
    for name in _MACROS:
        for prefix in ("torchx", "launch"):
            OmegaConf.register_new_resolver(f"{prefix}.{name}", _constant(_PLACEHOLDER.format(name)), replace=True)
    try:
        with initialize_config_dir(str(directory), version_base=None):
            config = compose(config_name, overrides=[*overrides])
        if "app" not in config:
            raise InvalidAppError(f"config {config_name!r} in {config_dir!r} has no key 'app', which describes the app")
        found = config.app
        resolved = OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
        _refuse_named_functions(found, texts)
        app: object = instantiate(_replaced(resolved, "$", _DOLLAR), _convert_="all")
    except (HydraException, OmegaConfBaseException) as error:
        raise InvalidAppError(f"config {config_name!r} in {config_dir!r} cannot be used: {error}") from error
    if not isinstance(app, AppDef):
        raise InvalidAppError(f"'app' of config {config_name!r} must give an AppDef, not {type(app).__name__}")
    _with_macros(app)
    return app


def _refuse_code(config_name: str, overrides: Sequence[str], directory: Path) -> list[str]:
    """Refuse overrides that are more than data, because a run may choose them; return the texts in their values.

    An override could name a function to call or another file, or have an interpolation: `${oc.env:X}` reads a variable
    of the worker, and `${oc.decode:...}` makes the config of a function from a text.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if ".." in Path(config_name).parts:
        raise InvalidAppError(f"config_name {config_name!r} is outside of config_dir; name a file in it")
    parser = OverridesParser.create()
    found: list[str] = []
    for override in overrides:
        shown = f"the override {override[:200]!r}"
        if max(accumulate((sign in "[{(") - (sign in ")}]") for sign in override), default=0) > _DEEPEST:
            raise InvalidAppError(f"{shown} cannot be parsed: it is nested more than {_DEEPEST} levels deep")
        try:
            parsed = parser.parse_override(override)
        except HydraException as error:
            raise InvalidAppError(f"{shown} cannot be parsed: {error}") from error
        # As parsed, too: Hydra reads `$\{` as `${`.
        texts = [override, *_texts_in(parsed.value())]
        if any(_CODE in text for text in texts):
            raise InvalidAppError(f"{shown} has {_CODE}, which calls a function here; write it into the config")
        if any("${" in _MACRO.sub("", text) for text in texts):
            raise InvalidAppError(f"{shown} has an interpolation that is not a macro; write it into the config")
        group = parsed.key_or_group
        if any(re.split(r"[./]", name)[0] == "hydra" for name in (group, parsed.package or "")):
            raise InvalidAppError(f"{shown} changes Hydra itself; write it into the config")
        value = override.partition("=")[2]
        is_group = "/" in group or parsed.package is not None or (directory / group).is_dir()
        if ".." in re.split(r"[^\w.-]", value) and (is_group or _has_search_path(directory, config_name)):
            raise InvalidAppError(f"{shown} chooses a file outside of config_dir; name a file in it")
        found += texts[1:]
    return found


def _refuse_named_functions(config: Any, texts: Sequence[str]) -> None:
    """Refuse a function whose name the config takes from an override: `_target_: ${name}`."""
    from omegaconf import OmegaConf

    waiting = [config] if OmegaConf.is_config(config) else []
    while waiting:
        node = waiting.pop()
        keys = range(len(node)) if OmegaConf.is_list(node) else list(node)
        waiting += [node[key] for key in keys if OmegaConf.is_config(node[key])]
        target = str(node[_CODE]) if _CODE in keys and OmegaConf.is_interpolation(node, _CODE) else ""
        if any(len(text) >= _SHORTEST and text in target for text in texts):
            raise InvalidAppError(f"an override chooses the function {target!r}; write it into the config")


def _has_search_path(directory: Path, config_name: str) -> bool:
    """Return whether the config has groups in other directories, so that any name may be one of them."""
    from omegaconf import OmegaConf

    name = config_name if config_name.endswith((".yaml", ".yml")) else f"{config_name}.yaml"
    try:
        found: Any = OmegaConf.to_container(OmegaConf.load(directory / name))
    except Exception:  # noqa: BLE001 - Hydra reports any error of the file
        return True
    of_hydra = found.get("hydra") if isinstance(found, dict) else None
    return not isinstance(of_hydra, dict | None) or bool((of_hydra or {}).get("searchpath"))


def _texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in the value of an override, also keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (*_texts_in(key), *_texts_in(item))
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item)


def _replaced(value: Any, old: str, new: str) -> Any:
    """Return the document with another text in place of `old`."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [_replaced(item, old, new) for item in value]
    if isinstance(value, dict):
        return {_replaced(key, old, new): _replaced(item, old, new) for key, item in value.items()}
    return value


def _with_macros(value: Any) -> Any:
    """Replace tokens by macros: in place in objects, and in copies of lists and dicts."""
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        for name in _MACROS:
            value = value.replace(_PLACEHOLDER.format(name), getattr(macros, name))
        return value.replace(_DOLLAR, "$")
    if isinstance(value, (list, tuple)):
        return type(value)(_with_macros(item) for item in value)
    if isinstance(value, dict):
        return {_with_macros(key): _with_macros(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            object.__setattr__(value, field.name, _with_macros(getattr(value, field.name)))
    return value


def _constant(text: str) -> Any:
    return lambda: text
