"""Builds the request of an app for Kubernetes, without I/O."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.schedulers._kit.naming import refuse_own_labels, safe_label, safe_label_name, task_labels
from airflow_provider_launch.schedulers._kit.overlays import overlays_of
from airflow_provider_launch.schedulers._kit.request import (
    NOT_STORED,
    AppRequest,
    RoleRequest,
    assign_ports,
    common_fields,
    options_by_role,
    request_from_json,
)
from airflow_provider_launch.schedulers.environment import FIELD_PATH, refuse_equal_port_variables
from airflow_provider_launch.schedulers.kubernetes.naming import Annotation, Label, role_slugs
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesOpts
from airflow_provider_launch.schedulers.kubernetes.overlay import (
    checked_overlay,
    is_template,
    merged,
    on_template,
    pod_template,
)
from airflow_provider_launch.schedulers.kubernetes.result_container import NAME as RESULT_CONTAINER
from airflow_provider_launch.schedulers.result_document import XCOM_PATH
from airflow_provider_launch.schedulers.spec_hash import spec_hash
from airflow_provider_launch.schedulers.structured_opts import ImageWorkspaceOpts
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.named_resources_aws import K8S_ITYPE
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.specs.roles import AppDef, BindMount, DeviceMount, RetryPolicy, Role, VolumeMount
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.util.untrusted import inflate, parse_json

MAIN = "main"
"""Name of the container that runs the program."""
MESSAGE_PATH = XCOM_PATH
"""The replica writes its result or error to this file, and Kubernetes keeps the text in the pod's status.

The kubelet creates the file, and its directory.
"""
OVERLAY_KINDS = ("V1Pod", "V1Job")
"""The kinds of a role's overlays: its pods and its Jobs, in the spelling of Kubernetes."""
_PULL = {"missing": "IfNotPresent", "always": "Always", "never": "Never"}
_LEAST_TTL_S = 60
"""The minimum of option `ttl_s`."""
RECORD_BYTES = 240_000
"""Maximum bytes of a packed request; all annotations of an object may have 262144."""
_MAX_BYTES = 64 * 1024 * 1024
"""Maximum bytes of an unpacked request: a hostile annotation of `RECORD_BYTES` could inflate to 240 MB."""
_MAX_DEPTH = 500
_GPU = "nvidia.com/gpu"
_GIVEN = ("HOSTNAME", "JOB_COMPLETION_INDEX", "KUBERNETES_*")
"""Variables that Kubernetes sets in pods; those of the launcher's own pod must not be copied."""
_OLD_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
"""Names of variables that all versions of Kubernetes accept; exported functions of bash, for example, do not match."""
_CONTAINERS = ("containers", "initContainers")
_OF_APP = frozenset(
    {
        "queue",
        "labels",
        "annotations",
        "on_disruption",
        "success_policy",
        "grace_s",
        "on_outside_stop",
        "sidecar_grace_s",
        "container_logs",
        "result_image",
        "security",
        "time_limit_s",
        "ttl_s",
        "namespace",
        "context",
        *(item.name for item in dataclasses.fields(ImageWorkspaceOpts)),
    }
)
"""Options that cannot differ between roles."""
_DEFAULT = KubernetesOpts()
_RESTRICTED_POD: dict[str, Any] = {"runAsNonRoot": True}
_RESTRICTED_CONTAINER: dict[str, Any] = {"capabilities": {"drop": ["ALL"]}}
"""The fields that `restricted` adds to `auto`. Source: kubernetes.io, Pod Security Standards."""


