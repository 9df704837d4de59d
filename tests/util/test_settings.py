"""The launcher's home: the new variable takes precedence over the old one."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_launch.settings import LAUNCH_HOME, TORCHX_HOME, getenv


def test_the_home_exists_and_the_new_variable_wins(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("LAUNCH_HOME", str(tmp_path / "new"))

    assert TORCHX_HOME("a", "b") == tmp_path / "new" / "a" / "b"
    assert (tmp_path / "new" / "a" / "b").is_dir()
    assert not (tmp_path / "old").exists()


def test_the_old_variable_still_works(tmp_path, monkeypatch):
    monkeypatch.delenv("LAUNCH_HOME", raising=False)
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "old"))

    assert LAUNCH_HOME() == tmp_path / "old"


def test_without_variables_it_is_below_the_users_home(tmp_path, monkeypatch):
    monkeypatch.delenv("LAUNCH_HOME", raising=False)
    monkeypatch.delenv("TORCHX_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert TORCHX_HOME() == Path(tmp_path / ".torchx")


def test_an_empty_variable_is_not_set(monkeypatch):
    monkeypatch.setenv("LAUNCH_TEST_NEW", "")
    monkeypatch.setenv("LAUNCH_TEST_OLD", "x")

    assert getenv("LAUNCH_TEST_NEW", "LAUNCH_TEST_OLD") == "x"
