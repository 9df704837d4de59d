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
    "magnus: parameters by variables and by its functions": Example(
        steps("""
            variable: {type: task, command: peer_code.by_variable, next: function}
            function: {type: task, command: peer_code.by_magnus, next: success}
            """, parameters="{simple: 3}"),
        values={"simple": 40},
    ),
}  # fmt: skip


@pytest.fixture
def example(write):
    def find(name: str) -> tuple[Example, Path]:
        if "notebook" in name:
            pytest.importorskip("nbclient")
        write(CODE, "peer_code.py")
        write(json.dumps(BOOK), "book.ipynb")
        write(PART, "part.yaml")
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
    "magnus: python-lambda": (
        "a: {type: task, command_type: python-lambda, command: 'lambda: 1', next: success}",
        "write a function in a module",
    ),
    "magnus: a map in a map": (
        "m: {type: map, iterate_on: xs, iterate_as: x, next: success, branch: {start_at: n, steps: {n: {type: map, iterate_on: xs, iterate_as: y, next: success, branch: {start_at: a, steps: {a: {type: stub, next: success}}}}}}}",
        "which Airflow cannot run",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_feature_without_a_counterpart_is_refused_with_a_cure(write, name: str) -> None:
    text, cure = REFUSED[name]

    problems = validate(write(steps(text, parameters="{xs: [1]}")))

    assert any(cure in str(problem) for problem in problems), problems
