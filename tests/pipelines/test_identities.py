"""The identity of code in a checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_launch.pipelines.identities import git_identity


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
