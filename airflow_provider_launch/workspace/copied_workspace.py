"""Workspaces for schedulers that copy them into the app's directory when it is submitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.errors import UnsupportedError
from airflow_provider_launch.specs.runopts import runopts
from airflow_provider_launch.workspace.api import WorkspaceMixin

if TYPE_CHECKING:
    from airflow_provider_launch.specs.roles import Role
    from airflow_provider_launch.specs.workspaces import Workspace


class CopiedWorkspaceMixin(WorkspaceMixin[None]):
    """Only finds and measures the files at dry run; nothing is built."""

    def workspace_opts(self) -> runopts:
        """Return `workspace_max_mb`."""
        opts = runopts()
        opts.add("workspace_max_mb", float, "Maximum size of a workspace, in megabytes.", default=200.0)
        return opts

    def prepare_workspaces(self, roles: Iterable[Role], cfg: Mapping[str, Any]) -> None:
        """Do nothing: the files are copied when the directory of the app is created."""

    def caching_build_workspace_and_update_role(
        self,
        role: Role,
        cfg: Mapping[str, Any],  # noqa: ARG002 - it builds nothing
        build_cache: MutableMapping[tuple[str, Workspace], str],  # noqa: ARG002 - the same
    ) -> None:
        """Refuse to build a workspace without a launch."""
        if role.workspace:
            raise UnsupportedError(
                f"role {role.name!r}: this scheduler copies a workspace when an app is launched, and cannot build one; "
                f"launch the app with its workspace"
            )
