"""Parameters of steps: sources, precedence, and the reduction of values of a map."""

from __future__ import annotations

import base64
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_launch.pipelines.problems import closest
from airflow_provider_launch.schedulers.result_document import check_result
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.type_check import shown
from airflow_provider_launch.util.untrusted import UntrustedError, inflate, parse_json

REDUCERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "min": min,
    "max": max,
    "sum": sum,
    "last": lambda values: values[-1],
}
_PREFIXES = ("MAGNUS_PRM_", "RUNNABLE_PRM_", "LAUNCH_PARAM_")
_TRACKED = "MAGNUS_TRACK_"
LARGEST_RESULT = 64 * 1024
"""Bytes of a result after unpacking."""


@dataclass
class Known:
    """Values of parameters, each with the position of the step that set it: the latest position wins."""

    values: dict[str, Any] = field(default_factory=dict)
    orders: dict[str, int] = field(default_factory=dict)

    def add(self, other: Known) -> None:
        """Add the values that are new or from a later step."""
        for name, value in other.values.items():
            order = other.orders.get(name, 0)
            if order >= self.orders.get(name, -1):
                self.values[name], self.orders[name] = value, order

    def set(self, values: Mapping[str, Any], order: int) -> None:
        """Set the values that a step returned."""
        self.values.update(values)
        self.orders.update(dict.fromkeys(values, order))

    def to_json(self, returned: Mapping[str, Any], index: int | None = None) -> dict[str, Any]:
        """Return the XCom of a step that returned these values; `index` is its element in a map."""
        return {"returned": dict(returned), "values": self.values, "orders": self.orders, "index": index}

    @classmethod
    def from_json(cls, value: object) -> Known:
        """Return the values of an XCom; empty if the step has none."""
        if not isinstance(value, Mapping):
            return cls()
        return cls(dict(value.get("values") or {}), dict(value.get("orders") or {}))


def of_run(params: Mapping[str, Any]) -> Known:
    """Return the parameters that a run gives, of any names.

    Raises:
        InvalidAppError: Airflow cannot store a value, or would make an object of it for the next step.
    """
    try:
        check_result(dict(params))
    except InvalidAppError as error:
        raise InvalidAppError(f"the parameters of the run cannot be passed on: {error}") from error
    return Known(dict(params), dict.fromkeys(params, -1))


def from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the parameters in variables like `LAUNCH_PARAM_x`, parsed as JSON if possible."""
    found: dict[str, Any] = {}
    for prefix in _PREFIXES:
        for name, text in environ.items():
            if name.startswith(prefix) and len(name) > len(prefix):
                found[name[len(prefix) :]] = as_value(text)
    return found


def as_value(text: str) -> Any:
    """Return the JSON value of a text; the text itself if it is not valid JSON for a parameter."""
    try:
        return parse_json(text, len(text))
    except UntrustedError:
        return text


def as_text(value: Any) -> str:
    """Return a value as the text of an environment variable: text unchanged, else JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def chosen_case(value: Any, cases: Collection[str]) -> str | None:
    """Return which case of a conditional stands for a value; None if none does.

    A case is the value as text, or for true and false any of their words in YAML: a file may write `yes` for both.
    """
    texts = [as_text(value), str(value)]
    if isinstance(value, bool):
        words = ("true", "yes", "on") if value else ("false", "no", "off")
        texts += [text for word in words for text in (word, word.title(), word.upper())]
    return next((text for text in texts if text in cases), None)


def returned_values(
    document: Any, wanted: Iterable[str] | None, *, given: Mapping[str, Any], step: str
) -> dict[str, Any]:
    """Return the parameters in the result of a task.

    Args:
        document: the JSON document of the app, or None.
        wanted: the names in `returns`; None means all.
        given: the input parameters of the task; a declared one that it did not return keeps its value.
        step: for the message.

    Raises:
        InvalidAppError: a declared name is missing, the document is not an object, or Airflow cannot store a value.
    """
    document = unpacked(document, step)
    if isinstance(document, Mapping) and set(document) == {"$env"} and isinstance(document["$env"], Mapping):
        values = {_without_prefix(str(name)): as_value(str(text)) for name, text in document["$env"].items()}
    elif document is None:
        values = {}
    elif isinstance(document, Mapping):
        values = {str(name): value for name, value in document.items()}
    else:
        raise InvalidAppError(f"step {step!r} returned {document!r}; it must be a JSON object of names and values")
    # Values of variables are JSON texts, which have not been checked yet.
    check_result(values)
    values = {name: value for name, value in values.items() if not name.startswith(_TRACKED)}
    if wanted is None:
        return values
    names = list(wanted)
    missing = [name for name in names if name not in values and name not in given]
    if missing:
        there = ", ".join(sorted(values)[:12]) or "nothing"
        raise InvalidAppError(
            f"step {step!r} did not return {', '.join(missing)}, which it declares in 'returns'; it returned {there}"
        )
    return {name: values[name] if name in values else given[name] for name in names}


