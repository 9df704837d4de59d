"""Table of the built-in backends, one row each; hooks, registry, documentation and tests are derived from it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import Scheduler
    from airflow_provider_launch.schedulers.structured_opts import StructuredOpts

_PACKAGE = "airflow_provider_launch"


@dataclass(frozen=True)
class BackendInfo:
    """One backend. Its folder is `schedulers/<name>/`, its hook `hooks/<name>.py`, its page `docs/<name>.md`."""

    name: str
    """In handles and in `cfg`: lower case, `_` between words."""
    prefix: str
    """Prefix of its class names: `Docker` in `DockerScheduler`, `DockerConnection`, `DockerOpts`."""
    title: str
    """In headings, and in Airflow's list of connection types."""
    identity_fields: tuple[str, ...]
    """Options of the connection that identify the engine: two engines that do not share apps differ in one of them.
    None of them is a secret."""
    extra: str | None = None
    """The extra of the package that installs its dependencies, None if it has none."""
    sdk: tuple[str, ...] = ()
    """Packages of that extra; they are imported only when the engine is used."""
    demo_options: Mapping[str, str] | None = None
    """Options of the connection that `make demo` uses; `{build}` stands for the build folder. None: its demo defines a
    connection itself, or needs none."""
    executors: tuple[str, ...] = ()
    """Types of executor in pipelines that mean it: its own, then those of magnus and runnable that it replaces. Empty:
    its own name."""
    in_containers: bool = True
    """Whether an app runs in an image and does not see the files of the worker."""
    shares_files: bool = False
    """Whether an app can see a folder of the worker: on the same host, or by a mount."""

    @property
    def executor(self) -> str:
        """The type of executor in pipelines."""
        return self.executors[0] if self.executors else self.name

    @property
    def connection_type(self) -> str:
        """The type of its connections in Airflow."""
        return f"launch_{self.name}"

    @property
    def default_conn_id(self) -> str:
        """The id of the default connection."""
        return f"{self.connection_type}_default"

    @property
    def hook(self) -> str:
        """Its hook as `module:class`."""
        return f"{_PACKAGE}.hooks.{self.name}:{self.prefix}LaunchHook"

    @property
    def scheduler_module(self) -> str:
        """The module that has `create_scheduler`."""
        return f"{_PACKAGE}.schedulers.{self.name}.scheduler"

    @property
    def page(self) -> str:
        """Its page in `docs/`."""
        return f"{self.name}.md"

    def connection_options(self) -> type[StructuredOpts]:
        """Import and return the options of a connection."""
        return self._options("Connection")

    def launch_options(self) -> type[StructuredOpts]:
        """Import and return the options of a launch."""
        return self._options("Opts")

    def scheduler_class(self) -> type[Scheduler[Any]]:
        """Import and return the scheduler class; no request is sent to the engine."""
        found: type[Scheduler[Any]] = getattr(importlib.import_module(self.scheduler_module), f"{self.prefix}Scheduler")
        return found

    def _options(self, kind: str) -> type[StructuredOpts]:
        module = importlib.import_module(f"{_PACKAGE}.schedulers.{self.name}.options")
        found: type[StructuredOpts] = getattr(module, f"{self.prefix}{kind}")
        return found


_ROWS = (
    BackendInfo(
        "local",
        "Local",
        "local processes",
        ("root",),
        executors=("local", "demo-renderer", "emulator"),
        in_containers=False,
        shares_files=True,
    ),
    BackendInfo(
        "docker",
        "Docker",
        "Docker",
        ("host",),
        "docker",
        ("docker", "requests", "urllib3"),
        {"pull": "never"},
        executors=("local-container", "docker"),
        shares_files=True,
    ),
    BackendInfo(
        "kubernetes",
        "Kubernetes",
        "Kubernetes",
        ("kubeconfig_path", "context", "namespace"),
        "kubernetes",
        ("kubernetes", "urllib3"),
        {},
        executors=("kubernetes", "argo", "kfp", "k8s-job", "mini-k8s-job"),
    ),
    BackendInfo(
        "aws_batch",
        "AwsBatch",
        "AWS Batch",
        ("aws_conn_id", "profile_name", "aws_access_key_id", "role_arn", "region_name", "endpoint_url"),
        "aws",
        ("boto3", "botocore"),
        executors=("aws-batch", "local-aws-batch"),
    ),
    BackendInfo(
        "slurm",
        "Slurm",
        "Slurm",
        ("ssh_host", "ssh_port", "ssh_user", "root", "slurm_conf"),
        "slurm",
        ("paramiko",),
        {"root": "{build}/slurm"},
        executors=("slurm", "slurm-job"),
        in_containers=False,
    ),
)

BACKENDS: Mapping[str, BackendInfo] = {row.name: row for row in _ROWS}
"""Name to backend; the first is the default."""
