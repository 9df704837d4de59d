"""Files of several attempts of a task."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath

from airflow_provider_launch.pipelines import load
from airflow_provider_launch.pipelines.catalog import CatalogError, Earlier, RunCatalog, copy_project
from airflow_provider_launch.pipelines.desk import DeskRun, new_run
from airflow_provider_launch.pipelines.folders import FolderError


class Files:
    """The catalog of one run, and a folder for each attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._attempts = itertools.count()

    def catalog(self, task_id: str, scopes: tuple[str, ...] = (), **earlier: Any) -> RunCatalog:
        before = {name: Earlier(one) if isinstance(one, int) else one for name, one in earlier.items()}
        return RunCatalog(ObjectStoragePath(f"file://{self.path}/catalog"), "d", "r:1", task_id, scopes, before)

    def folder(self) -> Path:
        folder = self.path / "data" / str(next(self._attempts))
        folder.mkdir(parents=True, mode=0o700)
        folder.parent.chmod(0o700)
        return folder

    def put(self, task_id: str, scopes: tuple[str, ...] = (), *, strict: bool = True, **files: str) -> None:
        folder = self.folder()
        for name, text in files.items():
            (folder / name).write_text(text)
        self.catalog(task_id, scopes).put(["*"], folder, is_strict=strict)

    def get(self, task_id: str, scopes: tuple[str, ...] = (), **earlier: Any) -> dict[str, str]:
        folder = self.folder()
        self.catalog(task_id, scopes, **earlier).get(["**"], folder)
        return {
            path.relative_to(folder).as_posix(): path.read_text()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_an_attempt_replaces_what_an_earlier_one_stored(files: Files) -> None:
    """Names with a pid or a date differ in each attempt; a `*` of the next task would read both."""
    files.put("make", strict=False, part_17="half", report="half")
    assert files.get("handle", make=1) == {"part_17": "half", "report": "half"}

    files.put("make", part_18="whole", report="whole")

    assert files.get("read", make=1) == {"part_18": "whole", "report": "whole"}


@pytest.mark.parametrize("run_id", [".", ".."])
def test_a_run_named_by_a_dot_has_files_of_its_own(files: Files, run_id: str) -> None:
    """Otherwise its task `x` would replace the files of the run `x`, or of the DAG `x`."""
    base = ObjectStoragePath(f"file://{files.path}/catalog")
    folder = files.folder()
    (folder / "out").write_text("dot")
    RunCatalog(base, "d", run_id, "x").put(["*"], folder)

    found = [path.relative_to(files.path / "catalog").as_posix() for path in files.path.rglob("catalog/**/out")]
    assert [Path(one).parts[0] for one in found] == ["d"]
    assert len(Path(found[0]).parts) == 4
    read = files.folder()
    RunCatalog(base, "d", run_id, "y", (), {"x": Earlier(1)}).get(["out"], read)
    assert (read / "out").read_text() == "dot"


def test_an_attempt_that_stores_nothing_leaves_nothing(files: Files) -> None:
    files.put("make", out="old")

    files.put("make", strict=False)

    with pytest.raises(CatalogError, match="no earlier task stored any"):
        files.get("read", make=1)


def test_an_attempt_whose_files_cannot_all_be_stored_leaves_nothing(files: Files) -> None:
    """Files of two attempts would mix, and the next task would read them."""
    files.put("make", a="first", b="first")
    files.put("other", c="other")
    folder = files.folder()
    (folder / "a").write_text("second")
    (folder / "z").symlink_to("../../secret")
    (files.path / "secret").write_text("secret")
    with pytest.raises(FolderError, match="'z' is a link that leads out"):
        files.catalog("make").put(["*"], folder)

    assert files.get("next", make=1, other=2) == {"c": "other"}


def test_another_task_keeps_its_file_of_the_same_name(files: Files) -> None:
    files.put("make", data="made", old="made")
    files.put("clean", data="cleaned", old="made")

    files.put("make", data="made again")

    assert files.get("read", make=1, clean=2) == {"data": "cleaned", "old": "made"}


def test_a_retry_reads_what_the_first_attempt_read(files: Files) -> None:
    """A step that adds to a file would add twice."""
    files.put("make", counts="1")
    files.put("add", counts="12")

    assert files.get("add", make=1) == {"counts": "1"}
    files.put("make", counts="a")
    assert files.get("add", make=1) == {"counts": "a"}
    assert files.get("read", make=1, add=2) == {"counts": "12"}


def test_files_of_a_task_that_is_not_before_are_not_read(files: Files) -> None:
    """Otherwise the result would depend on which of two parallel steps is faster."""
    files.put("a", out="a")
    files.put("b", out="b", more="b")

    assert files.get("after_a", a=1) == {"out": "a"}
    assert files.get("after_both", a=1, b=2) == {"out": "b", "more": "b"}


def test_an_element_replaces_its_own_files_only(files: Files) -> None:
    for at in range(3):
        files.put("m.each.one", (f"m/{at}",), out=f"{at}", **{f"pid_{at}": ""})
    files.put("m.each.one", ("m/1",), out="again", pid_7="")

    three = Earlier(1, "m", lambda: 3)
    assert files.get("read", **{"m.each.one": three}) == {
        "m/0/out": "0", "m/0/pid_0": "", "m/1/out": "again", "m/1/pid_7": "", "m/2/out": "2", "m/2/pid_2": "",
    }  # fmt: skip
    assert files.get("m.each.two", ("m/1",), **{"m.each.one": three}) == {"out": "again", "pid_7": ""}


def test_a_folder_that_is_no_element_does_not_stop_other_tasks(files: Files) -> None:
    """Such as one of an attempt before the task was mapped; this digit is not a number for Python."""
    files.put("m.each.one", ("m/²",), out="0")

    assert files.get("read", **{"m.each.one": Earlier(1, "m", lambda: 3)}) == {"m/²/out": "0"}


def test_elements_of_a_longer_list_are_not_read(files: Files) -> None:
    """The list of a run that was cleared may be shorter."""
    for at in range(3):
        files.put("m.each.one", (f"m/{at}",), out=f"{at}")

    assert files.get("read", **{"m.each.one": Earlier(1, "m", lambda: 2)}) == {"m/0/out": "0", "m/1/out": "1"}


def test_files_of_a_failed_try_are_gone_after_a_success(run_pipeline, tmp_path):
    ran = run_pipeline(f"""
        catalog: {tmp_path / "catalog"}
        executor: {{type: local, config: {{env: {{FLAG: "{tmp_path / "flag"}"}}}}}}
        dag:
          start_at: make
          steps:
            make:
              type: task
              command_type: shell
              command: echo x > part-$$.csv; test -e $FLAG || {{ touch $FLAG; exit 1; }}
              max_attempts: 2
              catalog: {{put: "*.csv"}}
              next: read
            read: {{type: task, command_type: shell, command: test "$(ls | wc -l)" = 1, catalog: {{get: "*.csv"}}, next: success}}
        """)

    assert ran.state == "success", ran.states
    assert len([*(tmp_path / "catalog").rglob("*.csv")]) == 1


# Airflow looks for the one stored form of the DAG, which has two by now, if it loads this relation of the first run.
@pytest.mark.filterwarnings("ignore:Multiple rows returned with uselist=False")
def test_files_of_a_run_before_clear_are_gone(run_pipeline, write, tmp_path, monkeypatch):
    """The code may have changed, and with it the names of the files."""
    text = """
        catalog: {catalog}
        dag:
          start_at: make
          steps:
            make: {{type: task, command_type: shell, command: echo {name} > part-{name}.csv, catalog: {{put: "*.csv"}}, next: read}}
            read: {{type: task, command_type: shell, command: 'export seen=$(cat part-*.csv)', returns: [seen], catalog: {{get: "*.csv"}}, next: success}}
        """
    seen = []
    for name in ("old", "new"):
        # A run of the same id; a Clear would replace its apps.
        monkeypatch.setenv("LAUNCH_HOME", str(tmp_path / name))
        path = write(text.format(catalog=tmp_path / "catalog", name=name))
        ran = run_pipeline(path, dag_id="cleared", at=datetime(2026, 1, 1, tzinfo=timezone.utc))
        seen.append((ran.run.run_id, ran.returned("read")))

    assert seen == [(seen[0][0], {"seen": "old"}), (seen[0][0], {"seen": "new"})]


def test_a_program_stays_executable(files: Files) -> None:
    made = files.folder()
    (made / "run.sh").write_text("#!/bin/sh\n")
    (made / "run.sh").chmod(0o4750)
    (made / "plain").touch()
    files.catalog("make").put(["*"], made)
    folder = files.folder()

    files.catalog("read", make=1).get(["**"], folder)

    assert [(folder / name).stat().st_mode & 0o7777 for name in ("run.sh", "plain")] == [0o755, 0o644]


def test_files_of_the_project_are_copied_where_the_pipeline_asks_for_them(tmp_path: Path) -> None:
    project, folder = tmp_path / "project", tmp_path / "own"
    for name in ("scripts/a.py", "scripts/sub/b.py", "scripts/__pycache__/a.pyc", ".git/config", "other.txt"):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (project / "scripts" / "link").symlink_to("/etc/passwd")
    folder.mkdir()

    assert copy_project(project, ["scripts/**", "data/"], folder) == 2

    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert found == {"scripts", "scripts/a.py", "scripts/sub", "scripts/sub/b.py", "data"}
    with pytest.raises(CatalogError, match=r"no file of the project .* matches 'missing/\*'"):
        copy_project(project, ["missing/*"], folder)


def test_a_task_with_a_catalog_sees_files_of_the_project(write, run_pipeline) -> None:
    """As in magnus, whose tasks start in the project; `python scripts/x.py` failed."""
    write("print('of the project')\n", "scripts/say.py")

    ran = run_pipeline("""
        catalog: {project: "scripts/*.py"}
        dag:
          start_at: a
          steps:
            a: {type: task, command_type: shell, command: 'cat scripts/say.py > out.txt', catalog: {put: out.txt}, next: b}
            b: {type: task, command_type: shell, command: 'echo x > data/x && cat data/x out.txt', catalog: {get: out.txt, project: data/}, next: c}
            c: {type: task, command_type: shell, command: 'test ! -e scripts', catalog: {get: out.txt, project: data/}, next: success}
        """)

    assert ran.state == "success", ran.states


DATA = """
    catalog: {{type: file-system, config: {{compute_data_folder: {folder}}}}}
    dag:
      start_at: a
      steps:
        a: {{type: task, command_type: shell, command: 'echo 1 > data/x.csv; echo 2 > x.csv', catalog: {{put: "*.csv"{a}}}, next: b}}
        b:
          type: task
          command_type: shell
          command: 'export found=$(find . -type f | sort | tr "\\n" " ")'
          returns: [found]
          catalog: {{get: ["*.csv"], compute_data_folder: {b}}}
          next: success
"""


@pytest.mark.parametrize(
    ("folder", "a", "b"),
    [("data", "", "data"), ("data/", "", "./data"), (".", ", compute_data_folder: data", "data"), ('""', ", compute_data_folder: data", "data")],
    ids=["of the pipeline", "other spellings", "of the task", "none of the pipeline"],
)  # fmt: skip
def test_paths_start_in_the_data_folder_as_in_magnus(write, run_pipeline, folder, a, b) -> None:
    """The setting was read and ignored."""
    path = write(DATA.format(folder=folder, a=a, b=b))
    shown: list[str] = []
    model = load(path)

    values = DeskRun(model, new_run(model.name), shown.append).run({})
    ran = run_pipeline(path)

    assert (values or {}).get("found") == "./data/x.csv ", shown
    assert ran.state == "success"
    assert ran.returned("b") == {"found": "./data/x.csv "}


def test_the_location_of_the_catalog_is_a_template(run_pipeline, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_STORE", str(tmp_path / "store"))

    ran = run_pipeline("""
        catalog: "{{ var.value.store }}/{{ ds_nodash }}"
        dag:
          start_at: a
          steps: {a: {type: task, command_type: shell, command: echo 1 > out.txt, catalog: {put: out.txt}, next: success}}
        """)

    assert ran.state == "success", ran.states
    (found,) = (tmp_path / "store").rglob("out.txt")
    assert found.relative_to(tmp_path / "store").parts[0].isdigit()


def test_elements_and_attempts_that_store_files_at_the_same_time_keep_their_own(files: Files) -> None:
    """Elements of a map run on several workers."""

    def store(at: int) -> dict[str, str]:
        for attempt in ("first", "second"):
            files.put("m.each.one", (f"m/{at}",), out=f"{at} {attempt}", **{f"pid_{at}_{attempt}": ""})
        return files.get("m.each.two", (f"m/{at}",), **{"m.each.one": Earlier(1, "m", lambda: 8)})

    with ThreadPoolExecutor(8) as pool:
        seen = [*pool.map(store, range(8))]

    assert seen == [{"out": f"{at} second", f"pid_{at}_second": ""} for at in range(8)]
    assert {**files.get("read", **{"m.each.one": Earlier(1, "m", lambda: 8)})} == {
        f"m/{at}/{name}": text for at in range(8) for name, text in seen[at].items()
    }


@pytest.mark.parametrize("fails", [False, True])
def test_a_notebook_is_kept_with_its_outputs(write, run_pipeline, tmp_path: Path, fails: bool) -> None:
    pytest.importorskip("nbclient")
    source = "print('seen')" + ("; raise Exception('broken')" if fails else "")
    cell = {"cell_type": "code", "metadata": {}, "source": source, "outputs": [], "execution_count": None, "id": "a"}
    write(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), "book.ipynb")

    ran = run_pipeline("""
        catalog: kept
        dag: {start_at: a, steps: {a: {type: task, command_type: notebook, command: book.ipynb, next: success}}}
        """)

    assert ran.state == ("failed" if fails else "success"), ran.states
    (found,) = (tmp_path / "kept").rglob("book_out.ipynb")
    assert "seen" in found.read_text()
    assert ("broken" in found.read_text()) is fails
    assert "seen" not in (tmp_path / "book.ipynb").read_text().replace("print('seen')", "")
