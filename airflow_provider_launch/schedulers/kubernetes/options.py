"""Options of the Kubernetes scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

from annotated_types import Ge

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts
from airflow_provider_launch.schedulers.workspace_opts import ImageWorkspaceOpts


# `Optional` and not `X | None`: the hints are evaluated at run time, and Annotated unions need it on Python 3.10.
@dataclass(frozen=True)
class KubernetesConnection(StructuredOpts):
    """Which cluster and namespace, and how it is reached."""

    namespace: Optional[str] = None
    """Namespace of the apps. None means that of the kubeconfig's context or of the pod we run in, else `default`."""

    in_cluster: Optional[bool] = None
    """Whether the service account of the pod we run in is used. None means: if there is one and neither a kubeconfig
    nor a context is given."""

    kubeconfig_path: Optional[str] = None
    """File of the kubeconfig. None means `KUBECONFIG`, or `~/.kube/config`."""

    kubeconfig_secret: Optional[str] = None
    """The kubeconfig itself, as JSON on one line (`kubectl config view --raw --minify --flatten -o json`) or as base64;
    YAML only where line breaks are kept, which the form does not. Hidden in the form and in logs."""

    context: Optional[str] = None
    """Context of the kubeconfig. None means its current one."""

    timeout_s: Annotated[float, Ge(1)] = 30.0
    """Seconds after which a request without an answer is given up."""

    max_time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """The longest `time_limit_s` that a launch may ask for, and the limit of one that asks for none. None means that
    launches need no limit."""

    locked: Optional[list[str]] = None
    """Names of launch options that tasks cannot change: the value here holds, or the default. Where some are locked, no
    task gives an `overlay`, which reaches past them."""


@dataclass(frozen=True)
class _RunOpts(StructuredOpts):
    pull: Literal["missing", "always", "never"] = "missing"
    """When nodes pull the image: where they lack it, for each pod, or never."""

    image_pull_secrets: Optional[list[str]] = None
    """Names of the secrets with which nodes pull images."""

    copy_env: Optional[list[str]] = None
    """Patterns (`HF_*`) of variables that replicas inherit from the launcher. `AIRFLOW*` and
    `_AIRFLOW*` are never copied."""

    env_secrets: Optional[dict[str, str]] = None
    """Variables from Secrets of the namespace, `{"HF_TOKEN": "training/token"}`: name of the Secret and its key. The
    launcher never has the values."""

    env_from_secrets: Optional[list[str]] = None
    """Names of Secrets of which each key becomes a variable; other variables of the same name win."""

    service_account: Optional[str] = None
    """Service account of the pods. None means the namespace's default; its token is mounted only if one is named."""

    security: Literal["auto", "restricted", "none"] = "auto"
    """`auto` sets what every image can run with: the runtime's seccomp profile, and no privileges beyond those at the
    start of the program; in a namespace that enforces the Pod Security Standard `restricted` it is `restricted`. That
    also refuses root and drops all capabilities. `none` sets nothing, so the cluster's defaults hold."""

    run_as_user: Optional[Annotated[int, Ge(0)]] = None
    """Number of the user that runs the program. None means the image's own, which `restricted` requires to be a number
    other than 0."""

    working_dir: Optional[str] = None
    """Directory in which replicas start. None means the image's own."""

    init: bool = True
    """Whether a process of Kubernetes is process 1 of the pod, so that signals reach the program and zombie processes
    are reaped."""

    shm_size_mb: Optional[Annotated[int, Ge(1)]] = None
    """Size of `/dev/shm` in MB; it counts as memory of the pod. None means the runtime's default, mostly 64."""

    node_selector: Optional[dict[str, str]] = None
    """Labels that a node must have."""

    tolerations: Optional[list[dict[str, Any]]] = None
    """Tolerations, as in the spec of a pod."""

    affinity: Optional[dict[str, Any]] = None
    """Affinities, as in a pod."""

    priority_class: Optional[str] = None
    """Priority class of the pods."""

    queue: Optional[str] = None
    """Local queue of Kueue, which then decides when the app starts: of an app of several roles, or with APPLICATION
    retries, all pods or none, which needs Kueue's integration `pod`."""

    labels: Optional[dict[str, str]] = None
    """Labels of the Service, the Jobs and the pods, beside the launcher's. A name or value that Kubernetes does not
    take is changed; an annotation of that name has the value whole."""

    annotations: Optional[dict[str, str]] = None
    """Annotations of the Jobs and pods, beside the launcher's."""

    on_disruption: Literal["retry", "fail"] = "retry"
    """What an eviction, a drain or a preemption means: another attempt that is not charged, or a failure. The other
    attempt is one of the replica; of the whole app, where a queue admits all of it as one."""

    success_policy: Literal["all", "leader"] = "all"
    """When the app has succeeded: when all replicas have, or when replica 0 of the first role has. Kubernetes then
    removes the others of its role, with their logs; those of other roles are stopped by the followers of the app. A
    replica that fails before the leader has ended fails the app."""

    grace_s: Annotated[float, Ge(0)] = 10.0
    """Seconds between TERM and KILL when replicas are stopped; whole seconds, rounded up."""

    on_outside_stop: Literal["fail", "accept"] = "fail"
    """What it means when a program ends with 0 because its pod was deleted or evicted: a failure, or what the exit code
    shows."""

    sidecar_grace_s: Annotated[float, Ge(0)] = 30.0
    """Seconds for which other containers of a pod may run once its program has ended; then the pod is stopped, and the
    exit code of the program counts. Native sidecars are stopped by Kubernetes at once."""

    container_logs: Optional[list[str]] = None
    """Names of init containers and sidecars whose logs are shown, too, as `[role/k name]`."""

    time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Seconds after which the app is ended as FAILED, counted from its start: by its followers, and a minute after
    its grace by Kubernetes itself. None means no limit."""

    ttl_s: Optional[Annotated[int, Ge(60)]] = 86400
    """Seconds for which an ended app stays readable, with its logs as far as the nodes keep them, unless it is deleted
    before. None means until it is deleted."""

    overlay: Optional[dict[str, Any]] = None
    """Fields that have no option, merged into what is sent: `pod`, `container`, `job` and `service` hold parts of their
    specs, as Kubernetes spells them. Objects merge, lists are appended to, null removes."""


# The options of workspaces come last in forms and pages.
@dataclass(frozen=True)
class KubernetesOpts(ImageWorkspaceOpts, _RunOpts):
    """How one launch runs in pods."""
