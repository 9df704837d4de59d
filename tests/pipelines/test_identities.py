"""The identity of code in a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from airflow_provider_launch.pipelines.identities import git_identity, image_identities, with_digests
from airflow_provider_launch.specs import AppDef, ReplicaStatus, Role, RoleStatus
from airflow_provider_launch.specs.states import AppState


@pytest.fixture
def asked(tmp_path: Path, monkeypatch) -> Path:
    """The file in which a `git` that knows no commit notes its calls."""
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    (programs / "git").write_text(f'#!/bin/sh\necho "$@" >>{calls}\nexit 1\n')
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return calls


@pytest.mark.parametrize(
    ("made", "variables", "expected"),
    [
        ("", {}, False),
        (".git/config", {}, True),
        ("../.git", {}, True),
        ("", {"GIT_DIR": "/elsewhere"}, True),
    ],
)
def test_git_is_asked_only_about_a_checkout(
    asked: Path, tmp_path: Path, monkeypatch, made: str, variables: dict[str, str], expected: bool
) -> None:
    """A process costs a task as much as several requests; the repository of a worktree is a file."""
    folder = tmp_path / "dags" / "pipelines"
    folder.mkdir(parents=True)
    if made:
        (folder / made).parent.mkdir(exist_ok=True)
        (folder / made).write_text("")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert git_identity(folder) is None
    assert asked.exists() is expected


def test_git_starts_no_program_that_a_repository_monitors(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.email=a@example.com", "-c", "user.name=a"]
    for arguments in (["init", "-q"], ["commit", "-qm", "a", "--allow-empty"]):
        subprocess.run([*git, *arguments], check=True)
    subprocess.run([*git, "config", "core.fsmonitor", f"touch {tmp_path}/.git/ran; false"], check=True)

    assert git_identity(tmp_path) is not None
    assert not (tmp_path / ".git" / "ran").exists()


@pytest.mark.parametrize(
    "text", [None, "#!/bin/sh\nexec sleep 600\n", "no program"], ids=["missing", "hangs", "damaged"]
)
def test_a_git_that_does_not_answer_stops_no_launch(tmp_path: Path, monkeypatch, text: str | None) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "bin").mkdir()
    if text is not None:
        (tmp_path / "bin" / "git").write_text(text)
        (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{':/usr/bin:/bin' if text else ''}")

    assert git_identity(tmp_path) is None


@pytest.mark.parametrize(
    ("image_ids", "expected"),
    [
        (["sha256:1", None, "sha256:1"], [("sha256:1", True)]),
        (["sha256:1", "sha256:2"], [("sha256:1", True), ("sha256:2", True)]),
        ([None, ""], [("repo:1", False)]),
    ],
)
def test_an_image_is_identified_by_the_digests_that_ran(image_ids: list[str | None], expected) -> None:
    """A replica that has not started has no digest yet."""
    code = [one.to_json() for one in image_identities(AppDef("app", [Role("main", "repo:1")]))]
    replicas = [ReplicaStatus(k, AppState.RUNNING, "main", "", image_id=each) for k, each in enumerate(image_ids)]
    found = with_digests(code, [RoleStatus("main", replicas)])

    assert [(one["identifier"], one["dependable"]) for one in found] == expected
