"""Options of the Docker scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional

from annotated_types import Ge, Le

from airflow_provider_launch.schedulers.structured_opts import ImageWorkspaceOpts, StructuredOpts
from airflow_provider_launch.specs.resources import LATER

APP_NETWORK, SHARED_NETWORK = "app", "launch"


# `Optional` and not `X | None`: the hints are evaluated at run time, and Annotated unions need it on Python 3.10.
@dataclass(frozen=True)
class DockerConnection(StructuredOpts):
    """Options of a connection to a Docker engine."""

    host: Optional[str] = None
    """`unix:///path`, `tcp://host:port` or `ssh://user@host`. None means `DOCKER_HOST`, or the default socket. `tcp://`
    is encrypted only if `tls_ca` or `tls_cert` is given."""

    plaintext: bool = False
    """Whether a remote `tcp://` host may be reached without TLS. All traffic can then be read on the network, and any
    user who reaches that port is root on the engine's host."""

    tls_ca: Optional[str] = None
    """File of the certificate authority that signed the engine's certificate."""

    tls_cert: Optional[str] = None
    """File of the client's certificate, for engines that ask for one; needs `tls_key`."""

    tls_key: Optional[str] = None
    """File of the key of `tls_cert`."""

    tls_verify: Optional[bool] = None
    """Whether the engine's certificate is checked. None means yes if TLS is used; `true` also refuses a host that would
    be reached without TLS."""

    registry: Optional[str] = None
    """Registry of `registry_username` and `registry_password`, as in image names or `docker login`. None means Docker
    Hub."""

    registry_username: Optional[str] = None
    """User for pulls from `registry`; needs `registry_password`."""

    registry_password: Optional[str] = None
    """Password or token for pulls from `registry`."""

    docker_conn_id: Optional[str] = field(default=None, metadata=LATER)
    """Connection of Airflow of type `docker` that has the registry and its login. Options that are set here
    override it."""

    gpus: Optional[list[str]] = None
    """UUIDs or indices of the GPUs of the engine's host that apps may use. None means none."""

    timeout_s: Annotated[float, Ge(1), Le(86400)] = 30.0
    """Timeout of a request in seconds; pulls may take longer."""

    max_time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Maximum `time_limit_s` of a launch, and the default for launches without one. None means that launches need no
    limit."""

    locked: Optional[list[str]] = None
    """Names of launch options that tasks cannot change: the value of the connection is used, or the default. If options
    are locked, tasks cannot use an `overlay`, because it could bypass them."""

    def __post_init__(self) -> None:
        """Refuse GPU names that cannot be stored as a list with commas, and duplicates."""
        gpus = self.gpus or []
        if any(not gpu or gpu != gpu.strip() or "," in gpu for gpu in gpus):
            raise ValueError(f"option 'gpus' needs one GPU in each entry, by UUID or index; {gpus!r} is not accepted")
        if len(set(gpus)) < len(gpus):
            raise ValueError(f"option 'gpus' names a GPU twice: {gpus!r}")


@dataclass(frozen=True)
class _RunOpts(StructuredOpts):
    pull: Literal["missing", "always", "never"] = "missing"
    """When images are pulled: if the engine lacks them, at each launch, or never."""

    copy_env: Optional[list[str]] = None
    """Patterns (`HF_*`) of variables that replicas inherit from the launcher. `AIRFLOW*` and
    `_AIRFLOW*` are never copied."""

    network: Optional[str] = None
    """Network of the replicas: `launch` is shared by all apps and created if missing, `app` is a separate one for the
    app, `none`, `host` and `bridge` are Docker's, any other name must exist. None means `launch` for apps of several
    replicas, which reach each other there by name, and the faster `bridge` for a single replica."""

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

    by_role: Optional[dict[str, dict[str, Any]]] = field(default=None, metadata=LATER)
    """Options of single roles, `{"worker": {"shm_size_mb": 1024}}`. They override those of the launch for the
    containers of that role."""

    labels: Optional[dict[str, str]] = None
    """Labels of the containers, in addition to the launcher's."""

    log_max_mb: Annotated[int, Ge(1)] = 500
    """Size in MB at which the engine starts the next log file of a replica. Lines that are rotated away before they
    were read are lost, so it must be much larger than the output of a replica in some seconds."""

    log_max_files: Annotated[int, Ge(2)] = 3
    """Number of log files kept for each replica; the lines of older ones are lost."""

    grace_s: Annotated[float, Ge(0)] = 10.0
    """Seconds between TERM and KILL when replicas are stopped; whole seconds, rounded up."""

    on_outside_stop: Literal["fail", "accept"] = "fail"
    """The state of a replica that exits with 0 after an outside stop of its container: `fail` means FAILED, `accept`
    means SUCCEEDED."""

    time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Seconds after its submission when the app is ended as FAILED. Its followers enforce this, because the engine has
    no such limit. None means no limit."""

    overlay: Optional[dict[str, Any]] = field(default=None, metadata=LATER)
    """Fields without an option, merged into the body of each container, in the spelling of the engine's API. Merges
    like an overlay `Container` of a role, which is applied after it."""


# The options of workspaces come last in forms and pages.
@dataclass(frozen=True)
class DockerOpts(ImageWorkspaceOpts, _RunOpts):
    """Options of one launch on `docker`."""
