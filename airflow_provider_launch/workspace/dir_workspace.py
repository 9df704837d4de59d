"""Workspaces for schedulers whose replicas run on this host, or share a file system with it."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.runopts import runopts
from airflow_provider_launch.util.paths import expanded
from airflow_provider_launch.workspace.api import WorkspaceMixin
from airflow_provider_launch.workspace.files import WorkspaceFiles

if TYPE_CHECKING:
    from airflow_provider_launch.specs.roles import Role
    from airflow_provider_launch.specs.workspaces import Workspace

log = logging.getLogger(__name__)


class DirWorkspaceMixin(WorkspaceMixin[None]):
    """Copies workspaces into the new directory `job_dir`; without this option they are used where they are."""

    def workspace_opts(self) -> runopts:
        """Return `job_dir` and `workspace_max_mb`."""
        opts = runopts()
        opts.add("job_dir", str, "New directory for the copy of the workspace. None means that nothing is copied.")
        opts.add("workspace_max_mb", float, "Maximum size of a workspace, in megabytes.", default=200.0)
        return opts

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, Any], build_cache: MutableMapping[tuple[str, Workspace], str]
    ) -> None:
        """Copy the workspace and set `role.image` to the copy; roles with equal workspaces share one copy."""
        workspace = role.workspace
        if not workspace:
            return
        key = ("", workspace)
        if key not in build_cache:
            directory = self._directory(cfg, is_first=not build_cache)
            if directory is None:
                return
            self._copy(workspace, directory, cfg)
            build_cache[key] = directory
        role.image = build_cache[key]

    def _directory(self, cfg: Mapping[str, Any], *, is_first: bool) -> str | None:
        """Return the directory for a copy, not yet created; None if nothing is to be copied."""
        job_dir = cfg.get("job_dir")
        if not job_dir:
            return None
        if not is_first:
            raise InvalidAppError(
                f"the roles have several workspaces, but job_dir={job_dir!r} takes one; map the projects into one tree"
            )
        if os.path.exists(job_dir):
            raise InvalidAppError(f"job_dir {job_dir!r} already exists; name a directory that does not exist yet")
        return str(job_dir)

    def _copy(self, workspace: Workspace, directory: str, cfg: Mapping[str, Any]) -> None:
        there = {path: target for path, target in workspace.projects.items() if expanded(path).exists()}
        for path in workspace.projects.keys() - there.keys():
            log.warning("workspace %r does not exist: nothing is copied", path)
        files = WorkspaceFiles.of(type(workspace)(there))
        files.check_size(cfg.get("workspace_max_mb"))
        log.info("%s", files)
        files.copy_to(directory)


class TmpDirWorkspaceMixin(DirWorkspaceMixin):
    """Copies each workspace into a new temporary directory, which belongs to the caller."""

    def workspace_opts(self) -> runopts:
        """Return `workspace_max_mb`."""
        opts = runopts()
        opts.add("workspace_max_mb", float, "Maximum size of a workspace, in megabytes.", default=200.0)
        return opts

    def _directory(self, cfg: Mapping[str, Any], *, is_first: bool) -> str | None:  # noqa: ARG002 - always a new one
        return tempfile.mkdtemp(prefix="launch-workspace-")

    def _copy(self, workspace: Workspace, directory: str, cfg: Mapping[str, Any]) -> None:
        try:
            super()._copy(workspace, directory, cfg)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
