"""A whole pipeline at the desk: local processes, no Airflow."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_launch.pipelines.desk import DeskRun, new_run, runs_of
from airflow_provider_launch.pipelines.validation import load
from tests.support.apps import until

CODE = """
import pathlib


class Model:
    def __init__(self, xs):
        self.xs = xs


def fit(y):
    return Model(y)


def use(model):
    return max(model.xs)
"""
WHOLE = """
    executor: {{type: kubernetes, config: {{image: "repo/x:1", data_dir: /shared, env: {{FROM: file}}}}}}
    parameters: {{xs: [1, 2, 3], side: left}}
    dag:
      start_at: each
      steps:
        each:
          type: map
          iterate_on: xs
          iterate_as: x
          next: fit
          branch:
            start_at: one
            steps: {{one: {{type: task, command_type: shell, command: 'export y=$((x * 10)); echo $x > part.txt', returns: [y], catalog: {{put: "*.txt"}}, next: success}}}}
        fit: {{type: task, command: desk_code.fit, returns: [{{name: model, kind: object}}], next: choose}}
        choose:
          type: conditional
          parameter: side
          next: use
          branches:
            left: {{start_at: a, steps: {{a: {{type: task, command_type: shell, command: 'export taken=left$FROM', returns: [taken], next: success}}}}}}
            right: {{start_at: a, steps: {{a: {{type: task, command_type: shell, command: 'exit 9', next: success}}}}}}
        use: {{type: task, command: desk_code.use, returns: [most], next: files}}
        files: {{type: task, command_type: shell, command: 'cat each/*/part.txt > all.txt; {then}', catalog: {{get: "each/**", put: all.txt}}, next: both, on_failure: repair}}
        both:
          type: parallel
          next: success
          branches:
            one: {{start_at: a, steps: {{a: {{type: task, command_type: shell, command: 'export z=1', returns: [z], next: success}}}}}}
            two: {{start_at: a, steps: {{a: {{type: task, command_type: shell, command: 'export z=2', returns: [z], next: success}}}}}}
        repair: {{type: task, command_type: shell, command: 'test "$(cat all.txt | wc -l)" -eq 3 && export repaired=1', returns: [repaired], catalog: {{get: all.txt}}, next: {end}}}
    """


@pytest.fixture
def pipeline(write):
    def make(then: str = "true", end: str = "success") -> Path:
        write(CODE, "desk_code.py")
        return write(WHOLE.format(then=then, end=end))

    return make


@pytest.mark.timeout(900)
def test_every_kind_of_step_runs_and_a_failure_is_resumed(pipeline, tmp_path) -> None:
    """Only the failed step and those after it run again; the others keep values, objects and files."""
    shown: list[str] = []
    flag = tmp_path / "flag"
    model = load(pipeline(f"test -e {flag}", end="fail"))
    folder = new_run(model.name)

    assert DeskRun(model, folder, shown.append).run({"side": "left"}) is None
    assert [line for line in shown if "FAILED: step 'files'" in line], shown
    flag.touch()
    shown.clear()
    values = DeskRun(model, folder, shown.append).run({})

    assert values is not None, shown
    assert {name: values[name] for name in ("y", "most", "taken", "z")} == {
        "y": [10, 20, 30], "most": 30, "taken": "leftfile", "z": 2,
    }  # fmt: skip
    steps = [line.removeprefix("== ") for line in shown if line.startswith("== ")]
    assert steps == [
        *(f"each[{at}].one: succeeded before" for at in range(3)), "fit: succeeded before",
        "choose.left.a: succeeded before", "use: succeeded before", "files", "both.one.a", "both.two.a",
    ]  # fmt: skip
    assert [*(folder / "tasks").iterdir()] == []
    assert next(runs_of(model.name)) == folder
    assert (folder / "catalog" / model.name / "run" / "files" / "all.txt").read_text() == "1\n2\n3\n"


@pytest.mark.timeout(900)
def test_a_handler_gets_the_files_of_the_failed_step(pipeline) -> None:
    shown: list[str] = []
    model = load(pipeline("exit 1"))
    run = DeskRun(model, new_run(model.name), shown.append)

    values = run.run({})

    assert (values or {}).get("repaired") == 1, shown
    assert run.failed == ["files"]


def test_patches_templates_secrets_and_attempts(write, monkeypatch, tmp_path) -> None:
    shown: list[str] = []
    monkeypatch.setenv("TOKEN", "s3")
    once = "test -e {{ params.at }}/f || { touch {{ params.at }}/f; exit 1; }"
    path = write(f"""
        executor: {{type: mocked, config: {{patches: {{b: {{command: '{once}; export y={{{{ ds }}}}$TOKEN'}}}}}}}}
        parameters: {{at: {tmp_path}}}
        dag:
          start_at: a
          steps:
            a: {{type: task, command_type: shell, command: exit 1, next: b}}
            b: {{type: task, command_type: shell, command: exit 1, max_attempts: 2, returns: [y], secrets: [TOKEN], next: success}}
        """)
    model = load(path)

    values = DeskRun(model, new_run(model.name), shown.append).run({})

    assert re.fullmatch(r"\d+-\d+-\d+s3", (values or {}).get("y", "")), shown
    assert {"== a: mocked", "== b: attempt 2"} <= set(shown)


@pytest.mark.parametrize(
    ("command", "on", "expected"),
    [
        ("export LAUNCH_PARAM_chunks=[1]", "chunk", "which no earlier step has returned; did you mean 'chunks'?"),
        ("true", "chunk", "or add it to 'parameters'"),
        ("export LAUNCH_PARAM_chunks=1", "chunks", "'chunks', which is 1; return a list from its step"),
    ],
)
def test_a_list_that_a_map_does_not_find_is_named_with_its_cure(write, command, on, expected) -> None:
    """A step without `returns` may return any name, so the error comes when the map starts."""
    shown: list[str] = []
    model = load(
        write(f"""
        dag:
          start_at: a
          steps:
            a: {{type: task, command_type: shell, command: "{command}", next: m}}
            m: {{type: map, iterate_on: {on}, iterate_as: x, next: success, branch: {{start_at: b, steps: {{b: {{type: stub, next: success}}}}}}}}
        """)
    )

    assert DeskRun(model, new_run(model.name), shown.append).run({}) is None
    assert expected in shown[-1]


@pytest.mark.parametrize(
    ("reducer", "expected"),
    [
        ("sum", "an integer has more than 64 bits"),
        ("desk_reducer.first", "ValueError: no value is right"),
        ("desk_reducer.no_such", "AttributeError: module 'desk_reducer' has no attribute 'no_such'"),
    ],
)
def test_values_of_a_map_that_cannot_be_reduced_fail_the_run(write, reducer, expected) -> None:
    """The handler of the map runs, as in Airflow; an error of a reducer ended the program with a traceback."""
    shown: list[str] = []
    write("def first(values):\n    raise ValueError('no value is right')\n", "desk_reducer.py")
    step = "{type: task, command_type: shell, command: 'export y=4611686018427387904', returns: [y], next: success}"
    model = load(
        write(f"""
        dag:
          start_at: m
          steps:
            m: {{type: map, iterate_on: [1, 2], iterate_as: x, reducer: {reducer}, next: success, on_failure: h, branch: {{start_at: a, steps: {{a: {step}}}}}}}
            h: {{type: stub, next: success}}
        """)
    )
    run = DeskRun(model, new_run(model.name), shown.append)

    assert run.run({}) is not None
    assert run.failed == ["m"]
    assert [expected in line for line in shown if "FAILED" in line] == [True]


def test_settings_are_templates_at_the_desk(write) -> None:
    shown: list[str] = []
    config = "{env: {DAY: '{{ ds }}'}, shell_options: '{{ params.how }}', cpu: '{{ params.n }}'}"
    model = load(
        write(f"""
        executor: {{type: local, config: {config}}}
        parameters: {{how: -eu, n: 1}}
        dag:
          start_at: a
          steps: {{a: {{type: task, command_type: shell, command: 'export day=$DAY set=$-', returns: [day, set], next: success}}}}
        """)
    )

    values = DeskRun(model, new_run(model.name), shown.append).run({}) or {}

    assert re.fullmatch(r"\d{4}-\d\d-\d\d", values["day"]), shown
    assert {"e", "u"} <= {*values["set"]}


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("command_type: shell, command: 'echo {{ var.value.x }}'", "needs Airflow: 'var' is undefined"),
        ("command_type: shell, command: 'true', secrets: [NO_SUCH_SECRET]", "needs the secrets NO_SUCH_SECRET"),
        ("command_type: shell, command: 'true', catalog: {get: missing}", "no file of the catalog matches 'missing'"),
    ],
)
def test_a_step_that_cannot_start_fails_the_run(write, step: str, expected: str) -> None:
    shown: list[str] = []
    model = load(write(f"dag: {{start_at: a, steps: {{a: {{type: task, {step}, next: success}}}}}}\n"))

    assert DeskRun(model, new_run(model.name), shown.append).run({}) is None
    assert any(expected in line for line in shown), shown


def at_desk(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "airflow_provider_launch.pipelines", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=folder)


@pytest.mark.timeout(900)
def test_the_command_runs_and_resumes(write, tmp_path) -> None:
    path = write("""
        dag:
          start_at: a
          steps:
            a: {type: task, command_type: shell, command: export x=1, returns: [x], next: b}
            b: {type: task, command_type: shell, command: 'test "$code" = 0 && export y=2', returns: [y], next: success}
        """)
    assert "there is no run of 'pipeline' to resume" in at_desk(tmp_path, "run", str(path), "--resume").stderr

    first = at_desk(tmp_path, "run", str(path), "--set", "code=1")
    second = at_desk(tmp_path, "run", str(path), "--resume", "--set", "code=0")

    assert (first.returncode, second.returncode) == (1, 0), first.stdout + second.stdout + second.stderr
    assert "--resume" in first.stdout
    assert "== a: succeeded before" in second.stdout
    assert json.loads(second.stdout.splitlines()[-1]) == {"code": 0, "x": 1, "y": 2}


LEFT = """
    parameters: {flags: .}
    dag:
      start_at: a
      steps:
        a: {type: task, command_type: shell, command: 'test -e $flags/a', next: n, on_failure: h}
        n: {type: task, command_type: shell, command: 'export x=main', returns: [x], next: c}
        h: {type: task, command_type: shell, command: 'export x=handler; echo h >> $flags/handled', returns: [x], next: c}
        c: {type: task, command_type: shell, command: 'export seen=$x; echo $x > $x.txt', returns: [seen], catalog: {put: "*.txt"}, next: d}
        d: {type: task, command_type: shell, command: 'test -e $flags/d && export files="$(ls)"', returns: [files], catalog: {get: "*"}, next: success}
    """


def test_steps_after_one_that_ran_again_run_again(write, tmp_path) -> None:
    """They kept the values of the path that the first run took, and a handler did not run a second time."""
    model = load(write(LEFT))
    folder, shown = new_run(model.name), []

    def run() -> dict | None:
        shown.clear()
        return DeskRun(model, folder, shown.append).run({"flags": str(tmp_path)})

    assert run() is None
    assert run() is None
    assert (tmp_path / "handled").read_text() == "h\nh\n"
    (tmp_path / "a").touch()
    (tmp_path / "d").touch()
    values = run()

    assert values is not None, shown
    assert (values["x"], values["seen"], values["files"]) == ("main", "main", "main.txt")
    assert run() == values
    assert [line for line in shown if "succeeded before" in line] == [
        f"== {name}: succeeded before" for name in ("a", "n", "c", "d")
    ]


RESUMED = """
    dag:
      start_at: m
      steps:
        m: {type: map, iterate_on: xs, iterate_as: x, next: last, branch: {start_at: one, steps: {
          one: {type: task, command_type: shell, command: 'export y=$((x * by)); echo $y > y.txt', returns: [y], catalog: {put: y.txt}, next: success}}}}
        last: {type: task, command_type: shell, command: 'test -e flag || exit 1; export seen="$(cat m/*/y.txt | tr "\\n" " ")"', returns: [seen], catalog: {get: "m/**", project: flag}, next: success}
    """


@pytest.mark.timeout(900)
def test_a_resumed_run_has_the_parameters_and_the_list_of_the_run(write, tmp_path) -> None:
    """Without `--set` and `-p` it was refused, or had other values; elements of another list kept those of the first."""
    path = write(RESUMED)
    write("xs: [1, 2, 3]\nby: 1\n", "some.yaml")

    def run(*arguments: str) -> tuple[int, list[str]]:
        ran = at_desk(tmp_path, "run", path.name, *arguments)
        return ran.returncode, (ran.stdout + ran.stderr).splitlines()

    assert run("-p", "some.yaml", "--set", "by=10")[0] == 1
    (tmp_path / "flag").touch()
    code, first = run("--resume")
    assert (code, json.loads(first[-1])["seen"]) == (0, "10 20 30 "), first
    code, second = run("--resume", "--set", "xs=[1, 5]")

    assert (code, json.loads(second[-1])) == (0, {"xs": [1, 5], "by": 10, "y": [10, 50], "seen": "10 50 "}), second
    assert [line for line in second if line.startswith("==")] == [
        "== m[0].one: succeeded before", "== m[1].one", "== last",
    ]  # fmt: skip
    code, shown = run("--resume", str(tmp_path))
    assert (code, shown) == (1, [f"{str(tmp_path)!r} is not the folder of a run; `run` shows it in its first line"])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_run_cancels_its_step_and_can_be_resumed(write, tmp_path, name: str) -> None:
    """Its handler and its other attempts do not run."""
    path = write("""
        parameters: {at: .}
        dag:
          start_at: a
          steps:
            a: {type: task, command_type: shell, command: export x=1, returns: [x], next: b}
            b: {type: task, command_type: shell, command: 'test -e $at/go && exit; echo "waits $$"; sleep 600', max_attempts: 3, next: success, on_failure: c}
            c: {type: task, command_type: shell, command: 'touch $at/handled', next: success}
        """)
    command = [sys.executable, "-m", "airflow_provider_launch.pipelines", "run", path.name, "--set", f"at={tmp_path}"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        # Tests that a shell starts with `&` ignore the signal, and so would this program.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - this test has one thread
    ) as ran:  # fmt: skip
        assert ran.stdout is not None
        shown = []
        for line in ran.stdout:
            shown.append(line)
            if line.startswith("waits"):
                ran.send_signal(signal.Signals[name])
    pid = next(line.split()[1] for line in shown if line.startswith("waits"))

    assert (ran.returncode, shown[-1]) == (
        130, "interrupted; its step was cancelled; to continue: run pipeline.yaml --resume\n"
    )  # fmt: skip
    until(lambda: not Path("/proc", pid).exists())
    assert not (tmp_path / "handled").exists()
    (tmp_path / "go").touch()
    again = at_desk(tmp_path, "run", path.name, "--resume")
    assert (again.returncode, "== a: succeeded before" in again.stdout) == (0, True), again.stdout + again.stderr


@pytest.mark.timeout(900)
def test_validate_takes_the_parameters_and_the_configuration_that_run_takes(write, tmp_path) -> None:
    step = "{type: task, command_type: shell, command: 'export y=$by$KIND', returns: [y], next: success}"
    path = write(f"""
        dag:
          start_at: m
          steps:
            m: {{type: map, iterate_on: xs, iterate_as: x, next: success, branch: {{start_at: a, steps: {{a: {step}}}}}}}
        """)
    write("xs: [1]\n", "some.yaml")
    write("executor: {type: local, config: {env: {KIND: file}, no_such: 1}}\n", "wrong.yaml")
    write("executor: {type: local, config: {env: {KIND: file}}}\n", "config.yaml")

    def shown(*arguments: str) -> tuple[int, str]:
        ran = at_desk(tmp_path, arguments[0], path.name, *arguments[1:])
        return ran.returncode, ran.stderr or ran.stdout.splitlines()[-1]

    given = ("-p", "some.yaml", "--set", "by=2")
    for command in ("validate", "run"):
        code, problem = shown(command)
        assert (code, problem.partition(";")[0]) == (
            2, "pipeline.yaml:4: step 'm': 'iterate_on' names 'xs', which is neither a parameter nor returned by an earlier step"
        )  # fmt: skip
        code, problem = shown(command, *given, "-c", "wrong.yaml")
        assert (code, problem.partition(":")[0]) == (2, "wrong.yaml")
    assert at_desk(tmp_path, "validate", path.name, *given, "-c", "config.yaml").returncode == 0
    assert shown("run", *given, "-c", "config.yaml") == (0, '{"xs": [1], "by": 2, "y": ["2file"]}')


@pytest.mark.timeout(900)
def test_a_function_runs_by_its_name(write, tmp_path) -> None:
    """runnable's `execute_function`."""
    write("def double(x, y=1):\n    print('hello')\n    return x * 2 + y\n", "mine_of_desk.py")
    write("y: 3\n", "parameters.yaml")

    ran = at_desk(
        tmp_path, "run-function", "mine_of_desk.double", "-p", "parameters.yaml", "--set", "x=4", "--returns", "z"
    )

    assert (ran.returncode, ran.stdout.splitlines()) == (0, ["hello", '{"z": 11}']), ran.stderr


