"""The mixins in third-party schedulers, written for TorchX."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.runner.api import pin_workspace_images
from airflow_provider_launch.schedulers.api import Scheduler, WorkspaceMixin
from airflow_provider_launch.specs import AppDef, AppDryRunInfo, InvalidAppError, Role, Workspace
from airflow_provider_launch.specs.runopts import runopts
from airflow_provider_launch.workspace.dir_workspace import DirWorkspaceMixin, TmpDirWorkspaceMixin
from airflow_provider_launch.workspace.docker_workspace import DockerWorkspaceMixin


class Base(Scheduler[dict]):
    def __init__(self, session_name="", **kwargs):
        super().__init__("third", session_name, **kwargs)

    def _submit_dryrun(self, app, cfg):
        return AppDryRunInfo([role.image for role in app.roles], repr)

    def schedule(self, dryrun_info):
        return "id"

    def describe(self, app_id):
        return None

    def list(self, cfg=None):
        return []

    def _validate(self, app, scheduler, cfg):
        pass

    def _cancel_existing(self, app_id):
        pass


class Recording(WorkspaceMixin[None]):
    """Implements the older hook, for one directory."""

    def workspace_opts(self):
        opts = runopts()
        opts.add("flavour", str, "of the build", default="plain")
        return opts

    def build_workspace_and_update_role(self, role, workspace, cfg):
        self.__dict__.setdefault("built", []).append(workspace)
        role.image = f"{role.image}+{len(self.built)}+{cfg['flavour']}"


class First(Recording, Base):
    pass


class Last(Base, Recording):
    pass


def role(name, image="base", **fields):
    return Role(name, image, entrypoint="true", **fields)


@pytest.mark.parametrize("kind", [First, Last])
def test_the_order_of_bases_does_not_matter(kind, tmp_path):
    scheduler = kind("session")
    app = AppDef("app", [role("a"), role("b")])
    runner = Runner("s", {"third": lambda *_, **__: scheduler})
    info = runner.dryrun(app, "third", {"flavour": "sweet"}, str(tmp_path))

    assert scheduler.session_name == "session"
    assert [name for name, _ in scheduler.run_opts()] == ["flavour"]
    assert info.request == ["base+1+sweet", "base"]
    assert app == AppDef("app", [role("a"), role("b")])


def test_equal_workspaces_are_built_once(tmp_path):
    scheduler = First()
    roles = [role(name, workspace=Workspace({str(tmp_path): ""})) for name in "ab"]
    other = role("c", "another", workspace=Workspace({str(tmp_path): ""}))
    Runner("s", {"third": lambda *_, **__: scheduler}).dryrun(AppDef("app", [*roles, other]), "third")

    assert scheduler.built == [str(tmp_path), str(tmp_path)]


def test_mapped_projects_are_merged_for_the_older_hook(tmp_path):
    (tmp_path / "x").write_text("x")
    seen = []

    class Merging(First):
        def build_workspace_and_update_role(self, role, workspace, cfg):
            from pathlib import Path

            seen.append(sorted(str(path.relative_to(workspace)) for path in Path(workspace).rglob("*")))

    app = AppDef("app", [role("a", workspace=Workspace({str(tmp_path): "sub"}))])
    Runner("s", {"third": lambda *_, **__: Merging()}).dryrun(app, "third")

    assert seen == [["sub", "sub/x"]]


def test_submit_writes_into_the_callers_app(tmp_path):
    app = AppDef("app", [role("a")])
    First().submit(app, {}, str(tmp_path))

    assert app.roles[0].image == "base+1+plain"
    assert app.roles[0].workspace == Workspace({str(tmp_path): ""})


def test_a_scheduler_without_the_mixin_refuses():
    with pytest.raises(ValueError, match="`third` does not support workspaces"):
        Base().submit(AppDef("app", [role("a")]), {}, ".")


def test_build_workspace_and_pin_the_images(tmp_path):
    app = AppDef("app", [role("a", workspace=Workspace({str(tmp_path): ""})), role("b")])
    runner = Runner("s", {"third": lambda *_, **__: First()})
    images = runner.build_workspace(app, "third")

    assert images == {("base", Workspace({str(tmp_path): ""})): "base+1+plain"}
    pinned = pin_workspace_images(app, images)
    assert [(each.image, each.workspace) for each in pinned.roles] == [("base+1+plain", None), ("base", None)]
    assert app.roles[0].image == "base"


def test_dir_workspace_copies_into_the_job_dir(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "x").write_text("x")
    there = role("a", workspace=Workspace({str(tmp_path / "project"): ""}))

    class Directory(DirWorkspaceMixin, Base):
        pass

    Directory().build_workspaces([there], {"job_dir": str(tmp_path / "job")})
    assert there.image == str(tmp_path / "job")
    assert (tmp_path / "job" / "x").read_text() == "x"
    with pytest.raises(InvalidAppError, match="already exists"):
        Directory().build_workspaces([there], {"job_dir": str(tmp_path / "job")})

    kept = role("a", workspace=Workspace({str(tmp_path / "project"): ""}))
    Directory().build_workspaces([kept], {})
    assert kept.image == "base"


def test_tmp_dir_workspace_copies_into_a_new_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = tmp_path / "source"
    source.mkdir()
    (source / "x").write_text("x")

    class Temporary(TmpDirWorkspaceMixin, Base):
        pass

    roles = [role(name, workspace=Workspace({str(source): ""})) for name in "ab"]
    Temporary().build_workspaces(roles, {})

    assert roles[0].image == roles[1].image != "base"
    assert (Path(roles[0].image) / "x").read_text() == "x"


def test_a_copy_that_fails_leaves_no_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = tmp_path / "source"
    source.mkdir()
    (source / "x").write_bytes(bytes(2_000_000))

    class Temporary(TmpDirWorkspaceMixin, Base):
        pass

    with pytest.raises(InvalidAppError, match="workspace_max_mb is 1"):
        Temporary().build_workspaces([role("a", workspace=Workspace({str(source): ""}))], {"workspace_max_mb": 1})

    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_file_that_is_removed_before_it_is_packed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = tmp_path / "source"
    source.mkdir()
    (source / "x").write_text("x")

    class Builds:
        """An engine that has the base image only."""

        def image_id(self, name: str) -> str | None:
            if name == "base":
                return "sha256:1"
            (source / "x").unlink(missing_ok=True)
            return None

    class Images(DockerWorkspaceMixin, Base):
        def _image_builds(self, cfg):
            return Builds()

    with pytest.raises(InvalidAppError, match=r"cannot be packed: No such file or directory \(.*/source/x\); correct"):
        Images().build_workspaces([role("a", workspace=Workspace({str(source): ""}))], {})