@dataclass
class KubernetesRole(RoleRequest):
    """A group of equal replicas: one Job for each attempt of the app."""

    container: dict[str, Any]
    """The container without its program and variables, as Kubernetes spells it."""
    pod: dict[str, Any]
    """The spec of the pod without its container."""
    overlays: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Kind to the patch of its object."""
    max_disruptions: int | None = None
    """Restarts of the app after disruptions of this role that are not charged. None: option `on_disruption` decides."""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    """Labels and annotations of a pod template; those of the launch win."""


@dataclass
class KubernetesRequest(AppRequest[KubernetesRole]):
    """All data to run the app, as stored in its record."""

    labels: dict[str, str]
    annotations: dict[str, str]
    queue: str | None
    on_disruption: str
    success_policy: str
    grace_s: int
    ttl_s: int | None
    job: dict[str, Any]
    """Overlay of the specs of the Jobs."""
    service: dict[str, Any]
    """Overlay of the spec of the Service."""
    label_texts: dict[str, str] = field(default_factory=dict)
    """Annotations for texts that are not valid as labels."""
    sidecar_grace_s: float = 30.0
    on_outside_stop: str = "fail"
    has_overlay: bool = False
    """Whether option `overlay` was given."""
    container_logs: list[str] = field(default_factory=list)
    result_image: str | None = None
    """Image of the container that returns the results of the first role."""
    security: str = "none"
    """The option of that name; `restricted` if the namespace requires it."""
    namespace: str | None = None
    context: str | None = None
    """Where the app runs, if the task has chosen it."""
    is_whole: bool = True
    """Whether it has arguments and values of variables; a Service has neither, because more users may read it."""
    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict, metadata=NOT_STORED)
    """Image with a workspace to the (repository, tag) to which it is pushed at submission."""

    @property
    def is_group(self) -> bool:
        """Whether a queue admits all pods of an attempt as one, because the app has more than one Job."""
        return self.queue is not None and (len(self.roles) > 1 or self.restarts)

    @property
    def restarts(self) -> bool:
        """Whether a failure may restart the app."""
        return any(
            role.max_disruptions or (role.policy == RetryPolicy.APPLICATION.value and role.max_retries)
            for role in self.roles
        )


def packed(request: KubernetesRequest, held: Mapping[str, str] | None = None) -> str:
    """Return the request as the text of an annotation.

    `held` are variables that `unpacked` gets too; those of the first role with the same text are left out.
    """
    document = request.to_json()
    own_roles, roles = document["roles"], [{**role} for role in request.app["roles"]]
    # Each variable once: a function and its arguments have up to a megabyte.
    for role, own in zip(roles, own_roles, strict=True):
        if role.get("env") == own["env"]:
            del role["env"]
    for each in (roles[0], own_roles[0]):
        if held and (env := each.get("env")):
            each["env"] = {name: None if held.get(name) == value else value for name, value in env.items()}
    text = json.dumps({**document, "app": {**request.app, "roles": roles}}, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 9)).decode()


def packed_in_job(request: KubernetesRequest, template: Mapping[str, Any]) -> str:
    """Return the request as the text of an annotation of the first Job; `template` is that of its pods.

    A large request leaves out the variables that the template has anyway, so that a megabyte of any text fits.
    """
    text = packed(request)
    return text if len(text) <= RECORD_BYTES else packed(request, variables_in(template))


def restricted(request: KubernetesRequest) -> KubernetesRequest:
    """Return the request with the fields that the Pod Security Standard `restricted` requires; an overlay wins."""
    roles = []
    for role in request.roles:
        pod = {**role.pod, "securityContext": {**_RESTRICTED_POD, **role.pod.get("securityContext", {})}}
        given = role.container.get("securityContext", {})
        container = {**role.container, "securityContext": {**_RESTRICTED_CONTAINER, **given}}
        roles.append(dataclasses.replace(role, pod=pod, container=container))
    return dataclasses.replace(request, roles=roles, security="restricted")


def without_values(request: KubernetesRequest) -> KubernetesRequest:
    """Return the request without arguments and values of variables, which may be secrets."""
    roles = [
        dataclasses.replace(
            role,
            args=[],
            env=dict.fromkeys(role.env, ""),
            copied_env=dict.fromkeys(role.copied_env, ""),
            container=_without_values(role.container),
            overlays={},
            pod={name: _each_without_values(item) if name in _CONTAINERS else item for name, item in role.pod.items()},
        )
        for role in request.roles
    ]
    app = {
        **request.app,
        "roles": [
            {**role, "args": [], "env": dict.fromkeys(role.get("env") or {}, ""), "metadata": {}}
            for role in request.app["roles"]
        ],
    }
    job = {name: item for name, item in request.job.items() if name != "template"}
    return dataclasses.replace(request, roles=roles, app=app, job=job, is_whole=False)


def _each_without_values(containers: object) -> object:
    return [_without_values(each) for each in containers] if isinstance(containers, list) else containers


def _without_values(container: dict[str, Any]) -> dict[str, Any]:
    given = container.get("env")
    env = [{**item, "value": ""} if "value" in item else item for item in given] if isinstance(given, list) else given
    return {**{name: item for name, item in container.items() if name != "args"}, **({"env": env} if given else {})}


def unpacked(text: str, held: Mapping[str, str] | None = None) -> KubernetesRequest:
    """Return the request that `packed` gave; raises one of `UNREADABLE` for anything else."""
    document = parse_json(inflate(base64.b64decode(text), _MAX_BYTES), _MAX_BYTES, _MAX_DEPTH)
    for role, own in zip(document["app"]["roles"], document["roles"], strict=True):
        for each in (role, own):
            for name in [name for name, value in (each.get("env") or {}).items() if value is None]:
                each["env"][name] = (held or {})[name]
        role.setdefault("env", own["env"])
    return request_from_json(KubernetesRequest, KubernetesRole, document)


def variables_in(template: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of the program in the template of a Job's pods, without references to other objects."""
    containers = template["spec"]["containers"]
    variables = (item for one in containers if one["name"] == MAIN for item in one.get("env") or [])
    return {item["name"]: item["value"] for item in variables if "value" in item}


