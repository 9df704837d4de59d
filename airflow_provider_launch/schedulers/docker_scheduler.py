"""The scheduler `local_docker` of TorchX, in the module that TorchX has for it: `docker` with the option `env`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from airflow_provider_launch.schedulers._kit.overlays import refuse_unsupported_overlays
from airflow_provider_launch.schedulers.docker.options import DockerOpts
from airflow_provider_launch.schedulers.docker.request import DockerRequest
from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler
from airflow_provider_launch.schedulers.structured_opts import resolve_options
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import AppDef

__all__ = ["DockerOpts", "DockerScheduler", "LocalDockerScheduler", "create_scheduler"]


@dataclass(frozen=True)
class LocalDockerOpts(DockerOpts):
    """Options of one launch on `local_docker`."""

    env: Optional[dict[str, str]] = None  # noqa: UP045 - as in the options of all backends
    """Variables of all replicas. Variables of a role have priority; variables from `copy_env` have lower priority."""


class LocalDockerScheduler(DockerScheduler):
    """Runs containers on one engine, with the name and the options of TorchX."""

    name: ClassVar[str] = "local_docker"
    opts_type = LocalDockerOpts

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], *, app_id: str | None = None
    ) -> AppDryRunInfo[DockerRequest]:
        opts = resolve_options(LocalDockerOpts, cfg, strict=False)
        app = copy.copy(app)
        app.roles = [copy.copy(role) for role in app.roles]
        # Values of options are plain text, without macros.
        given = {name: macros.escape(value) for name, value in (opts.env or {}).items()}
        for role in app.roles:
            role.env = {**given, **role.env}
            # Overlays may use either name.
            if self.name in role.metadata:
                role.metadata = {"docker": role.metadata[self.name], **role.metadata}
                del role.metadata[self.name]
        refuse_unsupported_overlays(app, "docker", self.overlay_kinds)
        return super()._submit_dryrun(app, opts, app_id=app_id)


create_scheduler = LocalDockerScheduler.create
