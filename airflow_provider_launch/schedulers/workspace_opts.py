"""Options that concern workspaces, the same for every scheduler that has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts


@dataclass(frozen=True)
class WorkspaceOpts(StructuredOpts):
    """How large a workspace may be."""

    workspace_max_mb: Annotated[float, Gt(0)] = 200.0
    """Megabytes that a workspace may have, without what its ignore file leaves out."""


@dataclass(frozen=True)
class ImageWorkspaceOpts(WorkspaceOpts):
    """How a workspace becomes an image."""

    image_repo: str | None = None
    """Repository, with its registry, to which images with workspaces are pushed: `registry.example/team/launch`. None
    means that they are not pushed."""

    build_host: str | None = None
    """Docker engine that builds images with workspaces, as `unix:///path`, `tcp://host:port` or `ssh://user@host`. None
    means the engine of the connection, or `DOCKER_HOST` or the default socket for schedulers that have no engine."""

    quiet: bool = False
    """Whether the output of builds of workspaces is left out of the log."""
