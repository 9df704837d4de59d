"""Options of the Slurm scheduler, and the one that adds options of sbatch, `overlay`, without I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional

from annotated_types import Ge, MaxLen

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts, WorkspaceOpts
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.resources import LATER


# `Optional` and not `X | None`: the hints are evaluated at run time, and Annotated unions need it on Python 3.10.
@dataclass(frozen=True)
class SlurmConnection(StructuredOpts):
    """The Slurm cluster, and how it is reached."""

    root: str = "~/.launch/slurm"
    """Directory of apps and logs that login node and compute nodes share: an absolute path, or a path below `~`."""

    mount: Optional[str] = None
    """Directory where the worker has `root` mounted; logs are then read there instead of over ssh."""

    ssh_host: Optional[str] = None
    """Login node to connect to by ssh. None means that the worker has the commands of Slurm itself."""

    ssh_port: Annotated[int, Ge(1)] = 22
    """Port of the ssh server."""

    ssh_user: Optional[str] = None
    """User on the login node. None means the user of the worker."""

    ssh_key_file: Optional[str] = None
    """File of the private key. None means the keys of the ssh agent and of `~/.ssh`."""

    ssh_key_secret: Optional[str] = None
    """The private key itself, as text. Hidden in the form and in logs."""

    ssh_key_password: Optional[str] = None
    """Passphrase of the private key."""

    ssh_password: Optional[str] = None
    """Password of the user, if the login node accepts passwords."""

    ssh_host_key: Optional[str] = None
    """Key of the ssh server, `ssh-ed25519 AAAA...`. None means that `known_hosts` of the worker's user has it. A server
    with another key is refused."""

    ssh_jump_host: Optional[str] = None
    """Jump host to the login node, `user@host:port`; it uses the same private key."""

    ssh_jump_host_key: Optional[str] = None
    """Key of the server `ssh_jump_host`, in the form of `ssh_host_key`."""

    ssh_conn_id: Optional[str] = field(default=None, metadata=LATER)
    """Connection of Airflow of type `ssh` that has the login node and its keys. Options that are set here
    override it."""

    slurm_bin: Optional[str] = None
    """Directory of `sbatch` and the other commands, if it is not on the path."""

    slurm_conf: Optional[str] = None
    """Configuration file of the cluster. None means Slurm's default."""

    timeout_s: Annotated[float, Ge(1)] = 30.0
    """Seconds after which a command without an answer fails."""

    settle_s: Annotated[float, Ge(0)] = 10.0
    """Seconds until the login node sees the files of a node. If Slurm reports the end of a job whose own record is
    missing, the app stays RUNNING for this time. NFS may need 60."""

    test_node: bool = False
    """Whether the test of the connection also runs a job of some seconds that writes a file on a node."""

    keep_days: Annotated[int, Ge(0)] = 14
    """Days after which the directory of a finished app is removed."""

    max_time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Maximum `time_limit_s` of a launch, and the default for launches without one. None means that launches need no
    limit."""

    locked: Optional[list[str]] = None
    """Names of launch options that tasks cannot change: the value of the connection applies, or the default. If any
    option is locked, tasks cannot use `overlay`, because it could change locked options."""

    def __post_init__(self) -> None:
        """Refuse relative paths, which would differ between processes."""
        for name, path in (("root", self.root), ("mount", self.mount)):
            if path is not None and not path.startswith(("/", "~/")):
                raise ValueError(f"option {name!r} must be an absolute path, not {path!r}; start it with '/' or '~/'")
            if path is not None and any(letter in path for letter in "\n\r\0"):
                raise ValueError(f"option {name!r} has a line feed; remove it")


@dataclass(frozen=True)
class _RunOpts(StructuredOpts):
    partition: Optional[str] = None
    """Partition, or several separated by commas. None means the cluster's default."""

    account: Optional[str] = None
    """Account to charge."""

    qos: Optional[str] = None
    """Quality of service."""

    reservation: Optional[str] = None
    """Reservation to use."""

    constraint: Optional[str] = None
    """Features that nodes must have, in the syntax of `sbatch --constraint`."""

    nodelist: Optional[str] = None
    """Nodes that must be part of the job."""

    exclude: Optional[str] = None
    """Nodes that must not be part of the job."""

    exclusive: bool = False
    """Whether no other job shares the nodes."""

    gpu_type: Optional[str] = None
    """Type of the GPUs, such as `a100`. None means any."""

    comment: Optional[Annotated[str, MaxLen(1000)]] = None
    """Text at the end of the job's comment, of at most 1000 characters."""

    mail_user: Optional[str] = None
    """Recipient of mail about the job."""

    mail_type: Optional[str] = None
    """Events that send mail, such as `END,FAIL`."""

    container: Optional[Literal["apptainer", "pyxis"]] = None
    """Container runtime for `image`, which the site must have; pyxis needs bash in the image. None means that `image`
    is empty, or a directory of the cluster in which replicas start."""

    container_mounts: Optional[list[str]] = None
    """Directories of the nodes to mount into the container, `/data:/data:ro`."""

    setup: Optional[list[str]] = None
    """Lines of bash to run before the program, in a login shell: `module load cuda`, `conda activate train`."""

    on_setup_failure: Literal["fail", "continue"] = field(default="fail", metadata=LATER)
    """Effect of a line of `setup` that exits with a code other than 0: the replica fails, with the line in its error,
    or the program starts all the same."""

    copy_env: Optional[list[str]] = None
    """Patterns (`HF_*`) of variables that replicas inherit from the launcher. `AIRFLOW*` is never copied."""

    working_dir: Optional[str] = None
    """Directory in which replicas start. None means the image directory, or the home directory; with pyxis `/`."""

    on_disruption: Literal["fail", "retry"] = "fail"
    """Effect of the loss of a node or a preemption: a failure, or Slurm puts the job back into its queue, which does
    not count as a retry."""

    signal: Literal["USR1", "USR2", "INT", "HUP", "TERM"] = "USR1"
    """Signal that replicas get `signal_s` before the time limit, for example to write a checkpoint."""

    signal_s: Optional[Annotated[float, Ge(1)]] = None
    """Seconds before the time limit at which replicas get `signal`. None means no signal."""

    grace_s: Annotated[float, Ge(0)] = 10.0
    """Seconds between TERM and KILL when replicas are stopped. If Slurm itself ends the job, or a replica has failed,
    Slurm's `KillWait` (30 seconds by default) is the maximum."""

    time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Seconds after which the app is ended as FAILED, counted from the start of its job. None means the limit of the
    partition."""

    overlay: Optional[dict[str, Any]] = None
    """Options of `sbatch` without an option here, by long name: `{"nice": 100, "spread-job": true}`. Null removes an
    option."""


# The option of workspaces comes last in forms and pages.
@dataclass(frozen=True)
class SlurmOpts(WorkspaceOpts, _RunOpts):
    """Options of one launch on Slurm."""


_OURS = frozenset({
    "array", "batch", "chdir", "comment", "cpus-per-task", "dependency", "deadline", "error", "export", "export-file",
    "get-user-env", "gpus-per-task", "hold", "input", "job-name", "no-requeue", "ntasks", "open-mode", "output",
    "parsable", "quiet", "requeue", "signal", "wait", "wrap",
})  # fmt: skip
"""Options that the launcher sets itself."""
_WHERE = frozenset(["cluster-constraint", "clusters"])
"""Options that may submit the job to another cluster, which this connection does not see."""
_WHETHER = frozenset(["help", "test-only", "usage", "version"])
"""Options with which sbatch submits nothing."""
_LIKE_OURS = frozenset(["gpus"])
"""Options that are a prefix of another option."""


def with_overlay(options: list[str], overlay: Mapping[str, Any] | None) -> list[str]:
    """Return the options with the overlay: a value replaces, True is a flag, False and None remove, a list repeats.

    Refuses names that are not long options, or that the launcher sets itself, and values that are not plain.
    """
    result = list(options)
    for name, value in (overlay or {}).items():
        if not re.fullmatch(r"[a-z][a-z-]+", name):
            raise InvalidAppError(f"option overlay: {name!r} is not a valid long option; write 'nice', not '--nice'")
        _refuse_reserved(name)
        result = [one for one in result if one.partition("=")[0] != f"--{name}"]
        for item in value if isinstance(value, list) else [value]:
            if item is True:
                result.append(f"--{name}")
            elif isinstance(item, str | int | float) and not isinstance(item, bool):
                result.append(f"--{name}={item}")
            elif item not in (None, False):
                raise InvalidAppError(
                    f"option overlay: {name!r} has {type(item).__name__} as value; write text, a number or true"
                )
    return result


def step_with_overlay(options: list[str], overlay: Mapping[str, Any] | None) -> list[str]:
    """Return the options of a step with those overlay options that the step has, too."""
    names = {one.partition("=")[0].removeprefix("--") for one in options}
    return with_overlay(options, {name: value for name, value in (overlay or {}).items() if name in names})


def _refuse_reserved(name: str) -> None:
    # sbatch accepts a prefix of a name.
    meant = {one for one in _OURS | _WHERE | _WHETHER if one.startswith(name) and name not in _LIKE_OURS}
    if meant & _WHERE:
        raise InvalidAppError(
            f"option overlay: {name!r} may submit the job to a cluster that this connection does not see; leave it "
            f"out, and use a connection with the slurm_conf or ssh_host of that cluster"
        )
    if meant & _WHETHER:
        raise InvalidAppError(f"option overlay: with {name!r} sbatch submits nothing; leave it out")
    if meant:
        raise InvalidAppError(f"option overlay: {name!r} is set by the scheduler 'slurm' itself; leave it out")
