"""Options of the Docker scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Optional

from annotated_types import Ge, Le

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts
from airflow_provider_launch.schedulers.workspace_opts import ImageWorkspaceOpts

APP_NETWORK, SHARED_NETWORK = "app", "launch"


# `Optional` and not `X | None`: the hints are evaluated at run time, and Annotated unions need it on Python 3.10.
@dataclass(frozen=True)
class DockerConnection(StructuredOpts):
    """Which Docker engine, and how it is reached."""

    host: Optional[str] = None
    """`unix:///path`, `tcp://host:port` or `ssh://user@host`. None means `DOCKER_HOST`, or the default socket. `tcp://`
    is encrypted only where `tls_ca` or `tls_cert` is given."""

    plaintext: bool = False
    """Whether a `tcp://` host beyond this one may be reached without TLS. All that is sent can then be read on its way,
    and a user who reaches that port is root on the engine's host."""

    tls_ca: Optional[str] = None
    """File of the certificate authority that signed the engine's certificate."""

    tls_cert: Optional[str] = None
    """File of the client's certificate, for engines that ask for one; `tls_key` belongs to it."""

    tls_key: Optional[str] = None
    """File of the key of `tls_cert`."""

    tls_verify: Optional[bool] = None
    """Whether the engine's certificate is checked. None means that it is, where TLS is used; with `true` a host that
    would be reached without TLS is refused."""

    registry: Optional[str] = None
    """Registry that `registry_username` and `registry_password` are for, as it stands before the image's name or in
    `docker login`. None means Docker Hub."""

    registry_username: Optional[str] = None
    """User for pulls from `registry`; `registry_password` belongs to it."""

    registry_password: Optional[str] = None
    """Password or token for pulls from `registry`."""

    gpus: Optional[list[str]] = None
    """UUIDs or indices of the GPUs of the engine's host that apps may use. None means none."""

    timeout_s: Annotated[float, Ge(1), Le(86400)] = 30.0
    """Seconds after which a request without an answer is given up; pulls may take longer."""

    max_time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """The longest `time_limit_s` that a launch may ask for, and the limit of one that asks for none. None means that
    launches need no limit."""

    locked: Optional[list[str]] = None
    """Names of launch options that tasks cannot change: the value here holds, or the default. Where some are locked, no
    task gives an `overlay`, which reaches past them."""

    def __post_init__(self) -> None:
        """Refuse GPUs that cannot be distinguished; which an app has is kept as one text with commas."""
        gpus = self.gpus or []
        if any(not gpu or gpu != gpu.strip() or "," in gpu for gpu in gpus):
            raise ValueError(f"option 'gpus' names one GPU in each entry, by UUID or index; {gpus!r} is not accepted")
        if len(set(gpus)) < len(gpus):
            raise ValueError(f"option 'gpus' names a GPU twice: {gpus!r}")


@dataclass(frozen=True)
class _RunOpts(StructuredOpts):
    pull: Literal["missing", "always", "never"] = "missing"
    """When images are pulled: where the engine lacks them, at each launch, or never."""

    copy_env: Optional[list[str]] = None
    """Patterns (`HF_*`) of variables that replicas inherit from the launcher. `AIRFLOW*` and
    `_AIRFLOW*` are never copied."""

    network: Optional[str] = None
    """Network of the replicas: `launch` is shared by all apps and made if missing, `app` gives the app one of its own,
    `none`, `host` and `bridge` are Docker's, any other name must exist. None means `launch` for apps of several
    replicas, which find each other there by name, and the faster `bridge` for one alone."""

    user: Optional[str] = None
    """User, or `user:group`, that runs the program. None means the image's own."""

    working_dir: Optional[str] = None
    """Directory in which replicas start. None means the image's own."""

    privileged: bool = False
    """Whether replicas get all rights on the host."""

    init: bool = True
    """Whether Docker's init is process 1, so that signals reach the program and zombie processes are reaped."""

    platform: Optional[str] = None
    """Platform of the image, such as `linux/arm64`. None means the engine's own."""

    extra_hosts: Optional[dict[str, str]] = None
    """Host names and their addresses, added to the replicas' `/etc/hosts`."""

    ulimits: Optional[dict[str, str]] = None
    """Limits by name: `soft:hard`, or one number for both; `{"nofile": "1024:4096"}`."""

    shm_size_mb: Optional[Annotated[int, Ge(1)]] = None
    """Size of `/dev/shm` in MB. None means the engine's default, which is 64."""

    labels: Optional[dict[str, str]] = None
    """Labels of the containers, beside the launcher's."""

    log_max_mb: Annotated[int, Ge(1)] = 500
    """Size in MB at which the engine begins the next log file of a replica. Lines that are rotated away before they
    were read are lost, so it must be large compared to what a replica writes in some seconds."""

    log_max_files: Annotated[int, Ge(2)] = 3
    """Log files kept for each replica; the lines of older ones are lost."""

    grace_s: Annotated[float, Ge(0)] = 10.0
    """Seconds between TERM and KILL when replicas are stopped; whole seconds, rounded up."""

    on_outside_stop: Literal["fail", "accept"] = "fail"
    """What it means when a program ends with 0 because somebody else has stopped its container: a failure, or what the
    exit code shows."""

    time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Seconds after which the app is ended as FAILED, counted from its submission, by its followers: the engine
    itself has no such limit. None means no limit."""


# The options of workspaces come last in forms and pages.
@dataclass(frozen=True)
class DockerOpts(ImageWorkspaceOpts, _RunOpts):
    """How one launch runs in containers."""
