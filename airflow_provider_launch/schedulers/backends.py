"""The built-in backends, one row each: what hooks, registry, documentation and tests derive from their names."""

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
    """How the names of its classes begin: `Docker` in `DockerScheduler`, `DockerConnection`, `DockerOpts`."""
    title: str
    """In headings, and in Airflow's list of connection types."""
    identity_fields: tuple[str, ...]
    """Options of the connection that differ between engines which do not see each other's apps; none is a secret."""
    extra: str | None = None
    """The extra of the package that installs what it needs. None: it needs nothing."""
    sdk: tuple[str, ...] = ()
    """Packages of that extra, which are imported only when the engine is asked."""
    demo_options: Mapping[str, str] | None = None
    """Options of the connection that `make demo` uses; `{build}` stands for the folder of what is built. None: its demo
    brings a connection, or needs none."""

    @property
    def connection_type(self) -> str:
        """The type of its connections in Airflow."""
        return f"launch_{self.name}"

    @property
    def default_conn_id(self) -> str:
        """The connection that is used when none is named."""
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
        """Import and return the scheduler; its engine is not asked."""
        found: type[Scheduler[Any]] = getattr(importlib.import_module(self.scheduler_module), f"{self.prefix}Scheduler")
        return found

    def _options(self, kind: str) -> type[StructuredOpts]:
        module = importlib.import_module(f"{_PACKAGE}.schedulers.{self.name}.options")
        found: type[StructuredOpts] = getattr(module, f"{self.prefix}{kind}")
        return found


_ROWS = (
    BackendInfo("local", "Local", "local processes", ("root",)),
    BackendInfo(
        "docker", "Docker", "Docker", ("host",), "docker", ("docker", "requests", "urllib3"), {"pull": "never"}
    ),
    BackendInfo(
        "kubernetes",
        "Kubernetes",
        "Kubernetes",
        ("kubeconfig_path", "context", "namespace"),
        "kubernetes",
        ("kubernetes", "urllib3"),
        {},
    ),
    BackendInfo(
        "aws_batch",
        "AwsBatch",
        "AWS Batch",
        ("aws_conn_id", "profile_name", "aws_access_key_id", "role_arn", "region_name", "endpoint_url"),
        "aws",
        ("boto3", "botocore"),
    ),
    BackendInfo(
        "slurm",
        "Slurm",
        "Slurm",
        ("ssh_host", "ssh_port", "ssh_user", "root", "slurm_conf"),
        "slurm",
        ("paramiko",),
        {"root": "{build}/slurm"},
    ),
)

BACKENDS: Mapping[str, BackendInfo] = {row.name: row for row in _ROWS}
"""Name to backend; the first is the default."""
