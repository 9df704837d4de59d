"""Folders of tasks and of the catalog, with other users on the host."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch.pipelines.folders import (
    FolderError,
    TaskFolder,
    make_dirs,
    private_folder,
    refuse_foreign,
    refuse_shared,
    remove_folder,
)
from tests.support.bombs import nested

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")


def as_nobody(folder: Path, base: Path) -> list[str]:
    """Return the accesses that another user of this host has."""
    command = ["sh", "-c", REACH, "sh", str(folder), str(base)]
    ran = subprocess.run(
        command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True, check=True
    )
    return ran.stdout.split()


@pytest.fixture
def shared(tmp_path_factory) -> Path:
    """A folder that all users can enter and write, like `/tmp`."""
    base = tmp_path_factory.mktemp("shared")
    for parent in (base, *base.parents):
        if parent.owner() == "root" and str(parent) not in {"/", "/tmp"}:
            parent.chmod(0o755)
    base.chmod(0o1777)
    return base


REACH = """
exec 2>/dev/null
! ls "$1" >/dev/null || echo listed
! ls "$1/.." >/dev/null || echo listed-parent
! cat "$1/secret" >/dev/null || echo read
! (echo > "$1/mine") || echo wrote
! mv "$1/.." "$2/moved" || echo moved
! mv "$(dirname "$1")" "$2/moved" || echo moved
! (cd "$1") || echo entered
"""


@needs_root
def test_another_user_of_the_host_reaches_no_folder_of_a_task(shared):
    """The folder itself is open to all, because the program may run as any user in its container."""
    folder = private_folder(shared, is_volume=False) / "task"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "secret").write_text("secret")

    assert as_nobody(folder, shared) == []


@needs_root
def test_another_user_cannot_list_a_volume_and_containers_pass_it(shared):
    """Users of containers must be able to enter the parents of a volume; the names below cannot be guessed."""
    folder = private_folder(shared, is_volume=True) / "task-0123456789"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "secret").write_text("secret")

    assert {"listed-parent", "moved"}.isdisjoint(as_nobody(folder, shared))


@needs_root
@pytest.mark.parametrize(
    ("mode", "owner", "expected"),
    [
        (0o700, 0, None),
        (0o755, 0, None),
        (0o775, 0, "others may write"),
        (0o777, 0, "others may write"),
        (0o1777, 0, "others may write"),
        (0o700, NOBODY, "belongs to uid 65534"),
        (None, 0, "is not a folder but a link or a file"),
    ],
)
def test_a_folder_of_ours_is_refused_if_another_user_may_change_it(tmp_path, mode, owner, expected):
    folder = tmp_path / f"launch-{os.geteuid()}"
    if mode is None:
        folder.symlink_to(tmp_path)
    else:
        folder.mkdir()
        folder.chmod(mode)
        os.chown(folder, owner, -1)

    with pytest.raises(FolderError, match=expected) if expected else contextlib.nullcontext():
        refuse_foreign(folder)
    with pytest.raises(FolderError, match=expected) if expected else contextlib.nullcontext():
        private_folder(tmp_path, is_volume=False)


@needs_root
@pytest.mark.parametrize(
    ("mode", "owner", "expected"),
    [
        (0o755, 0, None),
        (0o2775, 0, None),
        (0o1777, 0, None),
        (0o777, 0, "every user may write .*; run 'chmod o-w'"),
        (0o755, NOBODY, "belongs to uid 65534"),
    ],
)
def test_a_base_is_refused_if_another_user_may_replace_what_is_in_it(tmp_path, mode, owner, expected):
    base = tmp_path / "base"
    base.mkdir()
    base.chmod(mode)
    os.chown(base, owner, -1)

    with pytest.raises(FolderError, match=expected) if expected else contextlib.nullcontext():
        refuse_shared(base)


@needs_root
def test_a_base_behind_the_link_of_another_user_is_refused(tmp_path):
    (tmp_path / "base").symlink_to(tmp_path)
    os.chown(tmp_path / "base", NOBODY, -1, follow_symlinks=False)

    with pytest.raises(FolderError, match="belongs to uid 65534"):
        private_folder(tmp_path / "base", is_volume=False)


def test_a_base_that_cannot_exist_yet_is_of_no_other_user(tmp_path):
    (tmp_path / "file").write_text("")

    for base in (tmp_path / "later" / "base", tmp_path / "file" / "base"):
        refuse_shared(base)
        refuse_foreign(base)


def test_new_folders_are_closed_to_other_users(tmp_path):
    make_dirs(tmp_path / "a" / "b")

    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700, 0o700]


# ---- links ----------------------------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path) -> Path:
    folder = tmp_path / "parent" / "task"
    make_dirs(folder)
    (tmp_path / "secret").write_text("secret")
    return folder


def read(folder: Path, name: str) -> str:
    with contextlib.closing(TaskFolder(folder)) as left, left.open(name) as file:
        return file.read().decode()


def test_links_inside_of_the_folder_are_files(task):
    (task / "sub").mkdir()
    (task / "sub" / "file").write_text("x")
    (task / "link").symlink_to("sub/file")
    os.mkfifo(task / "fifo")
    (task / "broken").symlink_to("gone")
    (task / "dir").symlink_to("sub")

    with contextlib.closing(TaskFolder(task)) as left:
        assert sorted(left.sizes()) == ["link", "sub/file"]
    assert (read(task, "link"), read(task, "dir/file")) == ("x", "x")


@pytest.mark.parametrize("target", ["../../secret", "sub/up"])
def test_links_that_lead_outside_are_refused(task, target):
    (task / "sub").mkdir()
    (task / "sub" / "up").symlink_to("../../../secret")
    (task / "link").symlink_to(target)

    with pytest.raises(FolderError, match="'link' is a link that leads out"):
        read(task, "link")


def test_a_folder_that_became_a_link_is_refused(task, tmp_path):
    task.rmdir()
    task.symlink_to(tmp_path)

    with pytest.raises(FolderError, match="is a link"):
        TaskFolder(task)


def test_a_folder_that_does_not_exist_is_an_error(tmp_path):
    make_dirs(tmp_path / "parent")

    with pytest.raises(FileNotFoundError):
        TaskFolder(tmp_path / "parent" / "task")


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("fifo", FolderError, "'fifo' was replaced and is not a regular file; wait"),
        ("socket", FolderError, "'socket' was replaced by a link or a device; wait"),
        ("sub/file/x", FolderError, "'sub/file/x' was replaced by a link or a device; wait"),
        ("sub/gone", FileNotFoundError, "gone"),
        ("sub", FolderError, "'sub' was replaced and is not a regular file; wait"),
    ],
)
def test_a_file_that_became_something_else_is_refused(task, monkeypatch, name, error, text):
    (task / "sub").mkdir()
    (task / "sub" / "file").touch()
    os.mkfifo(task / "fifo")
    monkeypatch.chdir(task)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")

    with pytest.raises(error, match=text):
        read(task, name)


def opened_below(path: Path) -> list[str]:
    """Return the open files and folders of this process below a path."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the list itself
            found.append(str(fd.readlink()))
    return [one for one in found if one.startswith(str(path))]


