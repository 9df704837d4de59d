"""Options of the Kubernetes scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional, Union

from annotated_types import Ge

from airflow_provider_launch.schedulers.structured_opts import ImageWorkspaceOpts, StructuredOpts
from airflow_provider_launch.specs.resources import LATER


# `Optional` and not `X | None`: the hints are evaluated at run time, and Annotated unions need it on Python 3.10.
@dataclass(frozen=True)
class KubernetesConnection(StructuredOpts):
    """The cluster and namespace, and how they are reached."""

    namespace: Optional[str] = None
    """Namespace of the apps. None means the namespace of the kubeconfig's context or of Airflow's own pod, else
    `default`."""

    in_cluster: Optional[bool] = None
    """Whether to use the service account of Airflow's own pod. None means to use it if there is one and neither a
    kubeconfig nor a context is given."""

    kubeconfig_path: Optional[str] = None
    """File of the kubeconfig. None means `KUBECONFIG`, or `~/.kube/config`."""

    kubeconfig_secret: Optional[str] = None
    """The kubeconfig itself, as JSON on one line (`kubectl config view --raw --minify --flatten -o json`) or as base64;
    YAML only where line breaks are kept, which the form does not. Hidden in the form and in logs."""

    context: Optional[str] = None
    """Context of the kubeconfig. None means its current one."""

    kubernetes_conn_id: Optional[str] = field(default=None, metadata=LATER)
    """Connection of Airflow of type `kubernetes` that has the cluster, its credentials and the
    namespace. Options that are set here override it."""

    namespaces: Optional[list[str]] = field(default=None, metadata=LATER)
    """Further namespaces, from which tasks choose by option `namespace`. None means that all apps run in the namespace
    of the connection. The permissions are needed in each of them."""

    contexts: Optional[list[str]] = field(default=None, metadata=LATER)
    """Further contexts of the kubeconfig, from which tasks choose by option `context`. Each of them needs all
    `namespaces`."""

    timeout_s: Annotated[float, Ge(1)] = 30.0
    """Seconds after which a request without an answer fails."""

    max_time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Maximum `time_limit_s` of a launch, and the default for launches without one. None means that launches need no
    limit."""

    locked: Optional[list[str]] = None
    """Names of launch options that tasks cannot change: the value of the connection applies, or the default. If any
    option is locked, tasks cannot use `overlay`, because it could change locked options."""


