"""The files of a workspace that reach the replicas, and the files that an ignore file leaves out."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from airflow_provider_launch.specs import InvalidAppError, Workspace
from airflow_provider_launch.workspace import walk_workspace
from airflow_provider_launch.workspace.api import IgnoreRules
from airflow_provider_launch.workspace.files import WorkspaceFiles


def tree(root: Path, *paths: str) -> Path:
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir() if path.endswith("/") else target.write_text(path)
    return root


def found(root: Path, lines: str | None = None) -> list[str]:
    if lines is not None:
        (root / ".launchignore").write_text(lines)
    files = WorkspaceFiles.of(Workspace({str(root): ""}))
    return [path for path in files.entries if path != ".launchignore"]


# Each line as on the page about ignore files: pattern, path, left out or not.
RULES = [
    ("data", "data", True),
    ("data", "src/data", False),  # patterns match the path below the root
    ("*data", "src/data", True),  # and `*` crosses directories
    ("*.pyc", "a/b.pyc", True),
    ("/data/", "data", True),
    ("./data", "data", True),
    ("# data", "data", False),
    ("*\n!keep", "keep", False),
    ("!keep\n*", "keep", True),  # the last match wins
    ("*", "Dockerfile.torchx", False),
    ("*", ".", False),
]


@pytest.mark.parametrize(("lines", "path", "left_out"), RULES)
def test_rules_of_ignore_files(lines, path, left_out):
    assert IgnoreRules.of(lines.splitlines()).is_left_out(path) is left_out


def test_within_a_directory_only_later_patterns_count(tmp_path):
    """So `*` and `!src` mean "only src, completely"."""
    tree(tmp_path, "src/a", "src/lib/b", "other/c", "d")

    assert found(tmp_path, "*\n!src\n") == ["src", "src/a", "src/lib", "src/lib/b"]
    assert found(tmp_path, "*\n!src\nsrc/lib\n") == ["src", "src/a"]
    assert found(tmp_path, "src\n!src/lib\n") == ["d", "other", "other/c", "src/lib", "src/lib/b"]


def test_files_that_differ_between_workers_are_left_out(tmp_path):
    """Byte code and the files of git would change the image on each worker."""
    tree(tmp_path, ".git/HEAD", "src/__pycache__/a.pyc", "src/a.py")

    assert found(tmp_path) == ["src", "src/a.py"]
    assert found(tmp_path, "!.git\n!.git/*") == [".git", ".git/HEAD", "src", "src/a.py"]


def test_modes_links_and_empty_directories_are_kept(tmp_path):
    root = tree(tmp_path / "project", "run", "empty/")
    (root / "run").chmod(0o755)
    (root / "link").symlink_to("run")
    files = WorkspaceFiles.of(Workspace({str(root): "sub"}))
    files.copy_to(str(tmp_path / "copy"))

    assert os.access(tmp_path / "copy" / "sub" / "run", os.X_OK)
    assert (tmp_path / "copy" / "sub" / "link").readlink() == Path("run")
    assert (tmp_path / "copy" / "sub" / "empty").is_dir()


def test_one_file_is_a_project(tmp_path):
    tree(tmp_path, "train.py", "lib/x")
    named = Workspace({str(tmp_path / "train.py"): "main.py", str(tmp_path / "lib"): "lib"})

    assert [*WorkspaceFiles.of(named).entries] == ["lib", "lib/x", "main.py"]
    assert [*WorkspaceFiles.of(Workspace({str(tmp_path / "train.py"): ""})).entries] == ["train.py"]


def test_equal_files_make_equal_archives(tmp_path):
    """Whatever their owner and checkout time: only then is nothing built or pushed twice."""
    packed = []
    for name in ("one", "two"):
        root = tree(tmp_path / name, "a", "b/c")
        os.utime(root / "a", (1, 1)) if name == "one" else (root / "a").chmod(0o600)
        files, archive = WorkspaceFiles.of(Workspace({str(root): ""})), io.BytesIO()
        files.pack(archive)
        packed.append((files.digest(), archive.getvalue()))

    assert packed[0] == packed[1]
    with tarfile.open(fileobj=io.BytesIO(packed[0][1])) as archive:
        assert {member.mode for member in archive if member.isfile()} == {0o644}


def linked(tmp_path, target: str, *, is_file: bool = False) -> Workspace:
    """A workspace whose first project has a link `data` to a directory outside, and a second one with a target."""
    (tmp_path / "outside").mkdir()
    tree(tmp_path / "code", "main.py")
    (tmp_path / "code" / "data").symlink_to(tmp_path / "outside")
    tree(tmp_path / "other", "evil")
    return Workspace({f"{tmp_path}/code": "", f"{tmp_path}/other/{'evil' if is_file else ''}": target})


@pytest.mark.parametrize(
    ("target", "is_file"),
    [("data/sub", False), ("data/a/b/c", False), ("data/", True), ("data/x", True), ("main.py/x", False)],
)
def test_nothing_is_put_below_a_link(tmp_path, target, is_file):
    """It would be written outside of the copy, with the rights of the worker."""
    workspace = linked(tmp_path, target, is_file=is_file)
    for given in (workspace, Workspace(dict(reversed(workspace.projects.items())))):
        with pytest.raises(InvalidAppError, match=r"has files below .(data|main\.py)., which is a link or a file"):
            WorkspaceFiles.of(given)


@pytest.mark.parametrize("is_file", [False, True], ids=["directory", "file"])
def test_a_later_project_replaces_a_link(tmp_path, is_file):
    WorkspaceFiles.of(linked(tmp_path, "data", is_file=is_file)).copy_to(str(tmp_path / "copy"))

    assert not (tmp_path / "copy" / "data").is_symlink()
    assert [*(tmp_path / "outside").iterdir()] == []


@pytest.mark.parametrize("change", ["content", "name", "mode", "link"])
def test_each_change_is_another_digest(tmp_path, change):
    root = tree(tmp_path, "a")
    before = WorkspaceFiles.of(Workspace({str(root): ""})).digest()
    match change:
        case "content":
            (root / "a").write_text("b")
        case "name":
            (root / "a").rename(root / "b")
        case "mode":
            (root / "a").chmod(0o755)
        case "link":
            (root / "l").symlink_to("a")

    assert WorkspaceFiles.of(Workspace({str(root): ""})).digest() != before


@pytest.mark.parametrize(
    ("projects", "words"),
    [
        ({"/no/such/project": ""}, ["/no/such/project", "does not exist"]),
        ({"x" * 300: ""}, ["cannot be read: File name too long", "xxx", ".launchignore"]),
        ({".": "../elsewhere"}, ["'../elsewhere'", "outside"]),
        ({".": "/etc"}, ["'/etc'", "outside"]),
    ],
)
def test_an_impossible_workspace_is_refused(projects, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidAppError) as caught:
        WorkspaceFiles.of(Workspace(projects))

    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("path", ["fifo", "/dev/zero"])
def test_a_project_is_a_file_or_a_directory(path, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidAppError, match="neither a file nor a directory"):
        WorkspaceFiles.of(Workspace({str(tmp_path / path): ""}))


def test_a_file_that_cannot_be_read_is_named_with_the_fix(tmp_path):
    """Such as a file of another user, or one that was removed since the files were listed."""
    tree(tmp_path, "a.py")
    files = WorkspaceFiles.of(Workspace({str(tmp_path): ""}))
    (tmp_path / "a.py").unlink()

    with pytest.raises(
        InvalidAppError, match=r"cannot be read: No such file or directory \(.*a\.py\);.*\.launchignore"
    ):
        files.digest()


def test_the_error_for_a_large_workspace_names_its_largest_parts(tmp_path):
    tree(tmp_path, "a.py")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_bytes(bytes(3_000_000))
    files = WorkspaceFiles.of(Workspace({str(tmp_path): ""}))

    files.check_size(3.1)
    with pytest.raises(InvalidAppError, match=r"3\.0 MB.*workspace_max_mb is 2.*data/ \(3\.0 MB\).*\.launchignore"):
        files.check_size(2)


def test_the_text_lists_left_out_entries(tmp_path):
    tree(tmp_path, "a.py", "data/x", "data/y", "notes.txt")
    (tmp_path / ".launchignore").write_text("data\n*.txt\n")

    assert str(WorkspaceFiles.of(Workspace({str(tmp_path): ""}))).endswith(
        "2 files, 0.0 kB; left out: data/, notes.txt"
    )


def test_a_large_ignore_file_is_refused(tmp_path):
    """Each of its patterns is compared with each path, and a sparse file would fill the memory."""
    fs = pytest.importorskip("fsspec").filesystem("file")
    root = tree(tmp_path, "a")
    (root / ".launchignore").touch()
    os.truncate(root / ".launchignore", 2**40)

    with pytest.raises(InvalidAppError, match=r"launchignore' has more than 64 KB; leave out"):
        found(root)
    with pytest.raises(InvalidAppError, match=r"launchignore' has more than 64 KB; leave out"):
        list(walk_workspace(fs, str(root)))


def test_a_walk_over_any_file_system():
    """The walk that plug-ins use, on an fsspec file system in memory."""
    fsspec = pytest.importorskip("fsspec")
    fs = fsspec.filesystem("memory")
    root = "/walk-test"
    for path in ("a.py", "src/b.py", "src/deep/c.py", "data/d"):
        fs.pipe(f"{root}/{path}", b"")
    fs.pipe(f"{root}/.torchxignore", b"data\n*/deep\n")

    walked = {directory: sorted(files) for directory, _, files in walk_workspace(fs, root)}

    assert walked == {root: [".torchxignore", "a.py"], f"{root}/src": ["b.py"]}
