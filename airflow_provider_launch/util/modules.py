"""Import modules and attributes by dotted name."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

log = logging.getLogger(__name__)


def load_module(path: str) -> ModuleType | Any | None:
    """Return the module `pkg.mod`, or the attribute of `pkg.mod:attr`; None if it is absent or broken.

    A broken module is logged as a warning, an absent one is not.
    """
    name, _, attr = path.partition(":")
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - whatever a module raises while it is imported makes it broken
        if not _is_absent(error, name):
            log.warning("module %s cannot be loaded: %s: %s", name, type(error).__name__, error)
        return None
    return getattr(module, attr, None) if attr else module


def import_attr(name: str, attr: str, default: Any) -> Any:
    """Return the attribute of a module; `default` only if the module does not exist.

    Raises:
        ImportError: the module exists but is broken.
        AttributeError: the module has no such attribute.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if _is_absent(error, name):
            return default
        raise
    return getattr(module, attr)


def _is_absent(error: Exception, name: str) -> bool:
    """Return whether `name` itself is missing, and not a module that it imports."""
    return isinstance(error, ModuleNotFoundError) and (error.name == name or name.startswith(f"{error.name}."))
