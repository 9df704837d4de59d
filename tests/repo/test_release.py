"""The checks of `make release-check` that need no network; a check that cannot be made has failed."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from airflow_provider_launch import __version__


@pytest.fixture
def release(checkout, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(checkout / "tools")
    spec = importlib.util.spec_from_file_location("release_check", checkout / "tools" / "release_check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "OUT", tmp_path)
    return module


def test_two_builds_are_equal_and_fit_their_version(release, tmp_path) -> None:
    sums = release.check_builds().splitlines()

    assert [line.rpartition(" ")[2].split("-")[1].removesuffix(".tar.gz") for line in sums] == [__version__] * 2
    assert (tmp_path / "SHA256SUMS").read_text().splitlines() == sums
    assert [*release._metadata_problems(__version__)] == []
    assert any("is not of version 9.9.9" in text for text in release._metadata_problems("9.9.9"))
    assert any("newest heading of CHANGELOG.md is not 9.9.9" in text for text in release._metadata_problems("9.9.9"))


def test_the_version_stands_in_one_place(release) -> None:
    assert release.version() == __version__
    assert "version" not in release.project()
    assert release.project()["dynamic"] == ["version"]


def test_a_program_that_is_missing_is_a_failure(release, monkeypatch, capsys) -> None:
    monkeypatch.setattr(release, "uv", lambda: sys.executable)
    monkeypatch.setattr(release, "built", list)

    assert release.main(["licences"]) == 1
    assert "=== failed: licences" in capsys.readouterr().out


def test_an_audit_of_fewer_packages_is_a_failure(release, monkeypatch, tmp_path) -> None:
    """The service may leave out what it does not know."""
    monkeypatch.setattr(release, "_environment_of_all", lambda: tmp_path)
    monkeypatch.setattr(release, "run", lambda *_, **__: "a==1\nb==2\nairflow-provider-launch @ file:///x\n")
    monkeypatch.setattr(release, "tool", lambda *_, **__: '{"dependencies": [{"name": "a", "vulns": []}]}')

    with pytest.raises(release.ReleaseError, match="1 of 2 dependencies were audited"):
        release.check_audit()


def test_a_python_that_is_missing_is_a_failure(release, monkeypatch, tmp_path) -> None:
    """The extras that the other Python has tested do not count for it."""
    # uv finds no Python of its own, and installs none.
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    monkeypatch.setattr(release, "interpreter", lambda minor: {"3.10": "3.99", "3.13": sys.executable}[minor])
    monkeypatch.setattr(release, "_check_extra", lambda _, extra, *where: tested.append((extra, *where)))
    tested: list[tuple[str, ...]] = []

    with pytest.raises(release.ReleaseError, match=r"^not tested: all extras with Python 3\.10, lowest-direct: .*\n"):
        release.check_extras()
    assert tested == [(extra, sys.executable, "highest") for extra in ("", *release.project()["optional-dependencies"])]


def test_a_misspelt_step_is_named(release, capsys) -> None:
    assert release.main(["wheels"]) == 2
    assert "unknown step wheels; there are builds, wheel" in capsys.readouterr().out