def test_no_file_or_folder_stays_open(task, tmp_path):
    """A worker reads the files of any number of tasks."""
    make_dirs(task / "sub" / "inner")
    (task / "sub" / "inner" / "file").touch()
    os.mkfifo(task / "sub" / "fifo")
    (task / "link").symlink_to("gone")

    with contextlib.closing(TaskFolder(task)) as left:
        assert opened_below(tmp_path) == [str(task)]
        left.sizes()
        left.open("sub/inner/file").close()
        for name in ("sub/fifo", "sub/gone", "sub/inner/file/x"):
            with pytest.raises((FolderError, FileNotFoundError)):
                left.open(name)
        assert opened_below(tmp_path) == [str(task)]
    assert opened_below(tmp_path) == []
    for path in (task / "gone", task / "sub" / "inner" / "file"):
        with pytest.raises((FolderError, FileNotFoundError)):
            TaskFolder(path)
    assert opened_below(tmp_path) == []


def test_a_folder_below_what_others_may_write_is_refused(task):
    task.parent.chmod(0o777)

    with pytest.raises(FolderError, match="others may write"):
        TaskFolder(task)


def test_a_link_that_is_swapped_all_the_time_never_leads_outside(task):
    """A running program replaces a file between the check and the copy."""
    stop = threading.Event()
    (task / "sub").mkdir()
    (task / "sub" / "secret").write_text("own")

    def swap() -> None:
        while not stop.is_set():
            for target in ("sub", "../.."):
                (task / "new").symlink_to(target)
                (task / "new").replace(task / "way")

    thread = threading.Thread(target=swap)
    thread.start()
    found = set()
    try:
        for _ in range(1000):
            with contextlib.suppress(FolderError, FileNotFoundError):
                found.add(read(task, "way/secret"))
    finally:
        stop.set()
        thread.join()

    assert found <= {"own"}


def test_a_file_larger_than_the_free_disk_is_refused(tmp_path, monkeypatch):
    """A program can write a file of holes that is larger than any disk."""
    from airflow.sdk import ObjectStoragePath

    from airflow_provider_launch.pipelines import catalog

    folder = private_folder(tmp_path, is_volume=False) / "task"
    folder.mkdir(mode=0o700)
    for name, size in (("huge", 1 << 40), ("small", 100)):
        with (folder / name).open("wb") as file:
            file.truncate(size)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=2000))
    files = catalog.RunCatalog(ObjectStoragePath(f"file://{tmp_path}/catalog"), "d", "r", "t")
    with pytest.raises(catalog.CatalogError, match="free disk"):
        files.put(["huge"], folder)

    assert [item.size for item in files.put(["small"], folder)] == [100]
    assert [path.name for path in (tmp_path / "catalog").rglob("*") if path.is_file()] == ["small"]


