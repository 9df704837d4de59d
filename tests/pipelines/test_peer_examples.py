"""Features of magnus and runnable: an example of each, and its result in Airflow and at the desk.

The examples are those of the peers' own folders (named below) in other words. An example whose result differs from that
of the peer has the reason.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.pipelines import validate
from airflow_provider_launch.pipelines.desk import DeskRun, new_run
from airflow_provider_launch.pipelines.validation import load

CODE = """
import os


class Frame:
    def __init__(self, rows):
        self.rows = rows


def write():
    return Frame([1, 2]), 7


def read(frame, integer):
    assert (frame.rows, integer) == ([1, 2], 7)
    return "verified"


def fail():
    raise Exception("as planned")


def by_variable():
    os.environ["MAGNUS_PRM_simple"] = str(int(os.environ["MAGNUS_PRM_simple"]) + 1)


def by_magnus():
    from magnus import get_parameter, set_parameter, track_this

    set_parameter(simple=get_parameter("simple") * 10)
    track_this(accuracy=0.9)


async def later(x):
    return x + 1


def framed(x, y):
    return Frame([x, y])


def rows_of(frame):
    return [rows_of(one) for one in frame] if isinstance(frame, list) else frame.rows


def longest(values):
    return max(values, key=len)
"""


PART = """
dag:
  start_at: inner
  steps:
    inner: {type: task, command_type: shell, command: export inside=$((x + 1)), returns: [inside], next: success}
"""

_CELL: dict[str, Any] = {"cell_type": "code", "outputs": [], "execution_count": None}
BOOK = {
    "cells": [
        {**_CELL, "id": "a", "source": "x = 0", "metadata": {"tags": ["parameters"]}},
        {**_CELL, "id": "b", "source": "y = x + 10", "metadata": {}},
    ],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@dataclass
class Example:
    text: str
    state: str = "success"
    values: dict[str, Any] = field(default_factory=dict)
    """Some parameters at the end."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Of `dag_from_file`."""
    difference: str = ""
    """From the peer, with its reason."""


def steps(text: str, **more: str) -> str:
    """Return a pipeline of steps; `$` stands for a shell task."""
    head = "".join(f"{name}: {value}\n" for name, value in more.items())
    body = textwrap.indent(textwrap.dedent(text).strip("\n"), "    ").replace("{$", "{type: task, command_type: shell")
    first = body.strip().partition(":")[0]
    return f"{head}dag:\n  start_at: {first}\n  steps:\n{body}\n"


