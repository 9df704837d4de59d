"""Options of workspaces, the same for every scheduler that supports them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from airflow_provider_launch.schedulers.structured_opts import StructuredOpts


@dataclass(frozen=True)
class WorkspaceOpts(StructuredOpts):
    """Options of every scheduler with workspaces."""

    workspace_max_mb: Annotated[float, Gt(0)] = 200.0
    """Maximum size of a workspace in megabytes, without the files that its ignore file excludes."""


@dataclass(frozen=True)
class ImageWorkspaceOpts(WorkspaceOpts):
    """Options of schedulers that build a workspace into an image."""

    image_repo: str | None = None
    """Repository, with its registry, to which workspace images are pushed: `registry.example/team/launch`. None
    means that they are not pushed."""

    build_host: str | None = None
    """Docker engine that builds workspace images, as `unix:///path`, `tcp://host:port` or `ssh://user@host`. None
    means the engine of the connection, or `DOCKER_HOST` or the default socket for schedulers without an engine."""

    quiet: bool = False
    """Whether the output of workspace builds is left out of the log."""
