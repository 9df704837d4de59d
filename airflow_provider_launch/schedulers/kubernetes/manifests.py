"""Builds the Kubernetes objects of an app, and shows them for a dry run, without I/O."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.schedulers._kit.naming import task_labels
from airflow_provider_launch.schedulers._kit.overlays import patched, refuse_changes
from airflow_provider_launch.schedulers._kit.request import format_app, format_role
from airflow_provider_launch.schedulers.environment import RANK0_ENV, port_values, replica_env
from airflow_provider_launch.schedulers.kubernetes.naming import Annotation, Label, group_name, job_name
from airflow_provider_launch.schedulers.kubernetes.overlay import OURS, merged
from airflow_provider_launch.schedulers.kubernetes.request import (
    MAIN,
    MESSAGE_PATH,
    RECORD_BYTES,
    KubernetesRequest,
    KubernetesRole,
    packed,
    packed_in_job,
    without_values,
)
from airflow_provider_launch.schedulers.kubernetes.result_container import ERROR_PATH, LIMIT_BYTES, with_result
from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.owner import owner_text
from airflow_provider_launch.specs.roles import RetryPolicy
from airflow_provider_launch.specs.secrets import masked_args, masked_document, masked_env, masked_text

CONTAINER = MAIN
BACKSTOP_S = 60
"""Seconds after the deadline at which Kubernetes ends a Job that no observer has ended."""
SIDECAR_GRACE_S = 30.0
MESSAGE_BYTES = 12 * 1024
"""The kubelet divides this equally among all containers of a pod, including init containers.

Source: kubernetes.io, Debug a running Pod, "Determine the Reason for Pod Failure".
"""
_REPLICA = "LAUNCH_REPLICA_ID"
_PREEMPTIONS = "preemptions"
"""The key in the ConfigMap of an app."""
_TTL = "ttlSecondsAfterFinished"
_SURELY_SMALL = 100_000
_MAX_OBJECT = 1_500_000
"""Maximum bytes of an object: etcd takes 1.5 MiB, and the server adds some fields."""
_REPLICA_MARK = "\0replica\0"  # no argument of a program can hold a NUL


def record_body(request: KubernetesRequest) -> dict[str, Any]:
    """Return the Service that gives host names to replicas, is the app's record, and owns its Jobs."""
    spec = {
        "clusterIP": "None",
        # A replica has its host name from its start on, not only when it is ready.
        "publishNotReadyAddresses": True,
        "selector": {Label.APP_ID: request.app_id},
    }
    owner = owner_text(request.app_def.metadata)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": request.app_id,
            "labels": {**request.labels, Label.MANAGED: "true", Label.APP_ID: request.app_id},
            "annotations": {
                **task_labels(request.app_def.metadata),
                **request.label_texts,
                Annotation.APP_NAME: request.name,
                **({Annotation.OWNER: owner} if owner else {}),
                Annotation.SPEC_HASH: request.spec_hash,
                Annotation.ATTEMPT: "0",
                Annotation.REQUEST: packed(without_values(request)),
            },
        },
        "spec": merged(spec, request.service),
    }


def job_body(request: KubernetesRequest, role: KubernetesRole, attempt: int) -> dict[str, Any]:
    """Return the Job of a role in one attempt of the app; it is created suspended."""
    labels = {**request.labels, **_labels(request, role, attempt)}
    group_labels, group_annotations = _group(request, attempt)
    spec: dict[str, Any] = {
        "suspend": True,
        "completionMode": "Indexed",
        "completions": role.num_replicas,
        "parallelism": role.num_replicas,
        # With this field the status lists the failed replicas, even without retries.
        "backoffLimitPerIndex": role.max_retries if role.policy == RetryPolicy.REPLICA.value else 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {
                    # A group restarts as a whole; Kueue marks a lost quota with TerminationTarget. With a bound the
                    # app restarts as a whole, too: a Job would replace its pods without a bound.
                    "action": "Ignore" if _replaces_disrupted(request, role) else "FailJob",
                    "onPodConditions": [{"type": kind, "status": "True"}],
                }
                for kind in ("DisruptionTarget", *(["TerminationTarget"] if request.is_group else []))
            ]
        },
        "template": {
            "metadata": {
                "labels": {**role.labels, **labels, **group_labels},
                "annotations": {**role.annotations, **request.annotations, **group_annotations},
            },
            "spec": _pod_spec(request, role, attempt),
        },
    }
    if request.success_policy == "leader" and _is_first(request, role):
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    if request.ttl_s is not None:
        spec[_TTL] = request.ttl_s
    if request.time_limit_s is not None:
        spec["activeDeadlineSeconds"] = math.ceil(request.time_limit_s) + request.grace_s + BACKSTOP_S
    queue = {Label.QUEUE: request.queue} if request.queue and not request.is_group else {}
    spec = merged(spec, request.job)
    values = macros.Values(img_root="", app_id=request.app_id, replica_id="", rank0_env=RANK0_ENV)
    what = f"role {role.name!r}: overlay"
    spec["template"] = patched(spec["template"], role.overlays.get("V1Pod", {}), values, f"{what} V1Pod")
    body: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(request.app_id, role.slug, attempt, role.num_replicas),
            "labels": {**labels, **queue},
            "annotations": {
                **request.annotations,
                Annotation.APP_NAME: request.name,
                Annotation.SPEC_HASH: request.spec_hash,
                Annotation.PLAN: plan_text(request),
                # Later attempts need the values, which the pods of this Job show anyway.
                **({Annotation.REQUEST: packed_in_job(request, spec["template"])} if _is_first(request, role) else {}),
            },
        },
        "spec": spec,
    }
    body = patched(body, role.overlays.get("V1Job", {}), values, f"{what} V1Job")
    if _has_later_jobs(request):
        body["spec"].pop(_TTL, None)
    _keep_last_lines(body["spec"]["template"]["spec"])
    return body