@dataclass(frozen=True)
class _RunOpts(StructuredOpts):
    pull: Literal["missing", "always", "never"] = "missing"
    """When nodes pull the image: if they lack it, for each pod, or never."""

    image_pull_secrets: Optional[list[Union[str, dict[str, str]]]] = None
    """Names of the secrets with which nodes pull images, or objects with the field `name`."""

    copy_env: Optional[list[str]] = None
    """Patterns (`HF_*`) of variables that replicas inherit from the launcher. `AIRFLOW*` and
    `_AIRFLOW*` are never copied."""

    env_secrets: Optional[dict[str, str]] = None
    """Variables from Secrets of the namespace, `{"HF_TOKEN": "training/token"}`: name of the Secret and its key. The
    launcher never reads the values."""

    env_from_secrets: Optional[list[str]] = None
    """Names of Secrets whose keys all become variables; other variables of the same name win."""

    env_configmaps: Optional[dict[str, str]] = field(default=None, metadata=LATER)
    """Variables from ConfigMaps of the namespace, `{"MODE": "settings/mode"}`: name of the ConfigMap and its key."""

    env_from_configmaps: Optional[list[str]] = field(default=None, metadata=LATER)
    """Names of ConfigMaps whose keys all become variables; other variables of the same name win."""

    service_account: Optional[str] = None
    """Service account of the pods. None means the namespace's default; its token is mounted only if one is named."""

    security: Literal["auto", "restricted", "none"] = "auto"
    """`auto` sets only restrictions that every image can run with: the runtime's seccomp profile, and no privileges
    beyond those at the start of the program. In a namespace that enforces the Pod Security Standard `restricted`,
    `auto` means `restricted`, which also refuses root and drops all capabilities. `none` sets nothing, so the
    cluster's defaults apply."""

    run_as_user: Optional[Annotated[int, Ge(0)]] = None
    """User id that runs the program. None means the user of the image, which must be a number other than 0 with
    `restricted`."""

    working_dir: Optional[str] = None
    """Directory in which replicas start. None means the working directory of the image."""

    init: bool = True
    """Whether a process of Kubernetes is process 1 of the pod, so that signals reach the program and zombie processes
    are reaped."""

    shm_size_mb: Optional[Annotated[int, Ge(1)]] = None
    """Size of `/dev/shm` in MB; it counts as memory of the pod. None means the runtime's default, usually 64."""

    node_selector: Optional[dict[str, str]] = None
    """Labels that a node must have."""

    tolerations: Optional[list[dict[str, Any]]] = None
    """Tolerations, as in the spec of a pod."""

    affinity: Optional[dict[str, Any]] = None
    """Affinities, as in a pod."""

    priority_class: Optional[str] = None
    """Priority class of the pods."""

    queue: Optional[str] = None
    """Local queue of Kueue, which decides when the app starts. For an app with several roles or APPLICATION retries
    Kueue admits all pods or none; this needs its integration `pod`."""

    labels: Optional[dict[str, str]] = None
    """Labels of the Service, the Jobs and the pods, in addition to the launcher's. A name or value that is not valid in
    Kubernetes is changed; an annotation of that name has the full value."""

    annotations: Optional[dict[str, str]] = None
    """Annotations of the Jobs and pods, in addition to the launcher's."""

    on_disruption: Literal["retry", "fail"] = "retry"
    """Effect of an eviction, a drain or a preemption: another attempt that is not charged, or a failure. Usually only
    the replica is attempted again; if a queue admits the app as one, the whole app is."""

    success_policy: Literal["all", "leader"] = "all"
    """When the app has succeeded: when all roles that are not services have, or when replica 0 of the first role has.
    `leader` is short for `service=True` in all roles but the first; Kubernetes also removes the other replicas of the
    first role, with their logs. A replica that fails before the leader has ended fails the app."""

    grace_s: Annotated[float, Ge(0)] = 10.0
    """Seconds between TERM and KILL when replicas are stopped; whole seconds, rounded up."""

    on_outside_stop: Literal["fail", "accept"] = "fail"
    """Whether a program that ends with 0 because its pod was deleted or evicted has failed (`fail`) or succeeded
    (`accept`)."""

    sidecar_grace_s: Annotated[float, Ge(0)] = 30.0
    """Seconds for which other containers of a pod may run after its program has ended. Then the pod is stopped, and the
    exit code of the program counts. Kubernetes stops native sidecars at once."""

    volumes: Optional[list[dict[str, Any]]] = field(default=None, metadata=LATER)
    """Volumes of the pods, as in the spec of a pod: `emptyDir`, `configMap`, `secret`, `persistentVolumeClaim`,
    `projected` and others. `volume_mounts` mounts them."""

    volume_mounts: Optional[list[dict[str, Any]]] = field(default=None, metadata=LATER)
    """Mounts of `volumes` in the program's container, as in a container: `name`, `mountPath`, `subPath`, `readOnly`."""

    init_containers: Optional[list[dict[str, Any]]] = field(default=None, metadata=LATER)
    """Containers that run before the program, as in the spec of a pod. `container_logs` shows their lines."""

    sidecars: Optional[list[dict[str, Any]]] = field(default=None, metadata=LATER)
    """Containers that run next to the program, as in the spec of a pod. They are stopped `sidecar_grace_s` after it.
    `container_logs` shows their lines."""

    host_aliases: Optional[list[dict[str, Any]]] = field(default=None, metadata=LATER)
    """Lines of `/etc/hosts` of the pods: `{"ip": "10.1.2.3", "hostnames": ["db"]}`."""

    ports: Optional[list[dict[str, Any]]] = field(default=None, metadata=LATER)
    """Ports that the program's container declares, as in a container: `{"name": "http", "containerPort": 8080}`."""

    result_image: Optional[str] = field(default=None, metadata=LATER)
    """Image of a small container that returns results of up to 64 KB from pods with any number of containers, such as
    `busybox:1`; it needs a shell and the programs of busybox or coreutils. None means that results are termination
    messages: 4 KB, or less if a pod has more than three containers."""

    runtime_class: Optional[str] = field(default=None, metadata=LATER)
    """Runtime class of the pods, such as `nvidia` or `gvisor`."""

    pod_template: Optional[Union[str, dict[str, Any]]] = field(
        default=None, metadata={**LATER, "json_schema": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
    )
    """A pod with `kind: Pod`, as an object or as the path of a file, relative to the DAG file and rendered like the
    DAG. Its container `base`, or its only one, becomes the container of the program. The role and other options
    override its fields; lists are joined."""

    by_role: Optional[dict[str, dict[str, Any]]] = field(default=None, metadata=LATER)
    """Options of single roles, `{"worker": {"tolerations": [...]}}`. They override those of the launch for the pods of
    that role."""

    container_logs: Optional[list[str]] = None
    """Names of init containers and sidecars whose logs are shown, too, as `[role/k name]`."""

    time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Seconds from the start of the app after which its followers end it as FAILED. If none is left, Kubernetes ends it
    a minute after the grace. None means no limit."""

    ttl_s: Optional[Annotated[int, Ge(60)]] = 86400
    """Seconds for which an ended app stays readable, with the logs that the nodes still have, unless it is deleted
    earlier. None means until it is deleted."""

    namespace: Optional[str] = field(default=None, metadata=LATER)
    """Namespace of the app, one of `namespaces` of the connection. None means that of the connection."""

    context: Optional[str] = field(default=None, metadata=LATER)
    """Context of the kubeconfig, one of `contexts` of the connection. None means that of the connection."""

    overlay: Optional[dict[str, Any]] = None
    """Fields without an option, merged into the request: `pod`, `container`, `job` and `service` hold parts of their
    specs, in the spelling of Kubernetes. Objects merge, lists are appended to, null removes."""


# The options of workspaces come last in forms and pages.
@dataclass(frozen=True)
class KubernetesOpts(ImageWorkspaceOpts, _RunOpts):
    """Options of one launch on Kubernetes."""
