import configparser
import os
import time

import pytest

from airflow_provider_launch.specs import Workspace


@pytest.mark.parametrize(
    ("text", "projects"),
    [
        (None, {}),
        ("", {}),
        ("  \n", {}),
        ("~/a", {"~/a": ""}),
        ("~", {"~": ""}),
        ("2024", {"2024": ""}),
        ("~/a: lib", {"~/a": "lib"}),
        ("~/a:\n~/b: b", {"~/a": "", "~/b": "b"}),
        ("\n    ~/a:\n    ~/b: b\n", {"~/a": "", "~/b": "b"}),
        ("a: null\nb: ~\nc: ''", {"a": "", "b": "", "c": ""}),
        ("/x: 1", {"/x": "1"}),
    ],
)
def test_text_becomes_projects(text, projects):
    assert Workspace.from_str(text) == Workspace(projects)


def test_a_value_of_several_lines_in_an_ini_file_is_valid_input():
    ini = configparser.ConfigParser(delimiters=("=",))
    ini.read_string("[local]\nworkspace =\n    ~/a:\n    ~/b: b\n")

    assert Workspace.from_str(ini["local"]["workspace"]) == Workspace({"~/a": "", "~/b": "b"})


@pytest.mark.parametrize("text", ["- a\n- b", "a: [b]", "a: {b: c}", "a: 'b", "[a]: b", '"\\x2fa"'])
def test_other_yaml_is_refused(text):
    with pytest.raises(ValueError, match="workspace"):
        Workspace.from_str(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 3000, "line 1 must be one path"),
        ("{a: " * 3000, "line 1 must be one path"),
        ("a: &x b\nc: *x", "line 2 must be one path"),
        ("a: 'b\n" + "x" * 3000, "not valid YAML"),
        ("x" * 10_000_000, "more than 65536 characters"),
    ],
    ids=["lists", "mappings", "alias", "quote", "long"],
)
def test_a_text_of_a_run_costs_little(text, reason):
    """A run may choose it: it exhausted the stack or took seconds, and its error was as long as the text."""
    began = time.process_time()
    with pytest.raises(ValueError, match=reason) as caught:
        Workspace.from_str(text)

    assert len(str(caught.value)) < 1000
    assert time.process_time() - began < 5


def test_truth_equality_and_hash_go_by_projects():
    one, other = Workspace({"a": "x", "b": ""}), Workspace({"b": "", "a": "x"})

    assert not Workspace({})
    assert one
    assert one == other
    assert hash(one) == hash(other)
    assert one != Workspace({"a": "x"})


@pytest.mark.parametrize(
    ("projects", "text", "unmapped"),
    [
        ({}, "", False),
        ({"~/a": ""}, "~/a", True),
        ({"~/a": "lib"}, "~/a:lib", False),
        ({"~/a": "", "~/b": "b"}, "~/a;~/b:b", False),
    ],
)
def test_text_for_logs(projects, text, unmapped):
    workspace = Workspace(projects)

    assert str(workspace) == text
    assert workspace.is_unmapped_single_project() is unmapped


def test_merging_keeps_modes_links_and_empty_directories(tmp_path):
    project, out = tmp_path / "project", tmp_path / "deep" / "out"
    (project / "empty").mkdir(parents=True)
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "link").symlink_to("run.sh")
    (project / "dangling").symlink_to("nowhere")
    (out / "lib" / "kept").mkdir(parents=True)
    (out / "lib" / "run.sh").write_text("old")

    for _ in range(2):  # merging again changes nothing
        Workspace({str(project): "lib"}).merge_into(out)

    assert (out / "lib" / "run.sh").read_text() == "#!/bin/sh\n"
    assert os.access(out / "lib" / "run.sh", os.X_OK)
    assert (out / "lib" / "run.sh").stat().st_mtime == (project / "run.sh").stat().st_mtime
    assert str((out / "lib" / "link").readlink()) == "run.sh"
    assert str((out / "lib" / "dangling").readlink()) == "nowhere"
    assert (out / "lib" / "empty").is_dir()
    assert (out / "lib" / "kept").is_dir()


def test_a_file_goes_into_the_root_or_becomes_its_target(tmp_path):
    file, out = tmp_path / "main.py", tmp_path / "out"
    file.write_text("x")

    Workspace({str(file): ""}).merge_into(out)
    Workspace({str(file): "a/b.py"}).merge_into(str(out))
    Workspace({str(file): "c/"}).merge_into(out)

    found = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert found == ["a/b.py", "c/main.py", "main.py"]


def test_a_project_that_contains_the_output_is_not_copied_into_itself(tmp_path):
    (tmp_path / "a").write_text("x")

    Workspace({str(tmp_path): ""}).merge_into(tmp_path / "out")

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_text("x")

    Workspace({"~/a": ""}).merge_into(tmp_path / "out")

    assert (tmp_path / "out" / "f").exists()


@pytest.mark.parametrize("target", ["../x", "/etc", "a/../../x"])
def test_a_target_outside_the_workspace_is_refused(tmp_path, target):
    with pytest.raises(ValueError, match="outside"):
        Workspace({str(tmp_path): target}).merge_into(tmp_path / "out")


@pytest.fixture
def linked(tmp_path):
    """A function that merges a project with links `data`, `lib/data` and `main.py`, and then a second one."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "main.py").write_text("old")
    (tmp_path / "code" / "lib").mkdir(parents=True)
    for name, to in (("data", ""), ("lib/data", ""), ("main.py", "main.py")):
        (tmp_path / "code" / name).symlink_to(tmp_path / "outside" / to)
    (tmp_path / "other" / "lib" / "data").mkdir(parents=True)
    (tmp_path / "other" / "lib" / "data" / "evil").write_text("new")
    (tmp_path / "other" / "main.py").write_text("new")

    def merge(source, target):
        Workspace({f"{tmp_path}/code": "", f"{tmp_path}/{source}": target}).merge_into(tmp_path / "out")

    yield merge
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["main.py"]
    assert (tmp_path / "outside" / "main.py").read_text() == "old"


@pytest.mark.parametrize("target", ["data/sub", "data/a/b/c", "lib/data/x"])
@pytest.mark.parametrize("source", ["other", "other/main.py"])
def test_nothing_is_merged_below_a_link(linked, source, target):
    with pytest.raises(ValueError, match="is below a link in the workspace"):
        linked(source, target)


def test_no_file_is_merged_into_a_link(linked):
    with pytest.raises(ValueError, match="is below a link in the workspace"):
        linked("other/main.py", "data/")


@pytest.mark.parametrize(
    ("source", "target", "found"),
    [
        ("other", "", "main.py"),
        ("other", "", "lib/data/evil"),
        ("other", "data", "data/lib/data/evil"),
        ("other/main.py", "main.py", "main.py"),
        ("other/main.py", "data", "data"),
    ],
)
def test_a_later_project_replaces_a_link(linked, tmp_path, source, target, found):
    linked(source, target)

    assert (tmp_path / "out" / found).read_text() == "new"
    assert (tmp_path / "out" / found).resolve() == tmp_path / "out" / found


def test_a_missing_project_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Workspace({str(tmp_path / "missing"): ""}).merge_into(tmp_path / "out")
