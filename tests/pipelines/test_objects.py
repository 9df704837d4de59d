"""Objects between tasks: pickles that only tasks read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch.pipelines import Pipeline, Task, dag_from_file, metric, pickled
from airflow_provider_launch.pipelines.catalog import matches
from airflow_provider_launch.pipelines.model import Return, TaskStep
from airflow_provider_launch.pipelines.objects import file_of, readable, reference
from airflow_provider_launch.pipelines.run_step import find_step, run_step
from airflow_provider_launch.pipelines.validation import load
from tests.pipelines.test_program import notebook, run

FUNCTIONS = """
class Frame:
    def __init__(self, rows):
        self.rows = rows


def make():
    return Frame([1, 2]), 2


def grow(frame, x):
    return {"frame": Frame([*frame.rows, x])}


def check(frame, again):
    import os

    assert [one.rows for one in frame] == [[1, 2, 10], [1, 2, 20]], frame
    assert [one.rows for one in again] == [one.rows for one in frame]
    # The step starts in the folder of its code, as without objects.
    assert os.path.exists("objects_of_mine.py")
    return {"frame": Frame([3]), "sizes": [len(one.rows) for one in frame]}
"""


def test_objects_go_from_function_to_function(write, run_pipeline, tmp_path):
    write(FUNCTIONS, "objects_of_mine.py")

    ran = run_pipeline(f"""
        catalog: {tmp_path / "catalog"}
        parameters: {{xs: [10, 20]}}
        dag:
          start_at: make
          steps:
            make: {{type: task, command: objects_of_mine.make, returns: [{{name: frame, kind: object}}, count], next: m}}
            m:
              type: map
              iterate_on: xs
              iterate_as: x
              next: check
              branch:
                start_at: grow
                steps:
                  grow: {{type: task, command: objects_of_mine.grow, returns: [{{name: frame, kind: object}}], next: success}}
            check: {{type: task, command: objects_of_mine.check, args: {{again: $frame}}, returns: [sizes], next: success}}
        """)

    assert ran.state == "success", ran.states
    assert ran.returned("make") == {"frame": {"$object": ".launch-objects/make/frame.pickle"}, "count": 2}
    assert ran.returned("m.fan_in") == {
        "frame": [{"$object": f"m/{at}/.launch-objects/m.each.grow/frame.pickle"} for at in range(2)]
    }
    assert ran.returned("check") == {"sizes": [3, 3]}


TRACED = """
import os


def opened(path):
    with open(path, "a") as file:
        file.write(f"{os.getpid()} ")
    return 1


class Traced:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return opened, (self.path,)


def make(path):
    return Traced(path)


def read(traced):
    return os.getpid()
"""


def test_an_object_is_unpickled_only_by_the_task_that_reads_it(write, run_pipeline, tmp_path) -> None:
    """A pickle runs code where it is read. This process is the worker of all tasks."""
    write(TRACED, "objects_traced.py")

    ran = run_pipeline(f"""
        parameters: {{path: {tmp_path / "pids"}}}
        dag:
          start_at: make
          steps:
            make: {{type: task, command: objects_traced.make, returns: [{{name: traced, kind: object}}], next: other}}
            other: {{type: task, command_type: shell, command: "true", next: read}}
            read: {{type: task, command: objects_traced.read, returns: [pid], next: success}}
        """)

    assert ran.state == "success", ran.states
    assert (tmp_path / "pids").read_text().split() == [str(ran.returned("read")["pid"])]


PLACED = """
import os


def make():
    return {1, 2}


def place(path, pickle):
    return {"title": {"$object": pickle}}


def use(model, path):
    with open(os.path.join(path, "used"), "w") as file:
        file.write(repr(model))
"""


@pytest.mark.parametrize("command", ["notebook", "function"])
@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize(
    ("argument", "conf"),
    [
        ("$title", {"title": {"$object": "EVIL"}}),
        ('"{{ dag_run.conf.title }}"', {"title": {"$object": "EVIL"}}),
        ('"{{ dag_run.conf.title }}"', {"title": "{'$object': 'EVIL'}"}),
        ('"{{ dag_run.conf.title }}"', {"title": "$x", "x": {"$object": "EVIL"}}),
        ("$title", {"is_placed": True}),
    ],
)
def test_an_argument_with_the_name_of_an_object_gives_no_pickle(
    write, test_dag, tmp_path, argument: str, conf: dict[str, Any], is_native: bool, command: str
) -> None:
    """The step may read the object that the argument replaces; neither a run nor a program may name another one."""
    write(PLACED, "objects_placed.py")
    notebook(tmp_path / "book.ipynb", ["repr(model)"])
    evil, marker = tmp_path / "evil.pickle", tmp_path / "unpickled"
    evil.write_bytes(pickle.dumps(Marker(str(marker))))
    use = "command_type: notebook, command: book.ipynb" if command == "notebook" else "command: objects_placed.use"
    place = "{type: task, command: objects_placed.place, returns: [title], next: use}"
    skip = '{type: task, command_type: shell, command: "true", returns: [], next: use}'
    file = write(f"""
        parameters: {{path: {tmp_path}, pickle: {evil}, title: null}}
        dag:
          start_at: make
          steps:
            make: {{type: task, command: objects_placed.make, returns: [{{name: model, kind: object}}], next: place}}
            place: {place if conf.get("is_placed") else skip}
            use: {{type: task, {use}, args: {{model: {argument}}}, returns: [], next: success}}
        """)
    given = json.loads(json.dumps(conf).replace("EVIL", str(evil)))
    test_dag(dag_from_file(file, "placed", render_template_as_native_obj=is_native), run_conf=given)

    assert not marker.exists()


class Marker:
    """Makes a file where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