ONE = "{start_at: a, steps: {a: {$, %s, next: success}}}"
EXAMPLES = {
    "runnable 01: shell, function and stub": Example(
        steps("""
            hello: {$, command: echo hello, next: empty}
            empty: {type: stub, next: check}
            check: {type: task, command: peer_code.later, returns: [y], next: success}
            """, parameters="{x: 1}"),
        values={"y": 2},
    ),
    "runnable 01: a notebook with parameters": Example(
        steps("""
            book: {type: task, command_type: notebook, command: book.ipynb, returns: [y], next: success}
            """, parameters="{x: 1}"),
        values={"y": 11},
    ),
    "runnable 02: a failure ends the run": Example(
        steps("""
            one: {type: task, command: peer_code.fail, next: two}
            two: {type: stub, next: success}
            """),
        state="failed",
    ),
    "runnable 02: a failure is handled and the run succeeds": Example(
        steps("""
            one: {$, command: exit 1, next: two, on_failure: repair}
            two: {$, command: exit 1, next: success}
            repair: {$, command: export repaired=1, returns: [repaired], next: success}
            """),
        values={"repaired": 1},
    ),
    "runnable 02: a failure is handled and the run fails": Example(
        steps("""
            one: {$, command: exit 1, next: success, on_failure: clean}
            clean: {$, command: "true", next: fail}
            """),
        state="failed",
    ),
    "runnable 02: a conditional": Example(
        steps(f"""
            toss: {{$, command: export side=heads, returns: [side], next: choose}}
            choose: {{type: conditional, parameter: side, next: success, branches: {{
              heads: {ONE % "command: export won=1, returns: [won]"}, tails: {ONE % "command: exit 1"}}}}}
            """),
        values={"won": 1},
    ),
    "runnable 03: parameters of all kinds, and an undeclared return": Example(
        steps("""
            write: {type: task, command: peer_code.write, returns: [{name: frame, kind: object}, integer], next: read}
            read: {type: task, command: peer_code.read, next: success}
            """),
        values={"integer": 7},
    ),
    "runnable 03: static parameters": Example(
        steps("""
            check: {$, command: 'test "$integer $stringer" = "1 hello"', next: success}
            """),
        arguments={"parameters_file": "given.yaml"},
    ),
    "runnable 04: later steps get files, also those of a failed step": Example(
        steps("""
            put: {$, command: 'echo 1 > df.csv; exit 1', catalog: {put: ["*.csv", "*.not"]}, next: success, on_failure: get}
            get: {$, command: 'export rows=$(cat df.csv)', returns: [rows], catalog: {get: "*.csv"}, next: success}
            """),
        values={"rows": 1},
    ),
    "runnable 04: files that are not to be copied": Example(
        steps("""
            put: {$, command: 'echo 1 > df.csv', catalog: {put: "*.csv", store_copy: false}, next: get}
            get: {$, command: 'export rows=$(cat df.csv)', returns: [rows], catalog: {get: "*.csv"}, next: success}
            """),
        values={"rows": 1},
        difference="they are copied, because the folder of a task ends with it",
    ),
    "magnus: a catalog of its configuration that is called 'do-nothing'": Example(
        steps("""
            put: {$, command: 'echo 1 > df.csv', catalog: {put: "*.csv"}, next: get}
            get: {$, command: 'export rows=$(cat df.csv)', returns: [rows], catalog: {get: "*.csv"}, next: success}
            """),
        values={"rows": 1},
        arguments={"config": {"catalog": {"type": "do-nothing"}}},
        difference="files are stored in the default location",
    ),
    "runnable 06: of two branches with one name the later counts": Example(
        steps(f"""
            both: {{type: parallel, next: success, branches: {{
              a: {ONE % "command: export shared=value_a, returns: [shared]"},
              b: {ONE % "command: export shared=value_b, returns: [shared]"}}}}}
            """),
        values={"shared": "value_b"},
    ),
    "runnable 06: parallel in parallel": Example(
        steps(f"""
            outer: {{type: parallel, next: success, branches: {{
              deep: {{start_at: inner, steps: {{inner: {{type: parallel, next: success, branches: {{
                x: {ONE % "command: export x=1, returns: [x]"}, y: {ONE % "command: export y=2, returns: [y]"}}}}}}}}},
              flat: {ONE % "command: export z=3, returns: [z]"}}}}}
            """),
        values={"x": 1, "y": 2, "z": 3},
    ),
    "runnable 06: a branch fails, the others end": Example(
        steps(f"""
            both: {{type: parallel, next: success, branches: {{a: {ONE % "command: exit 1"}, b: {ONE % 'command: "true"'}}}}}
            """),
        state="failed",
    ),
    "runnable 07: a map with a list of values": Example(
        steps(f"""
            each: {{type: map, iterate_on: chunks, iterate_as: chunk, next: success, branch:
              {ONE % "command: export processed=$((chunk * 10)), returns: [processed]"}}}
            """, parameters="{chunks: [1, 2, 3]}"),
        values={"processed": [10, 20, 30]},
    ),
    "runnable 07: a map whose reducer is a function": Example(
        steps(f"""
            each: {{type: map, iterate_on: words, iterate_as: word, reducer: peer_code.longest, next: success, branch:
              {ONE % "command: export best=$word, returns: [best]"}}}
            """, parameters="{words: [a, ccc, bb]}"),
        values={"best": "ccc"},
        difference="a reducer is a name, not the text of a lambda: text of a file is not run on the worker",
    ),
    "runnable 07: a map over an empty list": Example(
        steps(f"""
            each: {{type: map, iterate_on: none, iterate_as: one, next: success, branch: {ONE % 'command: exit 1'}}}
            """, parameters="{none: []}"),
        difference="succeeds; runnable ends with an AssertionError",
    ),
    "runnable 07: an element of a map fails": Example(
        steps(f"""
            each: {{type: map, iterate_on: [1, 2], iterate_as: x, next: after, branch: {ONE % "command: test $x = 1"}}}
            after: {{$, command: exit 1, next: success}}
            """),
        state="failed",
    ),
    "runnable 08: mocked, with a patch": Example(
        steps("""
            one: {$, command: exit 1, next: two}
            two: {$, command: exit 1, returns: [y], next: success}
            """, executor="{type: mocked, config: {patches: {two: {command: export y=1}}}}"),
        values={"y": 1},
    ),
    "magnus: files in a folder of the project": Example(
        steps("""
            create: {$, command: echo hello >> data/hello.txt, catalog: {put: data/hello.txt}, next: retrieve}
            retrieve: {$, command: 'export said=$(cat data/hello.txt)', returns: [said], catalog: {get: data/hello.txt}, next: success}
            """),
        arguments={"config": {"catalog": {"project": "data/"}}},
        values={"said": "hello"},
        difference="each task has a folder of its own, so that runs at the same time do not share files",
    ),
    "magnus: a second attempt": Example(
        steps("""
            once: {$, command: 'test -e tried || { touch tried; exit 1; }', max_attempts: 2, next: success}
            """),
    ),
    "magnus: the graph of another file": Example(
        steps("""
            part: {type: dag, dag_definition: part.yaml, next: success}
            """, parameters="{x: 4}"),
        values={"inside": 5},
    ),
    "magnus: a task that is turned off": Example(
        steps("""
            idle: {type: as-is, command_type: shell, command: exit 1, next: success}
            """),
    ),
    "magnus 0.4: attempts by their old name": Example(
        steps("""
            once: {$, command: 'test -e old && exit; touch old; exit 1', retry: 2, next: success}
            """),
    ),
    "magnus: settings of a step, by each of their names": Example(
        steps("""
            a: {$, command: export a=$KIND, returns: [a], mode_config: {local: {env: {KIND: mode}}}, next: b}
            b: {$, command: export b=$KIND, returns: [b], executor_config: {local: {env: {KIND: executor}}}, next: c}
            c: {$, command: export c=$KIND, returns: [c], overrides: {local: {env: {KIND: step}}}, next: d}
            d: {$, command: export d=$KIND, returns: [d], overrides: {local: group}, next: success}
            """, mode="{type: local, config: {env: {KIND: file}, placeholders: {group: {env: {KIND: group}}}}}"),
        values={"a": "mode", "b": "executor", "c": "step", "d": "group"},
    ),
    **{
        f"a configuration file with '{name}'": Example(
            steps("""
                a: {$, command: export from=$KIND, returns: [from], next: success}
                """),
            arguments={"config": {
                name: {"type": "local", "config": {"env": {"KIND": name}}},
                # Airflow does what these sections are for.
                "run_log_store": {"type": "file-system"}, "run-log-store": {"type": "chunked-fs"},
                "experiment_tracker": {"type": "mlflow"}, "secrets": {"type": "dotenv", "config": {"location": ".env"}},
                "catalog": {"type": "file-system"},
            }},
            values={"from": name},
        )
        for name in ("mode", "executor", "pipeline-executor")
    },
    "runnable 11: an async function": Example(
        steps("""
            wait: {type: task, command_type: async-python, command: peer_code.later, returns: [y], next: success}
            """, parameters="{x: 1}"),
        values={"y": 2},
    ),
    "magnus: variables of its configuration, as templates": Example(
        steps("""
            a: {$, command: 'export who=$WHO strict=0 more="{{ params.who }}" year=${day%%-*}; case $- in *u*) strict=1;; esac', args: {day: "{{ ds }}"}, returns: [who, strict, more, year], next: success}
            """,
            executor="{type: local, config: {env: {WHO: '{{ params.who }}'}, shell_options: '{{ params.how }}', cpu: '{{ params.cores }}'}}",
            parameters="{who: me, how: '-u', cores: 1}",
            catalog="'{{ params.who }}/kept'",
        ),
        values={"who": "me", "more": "me", "strict": 1},
        difference="Airflow's templates instead of $x, because $ belongs to the shell",
    ),
    "magnus: a task with a catalog and a script next to the file": Example(
        steps("""
            a: {$, command: 'sh "$LAUNCH_CODE_DIR/say.sh" > said.txt; export said="$(cat said.txt)"', returns: [said], catalog: {put: said.txt}, next: success}
            """),
        values={"said": "of the project"},
    ),
    "shell that a template cannot read": Example(
        steps("""
            a: {$, command: 'export size=${#word} braces="{%"', template: false, returns: [size, braces], next: success}
            """, parameters="{word: four}"),
        values={"size": 4, "braces": "{%"},
    ),
    "runnable 02: a conditional without a branch for the value": Example(
        steps(f"""
            choose: {{type: conditional, parameter: side, next: success, branches: {{heads: {ONE % "command: exit 1"}}},
              default: {ONE % "command: export won=0, returns: [won]"}}}
            """, parameters="{side: edge}"),
        values={"won": 0},
        difference="runnable accepts 'default' and fails",
    ),
    **{
        f"a failure in a {kind} is handled by the step after it": Example(
            steps(f"""
                bad: {{type: {kind}, {fields}, next: never, on_failure: repair}}
                never: {{$, command: export reached=1, returns: [reached], next: success}}
                repair: {{$, command: export repaired=1, returns: [repaired], next: success}}
                """, parameters="{x: 1}"),
            values={"repaired": 1, "reached": None},
            difference="runnable drops the handler of such a step",
        )
        for kind, fields in {
            "parallel": f"branches: {{a: {ONE % 'command: exit 1'}, b: {ONE % 'command: exit 0'}}}",
            "map": f"iterate_on: [1, 2], iterate_as: y, branch: {ONE % 'command: exit 1'}",
            "dag": "dag_definition: broken.yaml",
            "conditional": f"parameter: x, branches: {{1: {ONE % 'command: exit 1'}}}",
        }.items()
    },
    "runnable 07: an element that returns nothing": Example(
        steps("""
            each: {type: map, iterate_on: [a, b, c], iterate_as: x, next: success, branch: {start_at: only, steps: {
              only: {type: conditional, parameter: x, next: success, default: {start_at: none, steps: {none: {type: stub, next: success}}},
                branches: {b: {start_at: some, steps: {some: {$, command: export y=$x, returns: [y], next: success}}}}}}}}
            """),
        values={"y": [None, "b", None]},
        difference="null in the position of the element; runnable's list is shorter",
    ),
    **{
        f"files of a map in a map, {where}": Example(
            steps(f"""
                m: {{type: map, iterate_on: {outer}, iterate_as: x, next: all, branch: {{start_at: n, steps: {{
                  n: {{type: map, iterate_on: {inner}, iterate_as: y, next: see, branch: {{start_at: put, steps: {{
                    put: {{$, command: 'echo $x$y > out.txt', catalog: {{put: out.txt}}, next: own}},
                    own: {{$, command: 'test "$(find . -name out.txt)" = ./out.txt && export z=$(cat out.txt)', returns: [z], catalog: {{get: "**"}}, next: success}}}}}}}},
                  see: {{$, command: 'export part="$(cat n/0/out.txt n/1/out.txt | tr "\\n" " ")"', returns: [part], catalog: {{get: "n/**"}}, next: success}}}}}}}}
                all: {{$, command: 'export all="$(cat m/[01]/n/[01]/out.txt | tr "\\n" " ")"', returns: [all], catalog: {{get: "m/**"}}, next: success}}
                """, parameters="{xs: [a, b], ys: [c, d]}"),
            values={"z": [["ac", "ad"], ["bc", "bd"]], "part": ["ac ad ", "bc bd "], "all": "ac ad bc bd "},
            difference="one list must be in the file, because Airflow maps one level",
        )
        for where, outer, inner in (
            ("the inner list in the file", "xs", "[c, d]"),
            ("the outer list in the file", "[a, b]", "ys"),
            ("both lists in the file", "[a, b]", "[c, d]"),
        )
    },
    "objects of a map in a map": Example(
        steps("""
            m: {type: map, iterate_on: xs, iterate_as: x, next: all, branch: {start_at: n, steps: {
              n: {type: map, iterate_on: [c, d], iterate_as: y, next: see, branch: {start_at: make, steps: {
                make: {type: task, command: peer_code.framed, returns: [{name: frame, kind: object}], next: success}}}},
              see: {type: task, command: peer_code.rows_of, returns: [part], next: success}}}}
            all: {type: task, command: peer_code.rows_of, returns: [all], next: success}
            """, parameters="{xs: [a, b]}"),
        values={key: [[["a", "c"], ["a", "d"]], [["b", "c"], ["b", "d"]]] for key in ("part", "all")},
    ),
    "branches and elements do not see each other's values": Example(
        steps(f"""
            both: {{type: parallel, next: each, branches: {{
              a: {ONE % "command: export Mine=1, returns: [Mine]"},
              b: {ONE % "command: 'export other=[$Mine] small=[$mine]', returns: [other, small]"}}}}}
            each: {{type: map, iterate_on: [1, 2], iterate_as: x, next: success, branch:
              {ONE % "command: 'export before=[$own] own=$x', returns: [before, own]"}}}
            """),
        values={"Mine": 1, "other": [], "small": [], "before": [[], []], "own": [1, 2]},
        difference="in magnus all parameters are in one mapping, with names in lower case",
    ),
    "magnus: parameters by variables and by its functions": Example(
        steps("""
            variable: {type: task, command: peer_code.by_variable, next: function}
            function: {type: task, command: peer_code.by_magnus, next: success}
            """, parameters="{simple: 3}"),
        values={"simple": 40},
    ),
}  # fmt: skip


