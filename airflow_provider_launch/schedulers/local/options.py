"""Options of the local scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Optional

from annotated_types import Ge

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts
from airflow_provider_launch.schedulers.workspace_opts import WorkspaceOpts


# `Optional` and not `X | None`: the hints are evaluated at run time, and Annotated unions need it on Python 3.10.
@dataclass(frozen=True)
class LocalConnection(StructuredOpts):
    """Where the local scheduler keeps its apps."""

    root: Optional[str] = None
    """Directory of apps and logs: an absolute path, or one below `~`. None means `local` below `LAUNCH_HOME`, or below
    `~/.torchx`."""

    gpus: Optional[list[str]] = None
    """UUIDs or indices of the GPUs that apps may use. None means all that the driver of this host lists."""

    keep_days: Annotated[int, Ge(0)] = 14
    """Days after which the directory of a finished app is removed."""

    max_time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """The longest `time_limit_s` that a launch may ask for, and the limit of one that asks for none. None means that
    launches need no limit."""

    locked: Optional[list[str]] = None
    """Names of launch options that tasks cannot change: the value here holds, or the default. Where some are locked, no
    task gives an `overlay`, which reaches past them."""

    def __post_init__(self) -> None:
        """Refuse a root that would be another place in each process with another current directory."""
        if self.root and not self.root.startswith(("/", "~")):
            raise ValueError(f"option 'root' must be an absolute path, not {self.root!r}; write where it begins")


@dataclass(frozen=True)
class _RunOpts(StructuredOpts):
    copy_env: Optional[list[str]] = None
    """Patterns (`HF_*`) of variables that replicas inherit from the launcher, besides `PATH`, `HOME`, `LANG` and so on.
    `AIRFLOW*` and `_AIRFLOW*` are never copied."""

    working_dir: Optional[str] = None
    """Directory in which replicas start, relative to the image directory. None means the image directory."""

    prepend_cwd: bool = False
    """Whether the image directory comes first in `PATH`, so that its programs win; otherwise it comes last."""

    grace_s: Annotated[float, Ge(0)] = 10.0
    """Seconds between TERM and KILL when replicas are stopped."""

    time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Seconds after which the app is ended as FAILED, counted from its submission. None means no limit."""

    log_max_mb: Optional[Annotated[int, Ge(1)]] = None
    """MB of stdout, or of stderr, of one attempt of a replica at which the app is ended as FAILED, so that it does not
    fill the disk. None means no limit."""


# The option of workspaces comes last in forms and pages.
@dataclass(frozen=True)
class LocalOpts(WorkspaceOpts, _RunOpts):
    """How one launch runs on local processes."""


@dataclass(frozen=True)
class LocalCwdOpts(LocalOpts):
    """How one launch runs on `local_cwd`."""

    log_dir: Optional[str] = None
    """Directory that gets `<app id>/<role>/<replica>/stdout.log` and `stderr.log`, of the newest attempt. None means
    that logs are only kept with the app."""

    auto_set_cuda_visible_devices: bool = False
    """Whether `resource.gpu` is honoured: each replica gets GPUs of its own in `CUDA_VISIBLE_DEVICES`. Otherwise it is
    ignored, and all replicas see all GPUs."""
