"""The folder with build locks of one host is in /tmp, where any user may create something first."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from airflow_provider_launch.specs import SchedulerRejectedError
from airflow_provider_launch.workspace.docker_workspace import _build_lock


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"launch-builds-{os.geteuid()}"


def is_open(path: Path) -> bool:
    """Return whether this process has a descriptor of a file or folder."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(link.readlink())
    return path in found


def test_builds_of_one_image_wait_for_each_other(folder):
    entered, has_ended = threading.Event(), threading.Event()

    def build() -> None:
        with _build_lock("digest"):
            entered.set()
        has_ended.set()

    with _build_lock("digest"):
        other = threading.Thread(target=build)
        other.start()
        assert not entered.wait(0.5)
    assert has_ended.wait(60)
    other.join()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []


def test_a_folder_of_another_user_is_refused(folder):
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)

    with pytest.raises(SchedulerRejectedError, match=r"uid 65534.*TMPDIR"), _build_lock("digest"):
        pass


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_refused(folder, mode):
    folder.mkdir()
    folder.chmod(mode)

    with pytest.raises(SchedulerRejectedError, match=f"mode {mode:04o}"), _build_lock("digest"):
        pass
    assert not is_open(folder)


def test_a_link_in_place_of_the_folder_is_refused(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)

    with pytest.raises(SchedulerRejectedError, match="remove it"), _build_lock("digest"):
        pass
    assert list(elsewhere.iterdir()) == []


def test_a_link_in_place_of_the_lock_changes_nothing_elsewhere(folder, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder.mkdir(mode=0o700)
    (folder / "digest").symlink_to(precious)

    with pytest.raises(SchedulerRejectedError, match="remove it"), _build_lock("digest"):
        pass
    assert precious.read_text() == "precious"


def test_a_second_name_of_another_file_is_not_truncated(folder, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder.mkdir(mode=0o700)
    os.link(precious, folder / "digest")

    with _build_lock("digest"):
        pass
    assert precious.read_text() == "precious"


def test_a_pipe_in_place_of_the_lock_is_refused_at_once(folder):
    folder.mkdir(mode=0o700)
    os.mkfifo(folder / "digest")

    with pytest.raises(SchedulerRejectedError, match="not a regular file"), _build_lock("digest"):
        pass
    assert not is_open(folder / "digest")


def test_a_lock_leaves_nothing_open_and_may_be_gone_before_its_end(folder):
    before = set(Path("/proc/self/fd").iterdir())
    with _build_lock("digest"):
        (folder / "digest").unlink()
    assert set(Path("/proc/self/fd").iterdir()) <= before

    with pytest.raises(ZeroDivisionError), _build_lock("digest"):
        1 / 0  # noqa: B018 - a build that fails
    assert set(Path("/proc/self/fd").iterdir()) <= before
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_has_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))

    with (
        pytest.raises(SchedulerRejectedError, match=r"cannot be used: No such file or directory; remove it, or set TM"),
        _build_lock("digest"),
    ):
        pass
