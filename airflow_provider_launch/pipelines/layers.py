"""Resolves the settings of a step from the pipeline, the step and placeholders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.pipelines.model import PipelineModel, TaskStep
from airflow_provider_launch.pipelines.problems import Problem, closest

_SPELLINGS = {"docker_image": "image", "environment": "env", "memMB": "memory_mb", "nodes": "replicas"}
_MERGED = frozenset({"env", "labels", "annotations", "resources", "node_selector"})
"""Mappings whose keys are merged; everything else is replaced as a whole."""
_DECIDED_BY_FILE = frozenset(
    {"conn_id", "enable_parallel", "parallelism", "patches", "placeholders", "overrides", "run_in_local"}
)
"""Settings that shape the DAG, which is parsed without reading connections."""


@dataclass(frozen=True)
class ConnectionPlaceholders:
    """The placeholders in the extra of a connection."""

    conn_id: str
    values: Mapping[str, Any] = field(default_factory=dict)


class _Placeholders:
    """Placeholders of the file, and of the connection if it has been read."""

    def __init__(self, values: Mapping[str, Any], connection: ConnectionPlaceholders | None) -> None:
        self.values = values
        self.connection = connection
        self.left: list[str] = []
        """Names whose value only the connection has."""

    def find(self, name: str, step: TaskStep, problems: list[Problem]) -> Any:
        """Return the value; None if it is missing, or only the connection has it."""
        value = self.values[name]
        if value is not None:
            return value
        self.left.append(name)
        if self.connection is None:
            return None
        known, conn_id = self.connection.values, self.connection.conn_id
        if known.get(name) is None:
            text = (
                f"leaves placeholder {name!r} to connection {conn_id!r}, which does not have it; "
                f"{closest(name, known)}; add it to 'placeholders' in the connection's extra, or give it a value here"
            )
            problems.append(Problem(text, step.place))
            return None
        value = known[name]
        wrong = sorted(_DECIDED_BY_FILE.intersection(value)) if isinstance(value, Mapping) else []
        if wrong:
            text = (
                f"placeholder {name!r} of connection {conn_id!r} sets {', '.join(wrong)}, which a connection "
                f"cannot set; set it in the file"
            )
            problems.append(Problem(text, step.place))
        return value


def resolve(
    model: PipelineModel,
    step: TaskStep,
    kind: str,
    problems: list[Problem],
    *,
    connection: ConnectionPlaceholders | None = None,
    left: list[str] | None = None,
) -> dict[str, Any]:
    """Return the settings of a step: pipeline, then `executor` of the step, then its `overrides`.

    A later layer wins, key by key. An empty key takes the value of the placeholder of its name: the keys of a mapping
    are merged below the keys of the step, anything else is the value. A placeholder that is empty in the file has its
    value in the connection.

    Args:
        model: the pipeline.
        step: a task of it.
        kind: type of the executor.
        problems: problems are added here.
        connection: its placeholders; None while the file is parsed: settings that need it are then left out.
        left: receives the names of placeholders that the file leaves to the connection.
    """
    common = dict(model.executor.config) if model.executor.type == kind else {}
    placeholders = _Placeholders(
        {
            **mapping_of(common.pop("placeholders", None)),
            **mapping_of((step.executor.config if step.executor else {}).get("placeholders")),
        },
        connection,
    )
    profiles = {**placeholders.values, **mapping_of(common.pop("overrides", None))}
    effective = {_SPELLINGS.get(name, name): value for name, value in common.items()}
    layers: list[Mapping[str, Any]] = []
    if step.executor is not None:
        layers.append({key: value for key, value in step.executor.config.items() if key != "placeholders"})
    if kind in step.overrides:
        layers.append(_override(step, kind, profiles, placeholders, problems))
    for layer in layers:
        effective = _layered(effective, layer, placeholders, step, problems)
    for name in [name for name, value in effective.items() if value is None]:
        # The pipeline itself left it empty.
        effective = _layered(_without(effective, name), {name: None}, placeholders, step, problems)
    if left is not None:
        left.extend(dict.fromkeys(placeholders.left))
    return effective


def _override(
    step: TaskStep, kind: str, profiles: Mapping[str, Any], placeholders: _Placeholders, problems: list[Problem]
) -> Mapping[str, Any]:
    given = step.overrides[kind]
    if isinstance(given, Mapping):
        return mapping_of(given)
    if isinstance(given, str):
        found = profiles.get(given)
        if found is None and given in placeholders.values:
            found = placeholders.find(given, step, problems)
            if found is None:
                return {}
        if isinstance(found, Mapping):
            return mapping_of(found)
        problems.append(
            Problem(
                f"'overrides' names {given!r}, but executor {kind!r} has no such placeholder; "
                f"{closest(given, profiles)}",
                step.place,
            )
        )
    elif given is not None:
        problems.append(Problem(f"'overrides' of {kind!r} must be a mapping, or the name of a placeholder", step.place))
    return {}


def _layered(
    below: Mapping[str, Any],
    layer: Mapping[str, Any],
    placeholders: _Placeholders,
    step: TaskStep,
    problems: list[Problem],
) -> dict[str, Any]:
    explicit = {_SPELLINGS.get(name, name): value for name, value in layer.items() if value is not None}
    spread: dict[str, Any] = {}
    for name in [name for name, value in layer.items() if value is None]:
        if name not in placeholders.values:
            problems.append(
                Problem(
                    f"leaves {name!r} empty, but there is no placeholder of that name; "
                    f"{closest(name, placeholders.values)}",
                    step.place,
                )
            )
            continue
        if placeholders.values[name] is None and name in _DECIDED_BY_FILE:
            problems.append(Problem(f"leaves {name!r} to the connection, which cannot set it", step.place))
            continue
        found = placeholders.find(name, step, problems)
        if isinstance(found, Mapping):
            spread.update({_SPELLINGS.get(str(key), str(key)): item for key, item in found.items()})
        elif found is not None:
            spread[_SPELLINGS.get(name, name)] = found
    effective = dict(below)
    for source in (spread, explicit):
        for name, value in source.items():
            both = isinstance(value, Mapping) and isinstance(effective.get(name), Mapping) and name in _MERGED
            effective[name] = {**effective[name], **value} if both else value
    return effective


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def mapping_of(value: Any) -> dict[str, Any]:
    """Return a copy of a mapping, with text as keys; empty for other values, which are reported elsewhere."""
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}