def build_request(app: AppDef, opts: KubernetesOpts, app_id: str, environ: Mapping[str, str]) -> KubernetesRequest:
    """Return the request for `app`, which is left as it is.

    Refuses features that Kubernetes lacks, roles or ports that cannot be distinguished, and apps that are too large.
    """
    refuse_equal_port_variables(app)
    if opts.success_policy == "leader" and app.roles[0].service:
        raise InvalidAppError(
            f"role {app.roles[0].name!r} is a service, but with option success_policy='leader' the app ends with its "
            f"replica 0; leave one of them out"
        )
    overlay = checked_overlay(opts.overlay or {})
    role_opts = options_by_role(app, opts, _OF_APP)
    _refuse_overlays_of_app(opts)
    for given in (opts.labels, opts.annotations):
        refuse_own_labels("options labels and annotations", given, Label.QUEUE, Label.GROUP)
    # The user's labels win.
    labels = {**task_labels(app.metadata), **(opts.labels or {})}
    label_texts = _unlike_labels(labels)
    copied = {name: value for name, value in environ.items() if _OLD_NAME.fullmatch(name)}
    roles = []
    for role, slug in zip(app.roles, role_slugs([role.name for role in app.roles]), strict=True):
        _refuse_unsupported(role)
        roles.append(_role_request(role, slug, role_opts[role.name], copied))
    request = KubernetesRequest(
        app_id=app_id,
        name=app.name,
        spec_hash=spec_hash(app, opts),
        ports=assign_ports(app),
        roles=roles,
        labels={safe_label_name(name): safe_label(value) for name, value in labels.items()},
        label_texts=label_texts,
        annotations={**task_labels(app.metadata), **label_texts, **(opts.annotations or {})},
        queue=opts.queue,
        on_disruption=opts.on_disruption,
        success_policy=opts.success_policy,
        grace_s=math.ceil(opts.grace_s),
        time_limit_s=opts.time_limit_s,
        ttl_s=opts.ttl_s,
        job=overlay.get("job", {}),
        service=overlay.get("service", {}),
        sidecar_grace_s=opts.sidecar_grace_s,
        container_logs=list(opts.container_logs or []),
        result_image=opts.result_image,
        on_outside_stop=opts.on_outside_stop,
        has_overlay=bool(overlay),
        security=opts.security,
        namespace=opts.namespace,
        context=opts.context,
        app=app_to_dict(app),
    )
    _refuse_queued(request)
    _refuse_result_container(request)
    _refuse_ttl(request.job.get("ttlSecondsAfterFinished"))
    return request


