"""Defects in workspaces: changed copies, and accepted without checks."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from airflow_provider_launch.schedulers.local.options import LocalOpts
from airflow_provider_launch.schedulers.local.request import LocalRequest
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.specs.workspaces import Workspace
from airflow_provider_launch.workspace.files import WorkspaceFiles
from tests.contract.broken.defects import Local, caught_by


class _Changed(WorkspaceFiles):
    """Changes each file of a copy."""

    change: Callable[[Path], object]

    def copy_to(self, directory: str) -> None:
        super().copy_to(directory)
        for path in Path(directory).rglob("*"):
            if path.is_file() and not path.is_symlink():
                self.change(path)


class _ChangesFiles(Local):
    def _build_request(self, app: AppDef, opts: LocalOpts, app_id: str) -> LocalRequest:
        request = super()._build_request(app, opts, app_id)
        for name, files in request.workspaces.items():
            changed = _Changed(files.name, files.entries, files.left_out)
            changed.change = self._change
            request.workspaces[name] = changed
        return request

    def _change(self, path: Path) -> None:
        raise NotImplementedError


@caught_by("test_replicas_find_the_workspace_in_their_directory")
class LosesModes(_ChangesFiles):
    def _change(self, path: Path) -> None:
        path.chmod(0o644)


@caught_by("test_a_change_reaches_the_next_launch")
class KeepsTheFirstCopy(_ChangesFiles):
    kept: ClassVar[dict[str, str]] = {}

    def _change(self, path: Path) -> None:
        path.write_text(self.kept.setdefault(path.name, path.read_text()))


@caught_by("test_projects_are_mapped_into_one_tree")
class MapsNothing(Local):
    def _build_request(self, app: AppDef, opts: LocalOpts, app_id: str) -> LocalRequest:
        app = copy.deepcopy(app)
        for role in app.roles:
            if role.workspace:
                role.workspace = Workspace(dict.fromkeys(role.workspace.projects, ""))
        return super()._build_request(app, opts, app_id)


@caught_by("test_a_role_without_workspace_gets_none")
class GivesItToAllRoles(Local):
    def _build_request(self, app: AppDef, opts: LocalOpts, app_id: str) -> LocalRequest:
        app = copy.deepcopy(app)
        for role in app.roles:
            role.workspace = app.roles[0].workspace
        return super()._build_request(app, opts, app_id)


@caught_by("test_missing_workspace_is_refused")
class TakesMissingOnes(Local):
    def _build_request(self, app: AppDef, opts: LocalOpts, app_id: str) -> LocalRequest:
        app = copy.deepcopy(app)
        for role in app.roles:
            if role.workspace and not all(Path(path).exists() for path in role.workspace.projects):
                role.workspace = None
        return super()._build_request(app, opts, app_id)


@caught_by("test_too_large_workspace_is_refused")
class HasNoLimit(Local):
    def _build_request(self, app: AppDef, opts: LocalOpts, app_id: str) -> LocalRequest:
        return super()._build_request(app, dataclasses.replace(opts, workspace_max_mb=1e6), app_id)