def test_files_that_are_larger_together_than_the_free_disk_are_refused(tmp_path, monkeypatch):
    """A limit for each file would let several of them fill the disk, on which other runs store their files."""
    from airflow.sdk import ObjectStoragePath

    from airflow_provider_launch.pipelines import catalog

    folder = private_folder(tmp_path, is_volume=False) / "task"
    folder.mkdir(mode=0o700)
    for at in range(3):
        (folder / f"part_{at}").write_bytes(b"x" * 400)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=2000))
    files = catalog.RunCatalog(ObjectStoragePath(f"file://{tmp_path}/catalog"), "d", "r", "t")

    with pytest.raises(catalog.CatalogError, match="half of the free disk"):
        files.put(["*"], folder)
    assert [path.name for path in (tmp_path / "catalog").rglob("*")] == ["d", "r"], "checked before the first copy"

    # The program still writes: each file has grown since its size was read.
    monkeypatch.setattr(TaskFolder, "sizes", lambda _folder: dict.fromkeys(("part_0", "part_1", "part_2"), 1))
    with pytest.raises(catalog.CatalogError, match="half of the free disk"):
        files.put(["*"], folder)
    assert [path for path in (tmp_path / "catalog").rglob("*") if path.is_file()] == []

    assert len(files.put(["part_0", "part_2"], folder)) == 2


def test_files_that_are_larger_than_their_disk_are_not_sent_to_a_store(tmp_path, monkeypatch):
    """A program makes a file of exabytes in a moment, as a hole; the worker would send zeros for years."""
    from upath import UPath

    from airflow_provider_launch.pipelines import catalog

    folder = private_folder(tmp_path, is_volume=False) / "task"
    folder.mkdir(mode=0o700)
    for name in ("a", "b"):
        (folder / name).write_bytes(b"x" * 600)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(total=1000))
    base: Any = UPath(f"memory://{tmp_path.name}/catalog")
    files = catalog.RunCatalog(base, "d", "r", "t")

    with pytest.raises(catalog.CatalogError, match="larger than their disk"):
        files.put(["*"], folder)
    # The program still writes: each file has grown since its size was read.
    monkeypatch.setattr(TaskFolder, "sizes", lambda _folder: {"a": 1, "b": 1})
    with pytest.raises(catalog.CatalogError, match="larger than their disk"):
        files.put(["*"], folder)
    assert not base.exists() or not [path for path in base.rglob("*") if path.is_file()]

    assert [item.size for item in files.put(["a"], folder)] == [600]


@pytest.fixture
def deep(task) -> Iterator[Path]:
    """A task's folder with more levels than pytest itself can remove from its temporary folders."""
    nested(task)
    yield task
    subprocess.run(["rm", "-rf", "--", str(task)], check=True)


def test_a_folder_of_any_depth_is_removed(deep):
    """A task that had succeeded failed when its folder was removed."""
    (deep / "file").touch()

    remove_folder(deep)

    assert not deep.exists()
    remove_folder(deep)


def test_a_folder_is_removed_where_no_program_is_installed(task, tmp_path, monkeypatch):
    (task / "file").touch()
    monkeypatch.setenv("PATH", str(tmp_path))

    remove_folder(task)

    assert not task.exists()


def test_a_folder_that_cannot_be_removed_stays(tmp_path, monkeypatch):
    """Its task has ended, and must not fail now."""
    path = tmp_path / "file"
    path.touch()  # not a folder, as if a program had put it there: `rm` is needed
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        remove_folder(path)
    assert path.exists()

    remove_folder(path)

    assert not path.exists()


def test_files_in_folders_of_any_depth_are_refused(deep):
    with contextlib.closing(TaskFolder(deep)) as left, pytest.raises(FolderError, match="100 levels deep"):
        left.sizes()


def test_any_number_of_files_takes_bounded_memory(task, monkeypatch):
    """Files of no size need no disk, and their names were all kept in the memory of the worker."""
    monkeypatch.setattr("airflow_provider_launch.pipelines.folders._MOST_ENTRIES", 100)
    for at in range(10):
        (task / f"folder-{at}").mkdir()
        for name in range(9):
            (task / f"folder-{at}" / str(name)).touch()
    with contextlib.closing(TaskFolder(task)) as left:
        assert len(left.sizes()) == 90
        (task / "one-more").touch()

        with pytest.raises(FolderError, match="left more than 100 files and folders; let it remove or pack them"):
            left.sizes()