def _refuse_overlays_of_app(opts: KubernetesOpts) -> None:
    """Refuse parts of an overlay in `by_role` that do not differ by role."""
    cures = {"job": "use an overlay V1Job of the role", "service": "set it outside of by_role; an app has one Service"}
    for name, given in (opts.by_role or {}).items():
        for kind in sorted(cures.keys() & (given.get("overlay") or {}).keys()):
            raise InvalidAppError(f"option by_role: role {name!r} has overlay.{kind}; {cures[kind]}")


def _role_request(role: Role, slug: str, opts: KubernetesOpts, environ: Mapping[str, str]) -> KubernetesRole:
    overlay = checked_overlay(opts.overlay or {})
    overlays = overlays_of(role, "kubernetes", OVERLAY_KINDS)
    given: str | Mapping[str, Any] | None = opts.pod_template
    if is_template(overlays.get("V1Pod")):
        if given is not None:
            raise InvalidAppError(f"role {role.name!r}: overlay V1Pod and option pod_template are both pods; use one")
        given = overlays.pop("V1Pod")
    template = pod_template(given)
    image = template.image if role.image in {"", NONE} else role.image
    if not image:
        raise InvalidAppError(f"role {role.name!r} has no image, which 'kubernetes' needs; name one")
    plain = Role(role.name, "", resource=Resource(-1, -1, -1))
    main = dict(template.main)
    if role.entrypoint is not None:
        main.pop("command", None)
    if role.entrypoint is not None or role.args:
        main.pop("args", None)
    if kept := [each for each in main.pop("env", None) or [] if each.get("name") not in role.env]:
        main["env"] = kept
    container = on_template(main, _container(dataclasses.replace(role, image=image), opts), _container(plain, _DEFAULT))
    pod = on_template(template.pod, _pod(role, opts), _pod(plain, _DEFAULT))
    texts = {name: text for name, text in role.env.items() if not text.startswith(FIELD_PATH)}
    return KubernetesRole(
        **common_fields(dataclasses.replace(role, env=texts), slug, environ, opts.copy_env, _GIVEN),
        container=merged(container, overlay.get("container", {})),
        pod=merged(pod, overlay.get("pod", {})),
        overlays=overlays,
        max_disruptions=role.max_disruptions,
        labels={safe_label_name(name): safe_label(value) for name, value in template.labels.items()},
        annotations=template.annotations,
    )