def refuse_too_large(request: KubernetesRequest) -> None:
    """Refuse an app that the server cannot store: its own error is unclear, or comes only when a pod is created."""
    if len(packed(request)) > RECORD_BYTES:
        record = job_body(request, request.roles[0], 0)["metadata"]["annotations"][Annotation.REQUEST]
        if (size := len(record)) > RECORD_BYTES:
            raise InvalidAppError(
                f"app {request.app_id!r} takes {size} bytes, and 'kubernetes' stores at most {RECORD_BYTES}; "
                f"put large args and env into a file of the image or of a volume"
            )
    if sum(len(text) for role in request.roles for text in (*role.args, *role.env.values())) < _SURELY_SMALL:
        return
    for role in request.roles:
        if (size := _text_bytes(job_body(request, role, 0))) > _MAX_OBJECT:
            raise InvalidAppError(
                f"role {role.name!r}: its Job has {size} bytes, and 'kubernetes' stores {_MAX_OBJECT} per object; "
                f"put large args and env into a file of the image or of a volume"
            )


def _text_bytes(document: Any) -> int:
    if isinstance(document, Mapping):
        return sum(_text_bytes(name) + _text_bytes(value) for name, value in document.items())
    if isinstance(document, list):
        return sum(map(_text_bytes, document))
    return len(str(document).encode("utf-8", "surrogatepass"))


