"""What overlays of pods and Jobs may not touch: pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.schedulers._kit.overlays import refuse_changes
from airflow_provider_launch.schedulers.kubernetes.manifests import CONTAINER, job_body
from airflow_provider_launch.schedulers.kubernetes.overlay import OURS
from airflow_provider_launch.schedulers.kubernetes.request import KubernetesRequest
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.macros import macros


def refuse_broken_overlays(request: KubernetesRequest) -> None:
    """Refuse overlays that do not fit, or that change what the launcher relies on.

    Raises:
        InvalidAppError: names role and field.
        UnsupportedError: an overlay names a replica; a Job has one template for all of them.
    """
    for role in request.roles:
        if not role.overlays:
            continue
        what = f"role {role.name!r}: overlay"
        if macros.replica_id in str(role.overlays):
            raise UnsupportedError(
                f"{what}: {macros.replica_id} cannot be replaced by 'kubernetes', whose Jobs have one template for all "
                f"replicas; leave it out"
            )
        plain = dataclasses.replace(role, overlays={})
        before = job_body(request, plain, 0)
        after = job_body(request, role, 0)
        refuse_changes(before["metadata"], after["metadata"], ("name",), f"{what} V1Job.metadata")
        for part in ("labels", "annotations"):
            ours = before["metadata"][part]
            refuse_changes(ours, after["metadata"].get(part) or {}, ours, f"{what} V1Job.metadata.{part}")
        refuse_changes(before["spec"], after["spec"], OURS["job"] - {"template"}, f"{what} V1Job.spec")
        _refuse_changed_pod(before["spec"]["template"], after["spec"]["template"], f"{what} V1Pod")


def _refuse_changed_pod(before: Mapping[str, Any], after: Mapping[str, Any], what: str) -> None:
    labels = before["metadata"]["labels"]
    refuse_changes(labels, (after.get("metadata") or {}).get("labels") or {}, labels, f"{what}.metadata.labels")
    refuse_changes(before["spec"], after.get("spec") or {}, OURS["pod"], f"{what}.spec")
    ours, theirs = _main(before, what), _main(after, what)
    refuse_changes(ours, theirs, OURS["container"], f"{what}.spec.containers[{CONTAINER}]")
    if [item for item in ours["env"] if item not in theirs.get("env", [])]:
        raise InvalidAppError(f"{what}: variables of container {CONTAINER!r} are gone; add to its env, or use role.env")


def _main(template: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    found = [one for one in (template.get("spec") or {}).get("containers") or [] if one.get("name") == CONTAINER]
    if len(found) != 1:
        raise InvalidAppError(
            f"{what}: there must be one container {CONTAINER!r}, which runs the program; "
            f"patch it by JOIN('containers', on='name')"
        )
    container: Mapping[str, Any] = found[0]
    return container