def maker(*names: str) -> Any:
    return SimpleNamespace(step=TaskStep("s", returns=tuple(Return(name, "object") for name in names)))


TASKS = {"make": maker("df"), "m.each.one": maker("df"), "other": SimpleNamespace(step=TaskStep("o", returns=()))}


@pytest.mark.parametrize(
    ("value", "files"),
    [
        (reference("make", "df", ""), [".launch-objects/make/df.pickle"]),
        (reference("m.each.one", "df", "m/1"), [".launch-objects/m.each.one/df.pickle"]),
        (reference("m.each.one", "df", "m/2"), ["m/2/.launch-objects/m.each.one/df.pickle"]),
        ([reference("make", "df", ""), None], [".launch-objects/make/df.pickle"]),
        # A program that returns such a value must not choose the file that the next task unpickles.
        ({"$object": "df.pickle"}, []),
        ({"$object": ".launch-objects/make/other.pickle"}, []),
        ({"$object": ".launch-objects/other/df.pickle"}, []),
        ({"$object": ".launch-objects/gone/df.pickle"}, []),
        ({"$object": "../.launch-objects/make/df.pickle"}, []),
        ({"$object": ".launch-objects/make/../../df.pickle"}, []),
        ({"$object": "evil.launch-objects/make/df.pickle"}, []),
        ({"$object": ".launch-objects/make/x/df.pickle"}, []),
        ({"$object": 5}, []),
        ([reference("make", "df", ""), {"x": 1}], []),
        ([1, 2], []),
    ],
)
def test_only_objects_of_tasks_that_declare_them_are_read(value: Any, files: list[str]) -> None:
    found = readable({"df": value, "n": 1}, TASKS, ["m/1"])

    assert (found.files, found.names) == (files, ["df"] if files else [])
    assert found.values["n"] == 1
    if not files:
        assert found.values["df"] == value


def test_patterns_of_a_step_do_not_reach_the_folder_of_objects() -> None:
    """Otherwise a program could store a pickle under the name of another task's."""
    file = file_of("make", "df")

    assert matches(file, file)
    assert not any(matches(file, pattern) for pattern in ("**", "**/*", ".", ".launch-objects", "*/*/*", ".*/**"))
    assert not matches(f"m/1/{file}", "m/**")


def test_a_step_at_the_desk_reads_the_object_of_another(write, tmp_path):
    write("def make():\n    return {1, 2}\n\n\ndef size(df):\n    return len(df)\n", "objects_at_desk.py")
    model = load(
        write("""
        dag:
          start_at: make
          steps:
            make: {type: task, command: objects_at_desk.make, returns: [{name: df, kind: object}], next: size}
            size: {type: task, command: objects_at_desk.size, returns: [count], next: success}
        """)
    )
    data = tmp_path / "data"
    data.mkdir()

    made = run_step(model, find_step(model, "make")[0], {}, elements=[], data_dir=data)
    size = run_step(model, find_step(model, "size")[0], {}, elements=[], data_dir=data)

    assert (made[0], size) == (0, (0, {"count": 2}))


def test_notebooks_read_and_return_objects(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    code, data = tmp_path / "code", tmp_path / "data"
    (data / ".launch-objects" / "make").mkdir(parents=True)
    code.mkdir()
    (data / ".launch-objects" / "make" / "df.pickle").write_bytes(pickle.dumps({1, 2}))
    notebook(code / "book.ipynb", ["count = len(df) + len(dfs[0])", "more = {*df, 3}"])
    value = {"$object": ".launch-objects/make/df.pickle"}
    objects = {"folder": str(data), "get": ["df", "dfs"], "put": {"more": ".launch-objects/b/more.pickle"}}

    ran = run(
        code, "notebook", "book.ipynb", "", "", "count", "more",
        LAUNCH_PARAMETERS=json.dumps({"df": value, "dfs": [value, None]}), LAUNCH_OBJECTS=json.dumps(objects),
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr[-2000:]
    assert json.loads((tmp_path / "result").read_text()) == {
        "count": 4, "more": {"$object": ".launch-objects/b/more.pickle"}
    }  # fmt: skip
    assert pickle.loads((data / ".launch-objects" / "b" / "more.pickle").read_bytes()) == {1, 2, 3}


def test_an_object_that_is_not_here_is_named(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("def step(df):\n    pass\n")

    ran = run(tmp_path / "code", "function", "mine.step", LAUNCH_PARAMETERS='{"df": {"$object": "/etc/passwd"}}')

    assert ran.returncode == 1
    assert "parameter df is an object, which is not here" in ran.stderr


def test_kinds_of_values_in_python() -> None:
    pipeline = Pipeline("p", steps=[Task("a", function="m.f", returns=[pickled("df"), metric("loss"), "x"])])

    returns = pipeline.model().graph.steps["a"].returns

    assert [(item.name, item.kind) for item in returns] == [("df", "object"), ("loss", "metric"), ("x", "json")]