def _unlike_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return annotations for labels that had to be changed: their full values and original names."""
    names = {safe_label_name(name): name for name in labels}
    changed = {safe: name for safe, name in names.items() if safe != name}
    texts = {
        safe: labels[name]
        for safe, name in names.items()
        if safe in changed or safe_label(labels[name]) != labels[name]
    }
    return {**texts, **({Annotation.LABEL_NAMES: json.dumps(changed, ensure_ascii=False)} if changed else {})}


# ---- parts of a body -------------------------------------------------------------------------------------------------


def _container(role: Role, opts: KubernetesOpts) -> dict[str, Any]:
    body: dict[str, Any] = {"image": role.image, "imagePullPolicy": _PULL[opts.pull]}
    if resources := _resources(role.resource):
        body["resources"] = resources
    if opts.working_dir:
        body["workingDir"] = opts.working_dir
    if opts.security != "none":
        body["securityContext"] = {"allowPrivilegeEscalation": False}
    if opts.security == "restricted":
        body["securityContext"] |= _RESTRICTED_CONTAINER
    mounts = [
        {"name": f"mount-{number}", "mountPath": mount.dst_path, "readOnly": mount.read_only}
        for number, mount in enumerate(role.mounts)
        if not isinstance(mount, DeviceMount)
    ]
    if opts.shm_size_mb:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - in the container
    mounts += opts.volume_mounts or []
    if mounts:
        body["volumeMounts"] = mounts
    if opts.ports:
        body["ports"] = opts.ports
    return {**body, **_variables(role, opts)}


def _cpus(number: float) -> str:
    """Return a number of CPUs as Kubernetes writes it; its smallest unit is a thousandth."""
    milli = math.ceil(round(number * 1000, 6))
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def _resources(resource: Resource) -> dict[str, dict[str, str]]:
    limits: dict[str, str] = {}
    if resource.cpu > 0:
        limits["cpu"] = _cpus(resource.cpu)
    if resource.memMB > 0:
        limits["memory"] = f"{resource.memMB}Mi"
    if resource.gpu > 0:
        limits[_GPU] = str(resource.gpu)
    limits |= {name: str(count) for name, count in resource.devices.items()}
    # Without requests Kubernetes reserves the limits.
    requests: dict[str, str] = {}
    if resource.cpu_request:
        requests["cpu"] = _cpus(resource.cpu_request)
    if resource.memMB_request:
        requests["memory"] = f"{resource.memMB_request}Mi"
    return {name: part for name, part in (("limits", limits), ("requests", requests)) if part}


def _variables(role: Role, opts: KubernetesOpts) -> dict[str, Any]:
    """Return the variables that come from fields of the pod, Secrets and ConfigMaps."""
    env = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": text.removeprefix(FIELD_PATH)}}}
        for name, text in role.env.items()
        if text.startswith(FIELD_PATH)
    ]
    env += [_variable(role, "env_secrets", "Secret", *each) for each in (opts.env_secrets or {}).items()]
    env += [_variable(role, "env_configmaps", "ConfigMap", *each) for each in (opts.env_configmaps or {}).items()]
    env_from = [{"configMapRef": {"name": name}} for name in opts.env_from_configmaps or []]
    env_from += [{"secretRef": {"name": name}} for name in opts.env_from_secrets or []]
    return {name: value for name, value in (("env", env), ("envFrom", env_from)) if value}


def _variable(role: Role, option: str, kind: str, name: str, source: str) -> dict[str, Any]:
    owner, _, key = source.partition("/")
    if not (owner and key):
        raise InvalidAppError(
            f"option {option}: {name} must name a {kind} and its key, such as 'training/token'; add the key"
        )
    if name in role.env:
        raise InvalidAppError(f"role {role.name!r}: {name} is in its env and in option {option}; give it once")
    if name.startswith("LAUNCH_"):
        raise InvalidAppError(f"option {option}: variable {name} is set by the launcher; rename it")
    reference = {"Secret": "secretKeyRef", "ConfigMap": "configMapKeyRef"}[kind]
    return {"name": name, "valueFrom": {reference: {"name": owner, "key": key}}}


def _pod(role: Role, opts: KubernetesOpts) -> dict[str, Any]:
    body: dict[str, Any] = {
        "restartPolicy": "Never",  # a pod for each attempt, so that all logs are kept
        "terminationGracePeriodSeconds": math.ceil(opts.grace_s),
        # Variables for each Service of the namespace would make the environment differ from day to day.
        "enableServiceLinks": False,
        "automountServiceAccountToken": opts.service_account is not None,
    }
    if opts.init:
        body["shareProcessNamespace"] = True
    selector = dict(opts.node_selector or {})
    if instance := role.resource.capabilities.get(K8S_ITYPE):
        selector.setdefault(K8S_ITYPE, str(instance))
    if selector:
        body["nodeSelector"] = selector
    given = {
        "securityContext": _security(opts),
        "serviceAccountName": opts.service_account,
        "priorityClassName": opts.priority_class,
        "tolerations": opts.tolerations,
        "affinity": opts.affinity,
        "imagePullSecrets": [_pull_secret(given) for given in opts.image_pull_secrets or []],
        "initContainers": _side_containers("init_containers", opts.init_containers),
        "containers": _side_containers("sidecars", opts.sidecars),
        "hostAliases": opts.host_aliases,
        "runtimeClassName": opts.runtime_class,
    }
    body |= {name: value for name, value in given.items() if value}
    if volumes := _volumes(role, opts):
        body["volumes"] = volumes
    return body


def _pull_secret(given: str | Mapping[str, str]) -> dict[str, str]:
    if isinstance(given, str):
        return {"name": given}
    if given.keys() != {"name"}:
        raise InvalidAppError(
            f"option image_pull_secrets: an object has the fields {', '.join(sorted(given)) or '(none)'}; "
            f"it needs 'name' and nothing else"
        )
    return dict(given)


def _side_containers(option: str, given: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return further containers of a pod; refuse one that would be mistaken for that of the program."""
    for each in given or []:
        if not each.get("name") or each["name"] == MAIN:
            raise InvalidAppError(
                f"option {option}: a container is named {each.get('name')!r}; give it a name other than {MAIN!r}, "
                f"which is the container of the program"
            )
    return given


