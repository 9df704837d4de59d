"""The option `overlay`: checks it and merges its fields into a body, without I/O."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.specs.errors import InvalidAppError

OURS = {
    "pod": {"restartPolicy", "subdomain", "hostname", "activeDeadlineSeconds"},
    "container": {"name", "command", "args", "image", "terminationMessagePath"},
    "job": {
        "backoffLimit",
        "backoffLimitPerIndex",
        "completionMode",
        "completions",
        "managedBy",
        "manualSelector",
        "maxFailedIndexes",
        "parallelism",
        "selector",
        "suspend",
        "template",
    },
    "service": {"clusterIP", "publishNotReadyAddresses", "selector"},
}
"""Fields that the launcher sets itself; an overlay must not change them."""


def checked_overlay(overlay: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parts of the overlay by kind.

    Raises:
        InvalidAppError: a kind is unknown, or the launcher sets a field itself.
    """
    found: dict[str, dict[str, Any]] = {}
    for kind, part in overlay.items():
        if kind not in OURS:
            raise InvalidAppError(f"option overlay: {kind!r} is not a valid kind; use one of {', '.join(OURS)}")
        if not isinstance(part, Mapping):
            raise InvalidAppError(f"option overlay: {kind!r} must be an object, not {type(part).__name__}")
        if taken := sorted(OURS[kind] & set(part)):
            raise InvalidAppError(
                f"option overlay: {kind}.{taken[0]} is set by the scheduler 'kubernetes' itself; leave it out"
            )
        _refuse_models(kind, part)
        found[kind] = dict(part)
    for variable in found.get("container", {}).get("env") or []:
        if isinstance(variable, Mapping) and str(variable.get("name")).startswith("LAUNCH_"):
            raise InvalidAppError(
                f"option overlay: variable {variable['name']} of container.env is set by the launcher; rename it"
            )
    return found


def _refuse_models(kind: str, part: object) -> None:
    try:
        json.dumps(part)
    except (TypeError, ValueError) as error:
        raise InvalidAppError(
            f"option overlay: {kind!r} has a value that is not valid JSON ({error}); write its objects as dicts"
        ) from error


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `base` with the overlay: objects merge, lists are appended to, null removes, the rest replaces.

    Raises:
        InvalidAppError: a value has another kind than in `base`: object, list or plain value.
    """
    result = copy.deepcopy(dict(base))
    for name, value in overlay.items():
        known = result.get(name)
        if value is None:
            result.pop(name, None)
        elif known is None:
            result[name] = copy.deepcopy(value)
        elif isinstance(known, Mapping) and isinstance(value, Mapping):
            result[name] = merged(known, value)
        elif isinstance(known, list) and isinstance(value, list):
            result[name] = [*known, *copy.deepcopy(value)]
        elif isinstance(known, Mapping | list) or isinstance(value, Mapping | list):
            raise InvalidAppError(
                f"option overlay: {name!r} is {type(known).__name__} here, not {type(value).__name__}; "
                f"write it as Kubernetes does"
            )
        else:
            result[name] = value
    return result
