"""Pipelines like the public examples of magnus and runnable, in addition to those in other modules."""

from __future__ import annotations

import pytest

SHELL = "type: task, command_type: shell"

MODELS = """
from pydantic import BaseModel


class Pair(BaseModel):
    foo: int
    bar: str


class Inner(BaseModel):
    x: int
    y: str


class Both(BaseModel):
    x: int
    y: Pair


def create() -> Both:
    return Both(x=1, y=Pair(foo=10, bar="hello world"))


def check(x: int, y: Pair) -> None:
    assert (x, y.foo, y.bar) == (1, 10, "hello world")


def from_environment(simple: int, inner: Inner) -> None:
    assert (simple, inner.x, inner.y) == (10, 100, "world")
"""


def test_a_shell_changes_plain_and_nested_values(run_pipeline):
    ran = run_pipeline(f"""
        parameters: {{spam: Hello, eggs: {{ham: "Yes, please!!"}}}}
        dag:
          start_at: access
          steps:
            access:
              {{{SHELL}, command: 'test "$spam $eggs" = "Hello {{\\"ham\\": \\"Yes, please!!\\"}}"', next: modify}}
            modify:
              type: task
              command_type: shell
              command: |
                export spam=Universe
                export eggs='{{"ham": "Maybe, one more.."}}'
              returns: [spam, eggs]
              next: last
            last: {{{SHELL}, command: 'test "$spam" = Universe', next: success}}
        """)

    assert ran.state == "success", ran.states
    assert ran.parameters("last") == {"spam": "Universe", "eggs": {"ham": "Maybe, one more.."}}


def test_a_function_gives_a_model_by_its_fields(write, run_pipeline):
    write(MODELS, "models_of_mine.py")

    ran = run_pipeline("""
        dag:
          start_at: create
          steps:
            create: {type: task, command: models_of_mine.create, returns: [x, y], next: check}
            check: {type: task, command: models_of_mine.check, next: success}
        """)

    assert ran.state == "success", ran.states
    assert ran.returned("create") == {"x": 1, "y": {"foo": 10, "bar": "hello world"}}


def test_the_environment_wins_over_the_file_for_models_too(write, run_pipeline, monkeypatch):
    write(MODELS, "models_of_mine.py")
    monkeypatch.setenv("MAGNUS_PRM_simple", "10")
    monkeypatch.setenv("MAGNUS_PRM_inner", '{"x": 100, "y": "world"}')

    ran = run_pipeline("""
        parameters: {simple: 1, inner: {x: 10, y: hello}}
        dag: {start_at: s, steps: {s: {type: task, command: models_of_mine.from_environment, next: success}}}
        """)

    assert ran.state == "success", ran.states


def test_a_shell_gives_values_of_all_types(run_pipeline):
    ran = run_pipeline(f"""
        dag:
          start_at: write
          steps:
            write:
              type: task
              command_type: shell
              command: |
                export integer=1 floater=3.14 stringer="hello world" score=0.9
                export pydantic_param='{{"x": 10, "foo": "bar"}}' listed='[1, 2]' flag=true
              returns: [integer, floater, stringer, pydantic_param, listed, flag, {{name: score, kind: metric}}]
              next: read
            read: {{{SHELL}, command: 'test "$stringer$integer" = "hello world1" && test "$floater" = 3.14', next: success}}
        """)

    assert ran.state == "success", ran.states
    assert ran.returned("write") == {
        "integer": 1, "floater": 3.14, "stringer": "hello world", "pydantic_param": {"x": 10, "foo": "bar"},
        "listed": [1, 2], "flag": True, "score": 0.9,
    }  # fmt: skip
    assert ran.xcom("write", "attempt")["metrics"] == {"score": 0.9}


def test_a_handler_off_the_main_line_can_succeed(run_pipeline):
    ran = run_pipeline(f"""
        dag:
          start_at: step_1
          steps:
            step_1: {{{SHELL}, command: exit 1, next: step_2, on_failure: step_4}}
            step_2: {{type: stub, next: step_3}}
            step_3: {{type: stub, next: success}}
            step_4: {{type: stub, next: success}}
        """)

    assert (ran.state, ran.where("failed")) == ("success", {"step_1"})
    assert (ran.where("success"), ran.where("skipped")) == ({"step_4", "success"}, {"step_2", "step_3"})


def test_parallel_in_parallel(run_pipeline):
    ran = run_pipeline(f"""
        leaf: &leaf {{start_at: leaf, steps: {{leaf: {{{SHELL}, command: "true", next: success}}}}}}
        inner: &inner
          start_at: nested
          steps: {{nested: {{type: parallel, next: success, branches: {{a: *leaf, b: *leaf}}}}}}
        dag:
          start_at: outer
          steps: {{outer: {{type: parallel, next: success, branches: {{one: *inner, two: *inner}}}}}}
        """)

    assert ran.state == "success", ran.states
    leaves = {f"outer.{outer}.nested.{inner}.leaf" for outer in ("one", "two") for inner in ("a", "b")}
    assert leaves <= ran.where("success")


@pytest.mark.parametrize(
    ("reducer", "expected"),
    [
        ("", {"processed": [10, 20, 30], "more": [100, 200, 300]}),
        ("reducer: max, ", {"processed": 30, "more": 300}),
    ],
)
def test_a_map_in_the_shell_over_what_the_shell_gave(run_pipeline, reducer, expected):
    ran = run_pipeline(f"""
        dag:
          start_at: chunk
          steps:
            chunk: {{{SHELL}, command: 'export chunks="[1, 2, 3]"', returns: [chunks], next: m}}
            m: {{type: map, iterate_on: chunks, iterate_as: chunk, next: collect, {reducer}branch: {{
              start_at: process,
              steps: {{process: {{{SHELL}, command: export processed=$((chunk * 10)) more=$((chunk * 100)), returns: [processed, more], next: success}}}}}}}}
            collect: {{type: stub, next: success}}
        """)

    assert ran.state == "success", ran.states
    assert ran.returned("m.fan_in") == expected


@pytest.mark.parametrize(("toss", "taken"), [("tails", "tails"), ("edge", "default")])
def test_a_toss_decides_which_branch_runs(run_pipeline, toss, taken):
    ran = run_pipeline(f"""
        dag:
          start_at: toss
          steps:
            toss: {{{SHELL}, command: export side={toss}, returns: [side], next: choose}}
            choose:
              type: conditional
              parameter: side
              next: after
              branches:
                heads: {{start_at: run, steps: {{run: {{{SHELL}, command: export branch_param=heads_value, returns: [branch_param], next: success}}}}}}
                tails: {{start_at: run, steps: {{run: {{{SHELL}, command: export branch_param=tails_value, returns: [branch_param], next: success}}}}}}
              default: {{start_at: run, steps: {{run: {{{SHELL}, command: export branch_param=default_value, returns: [branch_param], next: success}}}}}}
            after: {{{SHELL}, command: 'test "$branch_param" = {taken}_value', next: success}}
        """)

    assert ran.state == "success", ran.states
    assert {name for name in ran.where("success") if name.endswith(".run")} == {f"choose.{taken}.run"}
