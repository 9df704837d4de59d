"""Objects of the package `kubernetes`, such as `V1Toleration`, as dicts, without importing the package."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any


def plain(value: Any) -> Any:
    """Return the value with each object of the package as a dict in the spelling of Kubernetes, at any depth.

    A value without such objects is returned as it is, not copied.
    """
    if isinstance(value, Mapping):
        found = {key: plain(item) for key, item in value.items()}
        return value if all(found[key] is item for key, item in value.items()) else found
    if isinstance(value, (list, tuple)):
        items = [plain(item) for item in value]
        is_same = all(new is old for new, old in zip(items, value, strict=True))
        return value if is_same else type(value)(items)
    return _document(value) if is_model(value) else value


def is_model(value: object) -> bool:
    """Return whether the value is such an object; its class lists the fields."""
    kind = type(value)
    return isinstance(getattr(kind, "openapi_types", None), Mapping) and isinstance(
        getattr(kind, "attribute_map", None), Mapping
    )


def _document(model: Any) -> dict[str, Any]:
    given = {name: getattr(model, field, None) for field, name in model.attribute_map.items()}
    return {name: _leaf(item) for name, item in given.items() if item is not None}


def _leaf(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else plain(value)