def unpacked(document: Any, step: str) -> Any:
    """Return the result of a task, which its program may have packed: `{"$packed": "<base85 of zlib>"}`.

    Raises:
        InvalidAppError: it cannot be unpacked, or has more than 64 KB.
    """
    if not (isinstance(document, Mapping) and set(document) == {"$packed"} and isinstance(document["$packed"], str)):
        return document
    try:
        data = inflate(base64.b85decode(document["$packed"]), LARGEST_RESULT)
        return parse_json(data, LARGEST_RESULT)
    except ValueError as error:
        raise InvalidAppError(f"the packed result of step {step!r} cannot be read: {error}") from error


def tracked(document: Any, step: str) -> dict[str, Any]:
    """Return the metrics in the result of a task: variables `MAGNUS_TRACK_name`, or `_name_STEP_n` for a later step.

    Raises:
        InvalidAppError: Airflow cannot store a metric.
    """
    document = unpacked(document, step)
    found = document.get("$env", document) if isinstance(document, Mapping) else {}
    if not isinstance(found, Mapping):
        return {}
    metrics = {
        name.removeprefix(_TRACKED).removesuffix("_STEP_0"): as_value(value) if isinstance(value, str) else value
        for name, value in found.items()
        if name.startswith(_TRACKED)
    }
    # The text of a metric is JSON, which has not been checked as a part of the result.
    check_result(metrics)
    return metrics


def _without_prefix(name: str) -> str:
    return next((name[len(prefix) :] for prefix in _PREFIXES if name.startswith(prefix)), name)


def reduced(each: Sequence[Mapping[str, Any]], reducer: Any, folders: Iterable[Path] = ()) -> dict[str, Any]:
    """Return one value for each name that the branches of a map returned, in the order of the list.

    A reducer `module.function` may be in one of the folders.
    The value of a branch that did not return a name is None, so each value has the position of its element.

    Raises:
        InvalidAppError: `min`, `max` or `sum` miss a value, or Airflow cannot store the value, such as a sum of more
            than 64 bits.
    """
    names = dict.fromkeys(name for one in each for name in one)
    found: dict[str, Any] = {}
    for name in names:
        how = reducer.get(name, "list") if isinstance(reducer, Mapping) else reducer
        values = [one.get(name) for one in each]
        if how in ("min", "max", "sum") and None in values:
            raise InvalidAppError(
                f"element {values.index(None)} of the map, counted from 0, has no value of {name!r}, which reducer "
                f"{how!r} needs; return one for each element, or reduce {name!r} by 'list', which holds None for it"
            )
        found[name] = _reducer(how, folders)(values)
        check_result(found[name], name)
    return found


def _reducer(name: str, folders: Iterable[Path]) -> Callable[[list[Any]], Any]:
    if name in REDUCERS:
        return REDUCERS[name]
    add_to_path(*folders)
    module, _, function = name.rpartition(".")
    found: Callable[[list[Any]], Any] = getattr(importlib.import_module(module), function)
    return found


def add_to_path(*folders: Path) -> None:
    """Let modules in folders be imported; last, so that they hide nothing."""
    sys.path.extend(dict.fromkeys(str(folder) for folder in folders if str(folder) not in sys.path))


def iterated(name: str, values: Mapping[str, Any]) -> list[Any]:
    """Return the list that a map iterates over.

    Raises:
        InvalidAppError: no earlier step returned it, or it is not a list.
    """
    if name not in values:
        raise InvalidAppError(
            f"a map iterates over {name!r}, which no earlier step has returned; {closest(name, values)}; "
            f"correct 'iterate_on', return {name!r} from an earlier step, or add it to 'parameters'"
        )
    value = values[name]
    if isinstance(value, list):
        return value
    raise InvalidAppError(f"a map iterates over {name!r}, which is {shown(value)}; return a list from its step")


def is_name(text: str) -> bool:
    """Return whether a text is a valid name of a shell variable."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) is not None