BROKEN = PART.replace("export inside=$((x + 1))", "exit 1").replace(", returns: [inside]", "")


@pytest.fixture
def example(write):
    def find(name: str) -> tuple[Example, Path]:
        if "notebook" in name:
            pytest.importorskip("nbclient")
        write(CODE, "peer_code.py")
        write(json.dumps(BOOK), "book.ipynb")
        write(PART, "part.yaml")
        write(BROKEN, "broken.yaml")
        write("echo of the project", "say.sh")
        write("integer: 1\nstringer: hello\n", "given.yaml")
        found = EXAMPLES[name]
        return found, write(found.text.replace("{$", "{type: task, command_type: shell"))

    return find


def arguments_of(found: Example, path: Path) -> dict[str, Any]:
    file = found.arguments.get("parameters_file")
    return {**found.arguments, **({"parameters_file": path.parent / file} if file else {})}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_a_peer_runs_in_airflow(example, run_pipeline, name: str) -> None:
    found, path = example(name)

    ran = run_pipeline(path, **arguments_of(found, path))

    assert ran.state == found.state, ran.states
    seen: dict[str, Any] = {}
    for task in ran.dag.tasks:
        if ran.states.get(task.task_id) == "success":
            seen |= ran.returned(task.task_id)
    assert {key: seen.get(key) for key in found.values} == found.values


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_a_peer_runs_at_the_desk(example, name: str) -> None:
    found, path = example(name)
    arguments = arguments_of(found, path)
    model = load(path, arguments.get("config"), parameters_file=arguments.get("parameters_file"))
    shown: list[str] = []

    values = DeskRun(model, new_run(model.name), shown.append).run({})

    assert ("failed" if values is None else "success") == found.state, shown
    assert {key: (values or {}).get(key) for key in found.values} == found.values, shown


