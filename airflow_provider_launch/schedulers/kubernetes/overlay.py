"""The options `overlay` and `pod_template`: checks them and merges their fields into a body, without I/O."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.overlays import read_file

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
    """Return the parts of the overlay by kind; refuse unknown kinds, and fields that the launcher sets itself."""
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
        json.dumps(part, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidAppError(
            f"option overlay: {kind!r} has a value that is not valid JSON ({error}); write its objects as dicts"
        ) from error


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `base` with the overlay: objects merge, lists are appended to, null removes, the rest replaces.

    Refuses a value of another kind than in `base`: object, list or plain value.
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


BASE = "base"
"""The container of a template that becomes the main container; a template with only one may name it differently."""
_ROOT = {"apiVersion", "kind", "metadata", "spec"}
_CURES = {
    "activeDeadlineSeconds": "use option time_limit_s",
    "hostname": "the launcher sets it, so that replicas find each other",
    "subdomain": "the launcher sets it, so that replicas find each other",
    "namespace": "use option namespace, or that of the connection",
    "generateName": "use the name of the app",
}


@dataclass
class PodTemplate:
    """The parts of a template; empty without one."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    pod: dict[str, Any] = field(default_factory=dict)
    """The spec of the pod without its main container."""
    main: dict[str, Any] = field(default_factory=dict)
    """The main container without its name."""

    @property
    def image(self) -> str:
        """The image of the main container, for a role without one."""
        return str(self.main.get("image") or "")


def is_template(document: object) -> bool:
    """Return whether this is a whole pod and not a patch of one."""
    return isinstance(document, Mapping) and document.get("kind") == "Pod"


def pod_template(given: str | Mapping[str, Any] | None) -> PodTemplate:
    """Return the parts of a pod template, or of a YAML or JSON file with it.

    Refuses a document that is not a pod, and fields that the launcher sets itself.
    """
    if given is None:
        return PodTemplate()
    what = "option pod_template"
    if isinstance(given, str):
        what = f"option pod_template: {given}"
        try:
            given = read_file(given)
        except ValueError as error:
            raise InvalidAppError(f"option pod_template: {error}") from error
    document: dict[str, Any] = copy.deepcopy(dict(given))
    if document.get("kind", "Pod") != "Pod" or "spec" not in document:
        raise InvalidAppError(f"{what}: kind is {document.get('kind')!r} without a spec of a pod; give a `kind: Pod`")
    _refuse_unknown(document, _ROOT, what)
    metadata = _object(document.get("metadata"), f"{what}: metadata")
    spec = _object(document["spec"], f"{what}: spec")
    # The name of a template is a placeholder: each pod gets a name of its own.
    _refuse_unknown(metadata, {"name", "labels", "annotations"}, f"{what}: metadata")
    if spec.pop("restartPolicy", "Never") != "Never":
        raise InvalidAppError(f"{what}: restartPolicy must be Never, because the launcher retries; use max_retries")
    for name in sorted(OURS["pod"] & spec.keys()):
        raise InvalidAppError(f"{what}: spec.{name} cannot be used; {_CURES.get(name, 'leave it out')}")
    main, others = _main_of(spec.pop("containers", None) or [], what)
    if others:
        spec["containers"] = others
    return PodTemplate(
        _object(metadata.get("labels"), f"{what}: labels"),
        _object(metadata.get("annotations"), f"{what}: annotations"),
        spec,
        main,
    )


def _main_of(containers: list[dict[str, Any]], what: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the container that becomes the main one, and the others."""
    found = [each for each in containers if each.get("name") == BASE] or containers
    if len(found) != 1:
        names = ", ".join(repr(each.get("name")) for each in containers) or "none"
        raise InvalidAppError(f"{what}: its containers are {names}; name the one that runs the program {BASE!r}")
    main = {name: value for name, value in found[0].items() if name not in {"name", "terminationMessagePath"}}
    for variable in main.get("env") or []:
        if str(variable.get("name")).startswith("LAUNCH_"):
            raise InvalidAppError(f"{what}: variable {variable['name']} is set by the launcher; rename it")
    return main, [each for each in containers if each is not found[0]]


def _object(given: object, what: str) -> dict[str, Any]:
    if not isinstance(given, Mapping | None):
        raise InvalidAppError(f"{what} must be an object, not {type(given).__name__}")
    return dict(given or {})


def _refuse_unknown(document: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    for name in document:
        if name not in known:
            raise InvalidAppError(f"{what}.{name} cannot be used; {_CURES.get(name, 'leave it out')}")


def on_template(template: Mapping[str, Any], ours: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return `ours` on top of the template, and that on top of `defaults`: objects merge, and lists are appended.

    `defaults` are the part that a role without options would have.
    """
    result = copy.deepcopy(dict(template))
    for name, value in ours.items():
        known = result.get(name)
        if known is None:
            result[name] = copy.deepcopy(value)
        elif isinstance(known, Mapping) and isinstance(value, Mapping):
            given = defaults.get(name)
            result[name] = on_template(known, value, given if isinstance(given, Mapping) else {})
        elif isinstance(known, list) and isinstance(value, list):
            result[name] = [*known, *copy.deepcopy(value)]
        elif value != defaults.get(name):
            result[name] = copy.deepcopy(value)
    return result