@pytest.mark.timeout(900)
def test_a_notebook_runs_by_its_path(tmp_path) -> None:
    """runnable's `execute_notebook`."""
    pytest.importorskip("nbclient")
    cell = {
        "cell_type": "code",
        "metadata": {},
        "source": "y = x + 1; print(y)",
        "outputs": [],
        "execution_count": None,
        "id": "a",
    }
    (tmp_path / "book.ipynb").write_text(
        json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )

    ran = at_desk(tmp_path, "run-notebook", "book.ipynb", "--set", "x=4", "--returns", "y", "--output", "out/o.ipynb")

    assert (ran.returncode, ran.stdout.splitlines()[-2:]) == (0, ["5", '{"y": 5}']), ran.stderr
    assert "5\\n" in (tmp_path / "out" / "o.ipynb").read_text()


@pytest.mark.timeout(900)
def test_notebooks_of_two_dags_and_two_runs_keep_their_values(write) -> None:
    """They start in one folder, and exchanged their values through a file of it."""
    pytest.importorskip("nbclient")
    cell = {
        "cell_type": "code",
        "metadata": {},
        "source": "y = x * 10",
        "outputs": [],
        "execution_count": None,
        "id": "a",
    }
    write(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), "ten.ipynb")
    step = "{type: task, command_type: notebook, command: ten.ipynb, returns: [y], next: success}"
    running = {}
    for name, first in (("one", 1), ("two", 5)):
        path = write(
            f"""
            dag:
              start_at: m
              steps:
                m: {{type: map, iterate_on: xs, iterate_as: x, next: success, branch: {{start_at: a, steps: {{a: {step}}}}}}}
            parameters: {{xs: []}}
            """,
            f"{name}.yaml",
        )
        for at in (first, first + 2):
            command = [sys.executable, "-m", "airflow_provider_launch.pipelines", "run", str(path)]
            running[at] = subprocess.Popen(
                [*command, "--set", f"xs=[{at}, {at + 1}]"], stdout=subprocess.PIPE, text=True, cwd=path.parent
            )

    shown = {at: process.communicate(timeout=600)[0] for at, process in running.items()}

    found = {at: json.loads(text.splitlines()[-1])["y"] for at, text in shown.items()}
    assert found == {at: [at * 10, at * 10 + 10] for at in (1, 3, 5, 7)}