REFUSED = {
    "runnable 10: a loop": ("again: {type: loop, next: success}", "unroll it, or let one task loop"),
    "runnable 07: a lambda as a reducer": (
        'each: {type: map, iterate_on: [1], iterate_as: x, reducer: "lambda x: max(x)", next: success, branch: {start_at: a, steps: {a: {type: stub, next: success}}}}',
        "no lambda",
    ),
    "arguments of ploomber": (
        "a: {type: task, command_type: notebook, command: x.ipynb, optional_ploomber_args: {log_output: true}, next: success}",
        "'optional_ploomber_args' is not a field of a task",
    ),
    "magnus 0.4: container": (
        "a: {type: task, command_type: container, command: 'echo 1', next: success}",
        "write shell, and name the image",
    ),
    "magnus: python-lambda": (
        "a: {type: task, command_type: python-lambda, command: 'lambda: 1', next: success}",
        "write a function in a module",
    ),
    "magnus: a catalog of another type": (
        "a: {type: stub, next: success}",
        "use object-storage, with a URL as its location",
    ),
    "magnus: a map in a map": (
        "m: {type: map, iterate_on: xs, iterate_as: x, next: success, branch: {start_at: n, steps: {n: {type: map, iterate_on: xs, iterate_as: y, next: success, branch: {start_at: a, steps: {a: {type: stub, next: success}}}}}}}",
        "which Airflow cannot run",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_feature_without_a_counterpart_is_refused_with_a_cure(write, name: str) -> None:
    text, cure = REFUSED[name]

    more = {"catalog": "{type: s3, config: {location: x}}"} if name == "magnus: a catalog of another type" else {}
    problems = validate(write(steps(text, parameters="{xs: [1]}", **more)))

    assert any(cure in str(problem) for problem in problems), problems


def by(*names: str) -> tuple[str, ...]:
    return names


ROWS = {
    # Files
    "`as-is`": by("magnus: a task that is turned off"),
    "`retry` (0.4), `max_attempts`": by("magnus 0.4: attempts by their old name", "magnus: a second attempt"),
    "`mode_config`, `executor_config`, `overrides`": by("magnus: settings of a step, by each of their names"),
    "`mode:`, `executor:`, `pipeline-executor:`": by(
        "a configuration file with 'mode'",
        "a configuration file with 'executor'",
        "a configuration file with 'pipeline-executor'",
    ),
    "`success` and `fail`": by("runnable 02: a failure is handled and the run fails"),
    "`command_type` `python-lambda`, `container`, `async-python`": by(
        "magnus: python-lambda",
        "magnus 0.4: container",
        "runnable 11: an async function",
        "test_an_async_generator_is_refused_before_it_works",
    ),
    "plain `on`, `off`, `yes`, `no`": by(
        "test_a_step_may_have_any_name_without_quotes", "test_a_conditional_finds_the_branch_of_a_plain_yes"
    ),
    "parameters file, `-p`": by("runnable 03: static parameters", "test_file_environment_form"),
    "`$x` from `MAGNUS_VAR_x`": by(
        "magnus: variables of its configuration, as templates", "test_the_location_of_the_catalog_is_a_template"
    ),
    "paths count from the project root": by("test_the_code_of_a_project_is_found"),
    "a step with a catalog starts in the project": by(
        "magnus: files in a folder of the project", "magnus: a task with a catalog and a script next to the file"
    ),
    "`get_parameter`, `set_parameter`, `get_secret`, `track_this`, `get_run_id`": by(
        "magnus: parameters by variables and by its functions", "test_a_step_reads_and_sets_parameters_by_magnus"
    ),
    "`put_in_catalog`, `get_from_catalog`, `put_object`, `get_object`, `get_run_log`": by(
        "test_a_function_without_a_counterpart_is_refused_when_it_is_called"
    ),
    "`MAGNUS_TRACK_x`, `MAGNUS_TRACK_x_STEP_n`": by("test_tracked_variables_are_metrics_of_the_record"),
    "Python SDK of runnable, jobs": by("test_each_kind_of_step_becomes_ours", "test_a_job_is_a_pipeline_of_one_task"),
    "the notebook with its outputs in the catalog, its lines live": by(
        "test_a_notebook_is_kept_with_its_outputs", "test_lines_of_a_notebook_come_while_it_runs"
    ),
    "`optional_ploomber_args` of a notebook": by("arguments of ploomber", "test_steps_without_a_counterpart_are_named"),
    "`catalog` of the config: `file-system`, `do-nothing`": by(
        "magnus: a catalog of its configuration that is called 'do-nothing'", "magnus: a catalog of another type"
    ),
    "`compute_data_folder` of a catalog, or of its config": by("test_paths_start_in_the_data_folder_as_in_magnus"),
    "`store_copy` of a catalog": by("runnable 04: files that are not to be copied"),
    "output of each step in the catalog": by("test_lines_of_a_step_are_in_the_task_log"),
    "`returns` may be omitted": by("runnable 03: parameters of all kinds, and an undeclared return"),
    "shell with `${#x}` or `{%`": by("shell that a template cannot read"),
    "`patches` of `mocked`": by("runnable 08: mocked, with a patch", "test_a_patch_keeps_the_type_of_its_command"),
    "`dag_definition`": by("magnus: the graph of another file", "test_the_code_of_an_included_file_is_next_to_it"),
    '`kind: object` of a return, `pickled("x")`': by(
        "runnable 03: parameters of all kinds, and an undeclared return",
        "test_an_object_is_unpickled_only_by_the_task_that_reads_it",
        "test_notebooks_read_and_return_objects",
    ),
    "`kind: metric`": by("test_tracked_variables_are_metrics_of_the_record"),
    "`reducer` as Python text": by(
        "runnable 07: a map whose reducer is a function", "runnable 07: a lambda as a reducer", "test_reducers"
    ),
    "`conditional`": by("runnable 02: a conditional", "runnable 02: a conditional without a branch for the value"),
    "`on_failure` of a task": by(
        "runnable 02: a failure is handled and the run succeeds",
        *(
            f"a failure in a {kind} is handled by the step after it"
            for kind in ("parallel", "map", "dag", "conditional")
        ),
    ),
    "a map over an empty list fails": by("runnable 07: a map over an empty list"),
    "a map's list misses values": by("runnable 07: an element that returns nothing"),
    "`loop`": by("runnable 10: a loop"),
    "map in map": by("magnus: a map in a map", "files of a map in a map, both lists in the file"),
    "`run_log_store`, `experiment_tracker`, `secrets` of the config": by("a configuration file with 'executor'"),
    "the run log, one JSON file": by("test_records_show_code_settings_and_values"),
    "tags, timeline of a run": by("test_a_folder_of_files_becomes_dags_of_a_module"),
    "runnable's shell steps have an empty environment": by(
        "test_a_step_inherits_a_short_list_of_variables_and_those_that_are_named"
    ),
    "`local` runs all steps in one process": by("test_500_steps_are_500_tasks_and_an_end"),
    # Executors
    "`local`, `local-container`, `slurm`": by("test_containers", "test_slurm_jobs"),
    "`local-aws-batch`": by("test_an_executor_of_magnus_or_runnable_has_its_counterpart_in_the_message"),
    "`argo`, `kfp`, `k8s-job`": by("test_an_executor_of_magnus_or_runnable_has_its_counterpart_in_the_message"),
    "`demo-renderer`, `emulator`": by("test_an_executor_of_magnus_or_runnable_has_its_counterpart_in_the_message"),
    "`mocked` with `patches`": by("runnable 08: mocked, with a patch"),
    "`retry`, `use_cached`": by(
        "test_a_cleared_element_replaces_its_own_files_and_values", "test_steps_after_one_that_ran_again_run_again"
    ),
    "`execute`": by("test_the_command_runs_and_resumes"),
    "`execute_function`, `execute_notebook`, jobs": by(
        "test_a_function_runs_by_its_name", "test_a_notebook_runs_by_its_path"
    ),
    "`overrides`, `placeholders`, `executor` of a step": by("test_a_step_may_run_elsewhere_or_otherwise"),
    # Executor API
    "`BaseExecutor`, `Config`": by("test_an_executor_of_a_plug_in_runs_the_tasks"),
    "`service_name`, `service_type`": by("test_an_executor_of_a_plug_in_runs_the_tasks"),
    "`placeholders`, `_resolve_node_config`": by(
        "test_an_executor_of_a_plug_in_runs_the_tasks", "test_an_empty_setting_needs_a_placeholder"
    ),
    "`enable_parallel`": by("test_a_pipeline_limits_the_tasks_of_a_run"),
    "`prepare_for_graph_execution`": by("test_a_wrong_file_is_an_import_error_of_its_own"),
    "`execute_graph`, `execute_from_graph`": by("test_steps_run_as_the_file_shows"),
    "`prepare_for_node_execution`": by("test_an_executor_of_a_plug_in_runs_the_tasks"),
    "`trigger_job`, `execute_node`": by("test_an_executor_of_a_plug_in_runs_the_tasks"),
    "`_execute_node`": by("test_files_go_by_the_catalog", "test_records_show_code_settings_and_values"),
    "`add_code_identities`": by("test_an_executor_of_a_plug_in_runs_the_tasks"),
    "`_is_eligible_for_rerun`": by("test_a_cleared_element_replaces_its_own_files_and_values"),
    "`_set_up_run_log`, step logs": by("test_records_show_code_settings_and_values"),
    "`send_return_code`": by("runnable 02: a failure ends the run"),
    "`_sync_catalog`, `get` and `put`": by("runnable 04: later steps get files, also those of a failed step"),
    "`execute_single_node`": by("test_airflow_tests_a_task", "test_a_step_shows_its_lines_and_what_it_hands_on"),
    "node types, run log stores, catalogs, secrets managers of your own": by("test_an_executor_that_no_plug_in_has"),
}
"""Each row of the migration page, and the examples and tests that show it."""


def test_each_row_of_the_migration_page_is_shown(checkout: Path) -> None:
    text = (checkout / "docs" / "coming-from" / "magnus.md").read_text()
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    tests = "".join(path.read_text() for path in (checkout / "tests" / "pipelines").glob("test_*.py"))

    assert [row for row in rows if row != "magnus, runnable"] == [*ROWS]
    shown = {name for names in ROWS.values() for name in names}
    assert not [name for name in shown if name not in {**EXAMPLES, **REFUSED} and f"def {name}(" not in tests]
