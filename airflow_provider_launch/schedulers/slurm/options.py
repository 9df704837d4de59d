"""Options of the Slurm scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

from annotated_types import Ge

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts
from airflow_provider_launch.schedulers.workspace_opts import WorkspaceOpts


# `Optional` and not `X | None`: the hints are evaluated at run time, and Annotated unions need it on Python 3.10.
@dataclass(frozen=True)
class SlurmConnection(StructuredOpts):
    """Which Slurm cluster, and how it is reached."""

    root: str = "~/.launch/slurm"
    """Directory of apps and logs that login node and compute nodes share: an absolute path, or one below `~`."""

    mount: Optional[str] = None
    """Where the worker itself has `root` mounted; logs are then read there, and not over ssh."""

    ssh_host: Optional[str] = None
    """Login node that is reached by ssh. None means that the worker has the commands of Slurm itself."""

    ssh_port: Annotated[int, Ge(1)] = 22
    """Port of the ssh server."""

    ssh_user: Optional[str] = None
    """User on the login node. None means that of the worker."""

    ssh_key_file: Optional[str] = None
    """File of the private key. None means the keys of the user's agent and of `~/.ssh`."""

    ssh_key_secret: Optional[str] = None
    """The private key itself, as text. Hidden in the form and in logs."""

    ssh_key_password: Optional[str] = None
    """Passphrase of the private key."""

    ssh_password: Optional[str] = None
    """Password of the user, where the login node takes one."""

    ssh_host_key: Optional[str] = None
    """Key of the ssh server, `ssh-ed25519 AAAA...`. None means that `known_hosts` of the worker's user has it. A server
    that cannot prove this key is refused."""

    ssh_jump_host: Optional[str] = None
    """Host through which the login node is reached, `user@host:port`; it takes the same key."""

    ssh_jump_host_key: Optional[str] = None
    """Key of `ssh_jump_host`, as `ssh_host_key`."""

    slurm_bin: Optional[str] = None
    """Directory of `sbatch` and the others, where it is not on the path."""

    slurm_conf: Optional[str] = None
    """Configuration file of the cluster. None means Slurm's own."""

    timeout_s: Annotated[float, Ge(1)] = 30.0
    """Seconds after which a command without an answer is given up."""

    settle_s: Annotated[float, Ge(0)] = 10.0
    """Seconds that files of a node may need until they are seen on the login node; an app whose end Slurm reports
    stays RUNNING for that long if its own record of the end is missing. NFS may need 60."""

    test_node: bool = False
    """Whether the test of the connection also lets a node write a file, by a job of some seconds."""

    keep_days: Annotated[int, Ge(0)] = 14
    """Days after which the directory of a finished app is removed."""

    max_time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """The longest `time_limit_s` that a launch may ask for, and the limit of one that asks for none. None means that
    launches need no limit."""

    locked: Optional[list[str]] = None
    """Names of launch options that tasks cannot change: the value here holds, or the default. Where some are locked, no
    task gives an `overlay`, which reaches past them."""

    def __post_init__(self) -> None:
        """Refuse paths that would be other places in other processes."""
        for name, path in (("root", self.root), ("mount", self.mount)):
            if path is not None and not path.startswith(("/", "~/")):
                raise ValueError(f"option {name!r} must be an absolute path, not {path!r}; write where it begins")
            if path is not None and any(letter in path for letter in "\n\r\0"):
                raise ValueError(f"option {name!r} holds a line feed; remove it")


@dataclass(frozen=True)
class _RunOpts(StructuredOpts):
    partition: Optional[str] = None
    """Partition, or several with commas between. None means the cluster's default."""

    account: Optional[str] = None
    """Account that is charged."""

    qos: Optional[str] = None
    """Quality of service."""

    reservation: Optional[str] = None
    """Reservation whose nodes are used."""

    constraint: Optional[str] = None
    """Features that nodes must have, as `sbatch --constraint` spells them."""

    nodelist: Optional[str] = None
    """Nodes that must be part of the job."""

    exclude: Optional[str] = None
    """Nodes that must not be part of the job."""

    exclusive: bool = False
    """Whether no other job shares the nodes."""

    gpu_type: Optional[str] = None
    """Type of the GPUs, such as `a100`. None means any."""

    comment: Optional[str] = None
    """Text that the comment of the job ends with."""

    mail_user: Optional[str] = None
    """Who gets mail about the job."""

    mail_type: Optional[str] = None
    """Events about which mail is sent, such as `END,FAIL`."""

    container: Optional[Literal["apptainer", "pyxis"]] = None
    """What runs `image` as a container, where the site has it; pyxis needs bash in the image. None means that `image`
    is a directory of the cluster, in which replicas start, or empty."""

    container_mounts: Optional[list[str]] = None
    """Directories of the nodes in the container, `/data:/data:ro`."""

    setup: Optional[list[str]] = None
    """Lines of bash before the program, in a login shell: `module load cuda`, `conda activate train`."""

    on_setup_failure: Literal["fail", "continue"] = "fail"
    """What a line of `setup` that ends with another code than 0 means: the replica fails, with the line in its error,
    or the program starts all the same."""

    copy_env: Optional[list[str]] = None
    """Patterns (`HF_*`) of variables that replicas inherit from the launcher. `AIRFLOW*` is never copied."""

    working_dir: Optional[str] = None
    """Directory in which replicas start. None means the image directory, or the home directory; with pyxis `/`."""

    on_disruption: Literal["fail", "retry"] = "fail"
    """What the loss of a node or a preemption means: a failure, or that Slurm puts the job back into its queue. That
    is not counted as a retry."""

    signal: Literal["USR1", "USR2", "INT", "HUP", "TERM"] = "USR1"
    """Signal that replicas get `signal_s` before the time limit, for instance to write a checkpoint."""

    signal_s: Optional[Annotated[float, Ge(1)]] = None
    """Seconds before the time limit at which replicas get `signal`. None means that they get none."""

    grace_s: Annotated[float, Ge(0)] = 10.0
    """Seconds between TERM and KILL when replicas are stopped. Where Slurm itself ends the job, or a replica has
    failed, its `KillWait` (30 seconds by default) is the longest."""

    time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Seconds after which the app is ended as FAILED, counted from the start of its job. None means the limit of the
    partition."""

    overlay: Optional[dict[str, Any]] = None
    """Options of `sbatch` that have no option here, by long name: `{"nice": 100, "spread-job": true}`. Null removes
    one that is set."""


# The option of workspaces comes last in forms and pages.
@dataclass(frozen=True)
class SlurmOpts(WorkspaceOpts, _RunOpts):
    """How one launch runs as a job of Slurm."""
