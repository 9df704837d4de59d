"""Options of the local scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Optional

from annotated_types import Ge

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts, WorkspaceOpts
from airflow_provider_launch.specs.resources import LATER


# `Optional` and not `X | None`: the hints are evaluated at run time, and Annotated unions need it on Python 3.10.
@dataclass(frozen=True)
class LocalConnection(StructuredOpts):
    """Options of a connection of the local scheduler."""

    root: Optional[str] = None
    """Directory of apps and logs: an absolute path, or one below `~`. None means `local` below `LAUNCH_HOME`, or below
    `~/.torchx`."""

    gpus: Optional[list[str]] = None
    """UUIDs or indices of the GPUs that apps may use. None means all that the driver of this host lists."""

    keep_days: Annotated[int, Ge(0)] = 14
    """Days after which the directory of a finished app is removed."""

    max_time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Maximum `time_limit_s` of a launch, and the default for launches without one. None means that launches need no
    limit."""

    locked: Optional[list[str]] = None
    """Names of launch options that tasks cannot change: the value of the connection is used, or the default. If options
    are locked, tasks cannot use an `overlay`, because it could bypass them."""

    def __post_init__(self) -> None:
        """Refuse a relative root, because it depends on the current directory of each process."""
        if self.root and not self.root.startswith(("/", "~")):
            raise ValueError(f"option 'root' must be an absolute path, not {self.root!r}; start it with / or ~")


@dataclass(frozen=True)
class _RunOpts(StructuredOpts):
    copy_env: Optional[list[str]] = None
    """Patterns (`HF_*`) of variables that replicas inherit from the launcher, in addition to `PATH`, `HOME`, `LANG` and
    so on. `AIRFLOW*` and `_AIRFLOW*` are never copied."""

    working_dir: Optional[str] = None
    """Directory in which replicas start, relative to the image directory. None means the image directory."""

    python_env: Optional[str] = field(default=None, metadata=LATER)
    """Directory of another Python environment, such as a venv with torch: its `bin` comes first in `PATH`, so `python`
    and `torchrun` are those of the environment. None means the Python that runs Airflow, for the default image."""

    prepend_cwd: bool = False
    """Whether the image directory comes first in `PATH`, so that its programs win; otherwise it comes last."""

    grace_s: Annotated[float, Ge(0)] = 10.0
    """Seconds between TERM and KILL when replicas are stopped."""

    time_limit_s: Optional[Annotated[float, Ge(1)]] = None
    """Seconds after its submission when the app is ended as FAILED. None means no limit."""

    log_max_mb: Optional[Annotated[int, Ge(1)]] = None
    """Maximum MB of stdout, or of stderr, of one attempt of a replica. An app that exceeds it is ended as FAILED, so
    that it does not fill the disk. None means no limit."""


# The option of workspaces comes last in forms and pages.
@dataclass(frozen=True)
class LocalOpts(WorkspaceOpts, _RunOpts):
    """Options of one launch on `local`."""


@dataclass(frozen=True)
class LocalCwdOpts(LocalOpts):
    """Options of one launch on `local_cwd`."""

    log_dir: Optional[str] = None
    """Directory for `<app id>/<role>/<replica>/stdout.log` and `stderr.log` of the newest attempt. None means that logs
    are only in the directory of the app."""

    auto_set_cuda_visible_devices: bool = False
    """Whether each replica gets its own `resource.gpu` GPUs in `CUDA_VISIBLE_DEVICES`. Otherwise `resource.gpu` is
    ignored, and all replicas see all GPUs."""