def pod_body(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod as the Job would create it, for the server's dry run."""
    template = copy.deepcopy(job["spec"]["template"])
    # A variable refers to the index, which only the Job's controller sets.
    template["metadata"]["labels"][Label.INDEX] = "0"
    template["metadata"]["generateName"] = f"{job['metadata']['name'][:50]}-"
    return {"apiVersion": "v1", "kind": "Pod", **template}


def preemptions_body(app_id: str, record_uid: str, count: int) -> dict[str, Any]:
    """Return the ConfigMap that shows the pods of an app how often its queue has evicted it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": app_id,
            "labels": {Label.MANAGED: "true", Label.APP_ID: app_id},
            "ownerReferences": [owner("Service", app_id, record_uid)],
        },
        "data": {_PREEMPTIONS: str(count)},
    }


def owner(kind: str, name: str, uid: str) -> dict[str, Any]:
    """Return the reference to an owner; Kubernetes removes an object that has lost all its owners."""
    version = "v1" if kind == "Service" else "batch/v1"
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid}


def format_request(request: KubernetesRequest) -> str:
    """Return the request for people, with secrets masked."""
    lines = [format_app(request.app_id, request.name, "", request.time_limit_s)]
    record = record_body(request)
    record["metadata"]["annotations"][Annotation.REQUEST] = "(this request without values, packed)"
    chosen = {"namespace": request.namespace, "context": request.context}
    where = "".join(f" {name}={value}" for name, value in chosen.items() if value is not None)
    lines.append(f"POST services{where}\n{_shown(masked_document(record))}")
    for role in request.roles:
        image = masked_text(role.container["image"])
        lines += format_role(role.name, role.num_replicas, image, policy=role.policy, max_retries=role.max_retries)
        job = job_body(request, role, 0)
        if Annotation.REQUEST in job["metadata"]["annotations"]:
            job["metadata"]["annotations"][Annotation.REQUEST] = "(this request, packed)"
        pod = job["spec"]["template"]["spec"]
        for container in [*pod["containers"], *(pod.get("initContainers") or [])]:
            given = container.get("env") or []
            values = masked_env({item["name"]: str(item.get("value", "")) for item in given})
            shown = [{**item, "value": values[item["name"]]} if "value" in item else item for item in given]
            container.update({"env": shown} if shown else {})
            container.update({"args": masked_args(container["args"])} if container.get("args") else {})
        lines.append(f"POST jobs{where}\n{_shown(masked_document(job))}")
    return "\n".join(lines)


def _keep_last_lines(pod: Mapping[str, Any]) -> None:
    """Let Kubernetes keep the last lines of failed init containers and sidecars, for messages."""
    others = [one for one in pod["containers"] if one.get("name") != CONTAINER]
    for container in [*(pod.get("initContainers") or []), *others]:
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")


# ---- parts of a body -------------------------------------------------------------------------------------------------


def _replaces_disrupted(request: KubernetesRequest, role: KubernetesRole) -> bool:
    return request.on_disruption == "retry" and not request.is_group and role.max_disruptions is None


def _is_first(request: KubernetesRequest, role: KubernetesRole) -> bool:
    """Return whether this is the first role; later attempts have a copy with a digest as its image."""
    return role.slug == request.roles[0].slug


def _labels(request: KubernetesRequest, role: KubernetesRole, attempt: int) -> dict[str, str]:
    return {
        Label.MANAGED: "true",
        Label.APP_ID: request.app_id,
        Label.ROLE: role.slug,
        Label.ATTEMPT: str(attempt),
    }


def _group(request: KubernetesRequest, attempt: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and annotations by which Kueue admits the pods of several Jobs as one group.

    Without replacements the group is over when all its pods have ended, so that no quota or finalizer stays. A new
    attempt of the app is another group.
    """
    if not request.is_group or request.queue is None:
        return {}, {}
    size = sum(role.num_replicas for role in request.roles)
    labels = {Label.QUEUE: request.queue, Label.GROUP: group_name(request.app_id, attempt)}
    return labels, {Annotation.GROUP_SIZE: str(size), Annotation.GROUP_RETRIES: "false"}


def plan_text(request: KubernetesRequest) -> str:
    """Return the plan, which each Job stores: roles, retries and limits as JSON."""
    services = [role.slug for role, given in zip(request.roles, request.app_def.roles, strict=True) if given.service]
    disruptions = {role.slug: role.max_disruptions for role in request.roles if role.max_disruptions is not None}
    plan = {
        "roles": [[role.name, role.slug, role.num_replicas, role.policy, role.max_retries] for role in request.roles],
        "time_limit_s": request.time_limit_s,
        "grace_s": request.grace_s,
        "queue": request.queue is not None and not request.is_group,
        **({"group": request.on_disruption} if request.is_group else {}),
        **({"fails_on_disruption": True} if request.on_disruption == "fail" else {}),
        "leader": request.success_policy == "leader",
        **({"services": services} if services else {}),
        **({"max_disruptions": disruptions} if disruptions else {}),
        **({"ttl_s": request.job.get(_TTL, request.ttl_s)} if _has_later_jobs(request) else {}),
        **({"sidecar_grace_s": request.sidecar_grace_s} if request.sidecar_grace_s != SIDECAR_GRACE_S else {}),
        **({"accepts_stop": True} if request.on_outside_stop == "accept" else {}),
        **({"container_logs": request.container_logs} if request.container_logs else {}),
    }
    return json.dumps(plan, separators=(",", ":"))


def _has_later_jobs(request: KubernetesRequest) -> bool:
    """Return whether a Job may end long before its app, so that its TTL is set when the app ends."""
    return len(request.roles) > 1 or request.restarts


def _pod_spec(request: KubernetesRequest, role: KubernetesRole, attempt: int) -> dict[str, Any]:
    first = request.roles[0]
    rank0 = job_name(request.app_id, first.slug, attempt, first.num_replicas)
    rank0_host = f"{rank0}-0.{request.app_id}"
    values = macros.Values(
        img_root="",
        app_id=request.app_id,
        replica_id=_REPLICA_MARK,
        rank0_env=RANK0_ENV,
        rank0_host=rank0_host,
        ports=port_values(request.app_def.roles, lambda variable, _: str(request.ports[variable])),
    )
    known = replica_env(request.app_id, role, 0, rank0_host)
    del known[_REPLICA]
    env = {
        **role.copied_env,
        **known,
        "TORCHELASTIC_ERROR_FILE": MESSAGE_PATH,
        **({"LAUNCH_RESULT_PATH": MESSAGE_PATH} if _is_first(request, role) else {}),
        **{variable: str(port) for variable, port in request.ports.items()},
    }
    has_container = _is_first(request, role) and request.result_image is not None
    if has_container:
        env["TORCHELASTIC_ERROR_FILE"] = ERROR_PATH
    texts = {name: _literal(text) for name, text in env.items()}
    texts |= {name: _expanded(text, values) for name, text in role.env.items()}
    container = {
        "name": CONTAINER,
        **({} if role.entrypoint is None else {"command": [_literal(role.entrypoint)]}),
        "args": [_expanded(arg, values) for arg in role.args],
        "terminationMessagePath": ERROR_PATH if has_container else MESSAGE_PATH,
        **role.container,
    }
    container["env"] = [
        # First, because a value can refer only to earlier variables.
        {"name": _REPLICA, **_field(f"metadata.labels['{Label.INDEX}']")},
        {"name": "LAUNCH_ATTEMPT", **_attempt(role, attempt)},
        {"name": "LAUNCH_DISRUPTIONS", **_field(f"metadata.annotations['{Annotation.IGNORED}']")},
        *([_preemptions(request)] if request.queue is not None and not request.is_group else []),
        *({"name": name, "value": text} for name, text in texts.items()),
        *role.container.get("env", []),
    ]
    pod = {"subdomain": request.app_id, **role.pod}
    if has_container and request.result_image is not None:
        pod, container = with_result(pod, container, request.result_image, request.security)
    pod["containers"] = [container, *role.pod.get("containers", [])]
    return pod


def result_warnings(request: KubernetesRequest) -> list[str]:
    """Return a warning if Kubernetes keeps less of a result than other schedulers, because of other containers."""
    pod = job_body(request, request.roles[0], 0)["spec"]["template"]["spec"]
    containers = len(pod["containers"]) + len(pod.get("initContainers") or [])
    kept = MESSAGE_BYTES // containers
    if request.result_image is not None or kept >= RESULT_LIMIT_BYTES:
        return []
    return [
        (
            f"role {request.roles[0].name!r}: its pods have {containers} containers, so Kubernetes keeps only {kept} "
            f"bytes of a result; option result_image, such as 'busybox:1', adds a container that returns up to "
            f"{LIMIT_BYTES} bytes"
        )
    ]


def _attempt(role: KubernetesRole, attempt: int) -> dict[str, Any]:
    if role.policy == RetryPolicy.REPLICA.value and role.max_retries:
        return _field(f"metadata.annotations['{Annotation.FAILURES}']")
    return {"value": str(attempt)}


def _preemptions(request: KubernetesRequest) -> dict[str, Any]:
    """Return a variable that refers to a ConfigMap, because the pod template cannot change later."""
    source = {"name": request.app_id, "key": _PREEMPTIONS, "optional": True}
    return {"name": "LAUNCH_PREEMPTIONS", "valueFrom": {"configMapKeyRef": source}}


def _field(path: str) -> dict[str, Any]:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def _literal(text: str) -> str:
    """Return the text escaped for Kubernetes, where `$(NAME)` is a reference and `$$` a `$`."""
    return text.replace("$", "$$")


def _expanded(text: str, values: macros.Values) -> str:
    return _literal(values.substitute(text)).replace(_REPLICA_MARK, f"$({_REPLICA})")


def _shown(body: Mapping[str, Any]) -> str:
    return json.dumps(body, indent=2, ensure_ascii=False, default=str)


def refuse_broken_overlays(request: KubernetesRequest) -> None:
    """Refuse overlays that do not fit, or that change fields which the launcher sets.

    Also those that use the replica's number, because a Job has one template for all replicas.
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
        raise InvalidAppError(f"{what}: container {CONTAINER!r} lacks our variables; add to its env, or use role.env")


def _main(template: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    found = [one for one in (template.get("spec") or {}).get("containers") or [] if one.get("name") == CONTAINER]
    if len(found) != 1:
        raise InvalidAppError(
            f"{what}: there must be one container {CONTAINER!r}, which runs the program; "
            f"patch it by JOIN('containers', on='name')"
        )
    container: Mapping[str, Any] = found[0]
    return container
