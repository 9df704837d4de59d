"""Build apps from Hydra configs; needs the extra `hydra`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_provider_launch.specs.errors import InvalidAppError, MissingDependencyError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import AppDef

# Hydra resolves a config more than once, and would read the text of a macro as its own interpolation.
_PLACEHOLDER = "<launch macro {}>"
_CODE = "_target_"
"""The key with which a config names the function that is called."""
_MACROS = ("img_root", "app_id", "replica_id", "rank0_env")


def app_from_config(config_name: str, config_dir: str, overrides: Sequence[str]) -> AppDef:
    """Return the app described by the key `app` of a config.

    `${torchx.<macro>:}` and `${launch.<macro>:}` become the text of a macro.

    Raises:
        MissingDependencyError: Hydra is not installed.
        InvalidAppError: the config does not exist, has no `app`, or its `app` is not an app; or an override names code
            or a file outside of the directory.
    """
    try:
        from hydra import compose, initialize_config_dir
        from hydra.utils import instantiate
        from omegaconf import OmegaConf
    except ImportError as error:
        raise MissingDependencyError(
            "component 'utils.hydra' needs Hydra; install the extra 'hydra' of airflow-provider-launch"
        ) from error
    directory = Path(config_dir).expanduser().resolve()
    if not directory.is_dir():
        raise InvalidAppError(f"config_dir {config_dir!r} is not a directory; it was expected at {str(directory)!r}")
    _refuse_code(config_name, overrides, directory)
    for name in _MACROS:
        for prefix in ("torchx", "launch"):
            OmegaConf.register_new_resolver(f"{prefix}.{name}", _constant(_PLACEHOLDER.format(name)), replace=True)
    with initialize_config_dir(str(directory), version_base=None):
        config = compose(config_name, overrides=[*overrides])
    if "app" not in config:
        raise InvalidAppError(f"config {config_name!r} in {config_dir!r} has no key 'app', which describes the app")
    app: object = instantiate(config.app, _convert_="all")
    if not isinstance(app, AppDef):
        raise InvalidAppError(f"'app' of config {config_name!r} must give an AppDef, not {type(app).__name__}")
    _with_macros(app)
    return app


def _refuse_code(config_name: str, overrides: Sequence[str], directory: Path) -> None:
    """Refuse overrides that name a function to call or another file: an override is data, which a run may choose."""
    if ".." in Path(config_name).parts:
        raise InvalidAppError(f"config_name {config_name!r} is outside of config_dir; name a file in it")
    for override in overrides:
        if _CODE in override:
            raise InvalidAppError(
                f"the override {override[:200]!r} has {_CODE}, which calls a function here; write it into the config"
            )
        group, _, value = override.lstrip("+~").partition("=")
        if ".." in re.split(r"[^\w.-]", value) and (directory / group.partition("@")[0]).is_dir():
            raise InvalidAppError(
                f"the override {override[:200]!r} chooses a file outside of config_dir; name a file in it"
            )


def _with_macros(value: Any) -> Any:
    """Replace tokens by macros: in place in objects, and in copies of lists and dicts."""
    if isinstance(value, str):
        for name in _MACROS:
            value = value.replace(_PLACEHOLDER.format(name), getattr(macros, name))
        return value
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