def _security(opts: KubernetesOpts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if opts.security != "none":
        found = {"seccompProfile": {"type": "RuntimeDefault"}}
    if opts.security == "restricted":
        found |= _RESTRICTED_POD
    if opts.run_as_user is not None:
        found["runAsUser"] = opts.run_as_user
    return found


def _volumes(role: Role, opts: KubernetesOpts) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = []
    for number, mount in enumerate(role.mounts):
        if isinstance(mount, BindMount):
            volumes.append({"name": f"mount-{number}", "hostPath": {"path": mount.src_path}})
        elif isinstance(mount, VolumeMount):
            claim = {"claimName": mount.src, "readOnly": mount.read_only}
            volumes.append({"name": f"mount-{number}", "persistentVolumeClaim": claim})
    volumes += opts.volumes or []
    if opts.shm_size_mb:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{opts.shm_size_mb}Mi"}})
    return volumes


# ---- refusals --------------------------------------------------------------------------------------------------------


def _refuse_unsupported(role: Role) -> None:
    if role.max_disruptions and role.max_retries and RetryPolicy(role.retry_policy) is RetryPolicy.REPLICA:
        raise UnsupportedError(
            f"role {role.name!r}: max_disruptions restarts the whole app on 'kubernetes', which does not fit "
            f"retry_policy REPLICA; use APPLICATION, or leave max_disruptions out, so that disruptions restart only "
            f"the replica, without a bound"
        )
    for name in role.env:
        if not (name.isascii() and name.isprintable()):
            raise InvalidAppError(
                f"role {role.name!r}: env: {name!r} cannot name a variable on 'kubernetes'; use printable ASCII"
            )
    if unknown := [name for name in role.resource.devices if "/" not in name]:
        raise UnsupportedError(
            f"role {role.name!r}: resource.devices ({', '.join(unknown)}) are not valid resources of a device plugin "
            f"of 'kubernetes'; use the plugin's spelling, such as 'vpc.amazonaws.com/efa'"
        )


def _refuse_queued(request: KubernetesRequest) -> None:
    if not request.is_group:
        return
    for role in request.roles:
        if role.policy == RetryPolicy.REPLICA.value and role.max_retries:
            raise UnsupportedError(
                f"role {role.name!r} has REPLICA retries, but with option queue 'kubernetes' admits the pods of an app "
                f"of several roles as one and cannot replace a single pod; use APPLICATION retries, or no queue"
            )


def _refuse_result_container(request: KubernetesRequest) -> None:
    """Refuse another container of this name, and showing its lines, which hold the result."""
    if RESULT_CONTAINER in request.container_logs:
        raise InvalidAppError(
            f"option container_logs: {RESULT_CONTAINER!r} is the container of option result_image, whose lines are "
            f"never shown; leave it out"
        )
    for role in request.roles:
        for kind in _CONTAINERS:
            if RESULT_CONTAINER in [each.get("name") for each in role.pod.get(kind) or []]:
                raise InvalidAppError(
                    f"role {role.name!r}: a container is named {RESULT_CONTAINER!r}, as that of option result_image; "
                    f"rename it"
                )


def _refuse_ttl(ttl_s: object) -> None:
    """Refuse an invalid TTL, which the server's dry run misses if the TTL is set only at the end of the app."""
    if ttl_s is not None and (type(ttl_s) is not int or ttl_s < _LEAST_TTL_S):
        raise InvalidAppError(
            f"option overlay: job.ttlSecondsAfterFinished must be a whole number of seconds, {_LEAST_TTL_S} or more, "
            f"else the app may be removed before its end is seen; use option ttl_s"
        )
