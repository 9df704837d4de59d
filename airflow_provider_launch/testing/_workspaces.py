"""Workspaces: local directories are copied to the replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.workspaces import Workspace
from airflow_provider_launch.testing._base import Apps, ContractBase


class WorkspaceTests(ContractBase):
    """A scheduler with workspaces runs the current code."""

    def _launch(self, apps: Apps, cfg: dict[str, Any], *roles: Role, workspace: Workspace | str | None = None) -> str:
        backend = apps.scheduler.backend
        runner = Runner("contract", {backend: lambda *_, **__: apps.scheduler})
        app = AppDef(make_unique("contract"), [*roles])
        info = runner.dryrun(app, backend, cfg, workspace, app_id=apps.new_id())
        return apps.keep(apps.scheduler.schedule(info))

    def test_replicas_find_the_workspace_in_their_directory(
        self, apps: Apps, workspace_cfg: dict[str, Any], tmp_path: Path
    ) -> None:
        """Programs start by relative paths with their file mode; files of the ignore file are left out."""
        self.needs(Capability.WORKSPACE)
        root = _project(tmp_path)
        role = apps.sh("./run.sh && test ! -e data && echo done", num_replicas=2)
        app_id = self._launch(apps, workspace_cfg, role, workspace=str(root))
        found = apps.end(app_id)

        assert found.state is AppState.SUCCEEDED, apps.lines(app_id)
        for k in (0, 1):
            assert apps.lines(app_id, k=k) == ["from the workspace\n", "from the workspace\n", "done\n"]

    def test_a_change_reaches_the_next_launch(self, apps: Apps, workspace_cfg: dict[str, Any], tmp_path: Path) -> None:
        """A cached copy of an earlier launch must not run instead of the new code."""
        self.needs(Capability.WORKSPACE)
        root = _project(tmp_path)
        first = self._launch(apps, workspace_cfg, apps.sh("./run.sh"), workspace=str(root))
        apps.end(first)
        (root / "lib" / "text").write_text("changed\n")
        second = self._launch(apps, workspace_cfg, apps.sh("./run.sh"), workspace=str(root))
        apps.end(second)

        assert apps.lines(first)[0] == "from the workspace\n"
        assert apps.lines(second)[0] == "changed\n"

    def test_projects_are_mapped_into_one_tree(self, apps: Apps, workspace_cfg: dict[str, Any], tmp_path: Path) -> None:
        """Code and its library are often in two checkouts."""
        self.needs(Capability.WORKSPACE)
        for name in ("app", "library"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "text").write_text(f"{name}\n")
        mapped = Workspace({str(tmp_path / "app"): "", str(tmp_path / "library"): "vendor/library"})
        role = apps.sh("cat text vendor/library/text")
        role.workspace = mapped
        app_id = self._launch(apps, workspace_cfg, role)
        apps.end(app_id)

        assert apps.lines(app_id) == ["app\n", "library\n"]

    def test_a_role_without_workspace_gets_none(
        self, apps: Apps, workspace_cfg: dict[str, Any], tmp_path: Path
    ) -> None:
        """The workspace of a launch is that of its first role."""
        self.needs(Capability.WORKSPACE)
        root = _project(tmp_path)
        roles = (apps.sh("./run.sh", "main"), apps.sh("test ! -e run.sh && echo none", "other"))
        app_id = self._launch(apps, workspace_cfg, *roles, workspace=str(root))
        found = apps.end(app_id)

        assert found.state is AppState.SUCCEEDED
        assert apps.lines(app_id, "other") == ["none\n"]

    def test_missing_workspace_is_refused(self, apps: Apps, workspace_cfg: dict[str, Any], tmp_path: Path) -> None:
        """The error comes before anything is launched; a replica would only report a missing program."""
        self.needs(Capability.WORKSPACE)
        with pytest.raises(InvalidAppError, match="no-such-project"):
            self._launch(apps, workspace_cfg, apps.sh("true"), workspace=str(tmp_path / "no-such-project"))

    def test_too_large_workspace_is_refused(self, apps: Apps, workspace_cfg: dict[str, Any], tmp_path: Path) -> None:
        """Data in the folder of the code takes minutes and fills disks; the error names the large files."""
        self.needs(Capability.WORKSPACE)
        self.needs_option(apps, "workspace_max_mb", is_optional=True)
        root = _project(tmp_path)
        (root / "forgotten.bin").write_bytes(bytes(30_000))
        cfg = {**workspace_cfg, **apps.options(workspace_max_mb=0.02)}
        with pytest.raises(InvalidAppError, match=r"forgotten\.bin"):
            self._launch(apps, cfg, apps.sh("true"), workspace=str(root))


def _project(tmp_path: Path) -> Path:
    """Return a directory with a program, a nested file, an ignored file and a link."""
    root = tmp_path / "project"
    (root / "lib").mkdir(parents=True)
    (root / "data").mkdir()
    (root / "run.sh").write_text("#!/bin/sh\ncat lib/text link\n")
    (root / "run.sh").chmod(0o755)
    (root / "lib" / "text").write_text("from the workspace\n")
    (root / "link").symlink_to("lib/text")
    (root / "data" / "large").write_text("stays here\n")
    (root / ".launchignore").write_text("data\n")
    return root
