"""Parameters of steps: where values come from, which one wins, and what becomes of those of a map."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.schedulers.result_document import check_result
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.util.untrusted import UntrustedError, parse_json

REDUCERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "min": min,
    "max": max,
    "sum": sum,
    "last": lambda values: values[-1],
}
_PREFIXES = ("MAGNUS_PRM_", "RUNNABLE_PRM_", "LAUNCH_PARAM_")


@dataclass
class Known:
    """Values of parameters, and by name the place in the pipeline of the step that gave each: a later one wins."""

    values: dict[str, Any] = field(default_factory=dict)
    orders: dict[str, int] = field(default_factory=dict)

    def add(self, other: Known) -> None:
        """Take over what is newer, or new."""
        for name, value in other.values.items():
            order = other.orders.get(name, 0)
            if order >= self.orders.get(name, -1):
                self.values[name], self.orders[name] = value, order

    def set(self, values: Mapping[str, Any], order: int) -> None:
        """Take over what a step gives."""
        self.values.update(values)
        self.orders.update(dict.fromkeys(values, order))

    def to_json(self, returned: Mapping[str, Any], index: int | None = None) -> dict[str, Any]:
        """Return what goes into the XCom of a step that returned these values; `index` is its place in a map."""
        return {"returned": dict(returned), "values": self.values, "orders": self.orders, "index": index}

    @classmethod
    def from_json(cls, value: object) -> Known:
        """Return what an XCom holds; nothing, if the step has left none."""
        if not isinstance(value, Mapping):
            return cls()
        return cls(dict(value.get("values") or {}), dict(value.get("orders") or {}))


def merged(params: Mapping[str, Any], sources: Iterable[object]) -> Known:
    """Return the parameters that a step sees.

    Args:
        params: those of the run.
        sources: the XComs of the steps before.
    """
    known = Known(dict(params), dict.fromkeys(params, -1))
    for source in sources:
        known.add(Known.from_json(source))
    return known


def from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the parameters that variables like `LAUNCH_PARAM_x` give; JSON where it is that, else text."""
    found: dict[str, Any] = {}
    for prefix in _PREFIXES:
        for name, text in environ.items():
            if name.startswith(prefix) and len(name) > len(prefix):
                found[name[len(prefix) :]] = as_value(text)
    return found


def as_value(text: str) -> Any:
    """Return the JSON value of a text; the text itself, if it is not JSON, or JSON that could not be handed on."""
    try:
        return parse_json(text, len(text))
    except UntrustedError:
        return text


def as_text(value: Any) -> str:
    """Return a value as a variable of the environment holds it: text as it is, else JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def returned_values(
    document: Any, wanted: Iterable[str] | None, *, given: Mapping[str, Any], step: str
) -> dict[str, Any]:
    """Return the parameters in what a task has handed back.

    Args:
        document: the JSON document of the app, or None.
        wanted: the names in `returns`; None means all that there are.
        given: the parameters that the task had; a declared one that it left alone keeps its value.
        step: for the message.

    Raises:
        InvalidAppError: a declared name is missing, the document holds no names, or Airflow cannot store a value.
    """
    if isinstance(document, Mapping) and set(document) == {"$env"} and isinstance(document["$env"], Mapping):
        values = {_without_prefix(str(name)): as_value(str(text)) for name, text in document["$env"].items()}
    elif document is None:
        values = {}
    elif isinstance(document, Mapping):
        values = {str(name): value for name, value in document.items()}
    else:
        raise InvalidAppError(f"step {step!r} handed back {document!r}; it must be a JSON object of names and values")
    # Values of variables are JSON in a text, which was not checked yet.
    check_result(values)
    if wanted is None:
        return values
    names = list(wanted)
    missing = [name for name in names if name not in values and name not in given]
    if missing:
        there = ", ".join(sorted(values)[:12]) or "nothing"
        raise InvalidAppError(
            f"step {step!r} did not hand back {', '.join(missing)}, which it declares in 'returns'; it gave {there}"
        )
    return {name: values[name] if name in values else given[name] for name in names}


def _without_prefix(name: str) -> str:
    return next((name[len(prefix) :] for prefix in _PREFIXES if name.startswith(prefix)), name)


def reduced(each: Sequence[Mapping[str, Any]], reducer: Any) -> dict[str, Any]:
    """Return one value for each name that the branches of a map have returned; their order is that of the list.

    A branch that did not return a name is left out of its list.

    Raises:
        InvalidAppError: Airflow cannot store what came out, such as a sum of more than 64 bits.
    """
    names = dict.fromkeys(name for values in each for name in values)
    found: dict[str, Any] = {}
    for name in names:
        how = reducer.get(name, "list") if isinstance(reducer, Mapping) else reducer
        found[name] = _reducer(how)([values[name] for values in each if name in values])
        check_result(found[name], name)
    return found


def _reducer(name: str) -> Callable[[list[Any]], Any]:
    if name in REDUCERS:
        return REDUCERS[name]
    module, _, function = name.rpartition(".")
    found: Callable[[list[Any]], Any] = getattr(importlib.import_module(module), function)
    return found


def iterated(name: str, value: Any) -> list[Any]:
    """Return the list that a map runs over.

    Raises:
        InvalidAppError: the value is not a list.
    """
    if isinstance(value, list):
        return value
    raise InvalidAppError(
        f"a map iterates over {name!r}, which is {value!r}; it must be a list"
        + ("; no step before it has returned that" if value is None else "")
    )


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a shell variable."""
    return re.fullmatch(r"[A-Za-z_]\w*", text) is not None