TWICE = """
    dag:
      start_at: each
      steps:
        each:
          type: map
          iterate_on: [1, 2]
          iterate_as: x
          next: all
          branch:
            start_at: one
            steps:
              one:
                type: task
                command_type: shell
                command: |
                  echo "$run-$x" > "part-$$.txt"
                  sleep 0.3
                  test -e "$flags/$run-$x" || { touch "$flags/$run-$x"; exit 1; }
                  export y="$run-$x"
                max_attempts: 2
                returns: [y]
                catalog: {put: "part-*.txt"}
                next: success
        all: {type: task, command_type: shell, command: 'export lines="$(cat each/*/part-*.txt | sort | tr "\\n" " ")"', returns: [lines], catalog: {get: "each/**"}, next: success}
    """


@pytest.mark.timeout(900)
def test_results_are_right_with_two_of_everything_at_once(write, tmp_path) -> None:
    """Two runs, elements, attempts and files at the same time: nothing of one is seen by another."""
    path = write(TWICE)
    command = [
        sys.executable,
        "-m",
        "airflow_provider_launch.pipelines",
        "run",
        str(path),
        "--set",
        f"flags={tmp_path}",
    ]
    runs = {
        name: subprocess.Popen([*command, "--set", f"run={name}"], stdout=subprocess.PIPE, text=True)
        for name in ("red", "blue")
    }

    for name, process in runs.items():
        shown = process.communicate(timeout=600)[0]
        assert process.returncode == 0, shown
        values = json.loads(shown.splitlines()[-1])
        assert values["y"] == [f"{name}-1", f"{name}-2"]
        assert values["lines"].split() == values["y"]
