"""Pipelines in Python."""

from __future__ import annotations

from functools import partial

import pytest

from airflow_provider_launch.pipelines import (
    Conditional,
    Fail,
    Map,
    Parallel,
    Pipeline,
    PipelineError,
    Stub,
    Success,
    Task,
    dag_from_file,
    load,
)
from airflow_provider_launch.specs import AppDef, Role


def test_the_order_of_a_list_is_the_way():
    pipeline = Pipeline("p", steps=[Stub("a"), Stub("b"), Stub("c")])

    steps = pipeline.model().graph.steps

    assert [step.next for step in steps.values()] == ["b", "c", "success", ""]


def test_arrows_lead_elsewhere():
    a, b, c = Stub("a"), Stub("b"), Stub("c")
    a >> c >> b
    b.terminate_with_success()

    steps = Pipeline("p", steps=[a, b, c]).model().graph.steps

    assert {name: step.next for name, step in steps.items()} == {"a": "c", "b": "success", "c": "b", "success": ""}


def test_a_step_may_depend_on_another_one():
    """As in runnable."""
    a, b, c = Stub("a"), Stub("b", terminate_with_failure=True), Stub("c")
    c.depends_on(a)
    b << c

    steps = Pipeline("p", steps=[a, b, c]).document()["dag"]["steps"]

    assert {name: step["next"] for name, step in steps.items()} == {"a": "c", "b": "fail", "c": "b"}


def test_a_handler_is_a_way_of_its_own():
    pipeline = Pipeline(
        "p",
        steps=[
            Task("a", shell="false", on_failure=[Stub("clean"), Stub("report")]),
            Task("b", shell="true", on_failure="a handler"),
            Success("done"),
        ],
    )

    assert "names 'a handler', which does not exist" in str(pipeline.validate()[0])
    steps = Pipeline("p", steps=pipeline.steps[:1]).model().graph.steps
    assert (steps["a"].next, steps["a"].on_failure) == ("success", "clean")
    assert (steps["clean"].next, steps["report"].next) == ("report", "fail")


def test_python_and_a_file_give_the_same_model(write, tmp_path):
    path = write("""
        name: p
        parameters: {xs: [1]}
        executor: {type: local, config: {grace_s: 3}}
        dag:
          start_at: one
          steps:
            one: {type: task, command_type: python, command: os.path.join, max_attempts: 2, next: two}
            two:
              type: parallel
              next: three
              branches:
                l: {start_at: x, steps: {x: {type: stub, next: success}}}
                r: {start_at: y, steps: {y: {type: stub, next: fail}, z: {type: stub, next: success}}}
            three:
              type: map
              iterate_on: xs
              iterate_as: x
              next: four
              branch: {start_at: t, steps: {t: {type: task, command_type: app, app: {name: a, roles: [{name: r, image: ''}]}, next: success}}}
            four:
              type: conditional
              parameter: c
              next: success
              branches: {h: {start_at: s, steps: {s: {type: stub, next: success}}}}
        """)
    y, z = Stub("y", next="fail"), Stub("z")
    pipeline = Pipeline(
        "p",
        parameters={"xs": [1]},
        executor={"type": "local", "config": {"grace_s": 3}},
        steps=[
            Task("one", function="os.path.join", max_attempts=2),
            Parallel("two", branches={"l": [Stub("x")], "r": [y, z]}),
            Map("three", iterate_on="xs", iterate_as="x", branch=[Task("t", app=AppDef("a", [Role("r", "")]))]),
            Conditional("four", parameter="c", branches={"h": Pipeline("inner", steps=[Stub("s")])}),
        ],
    )

    with pytest.raises(PipelineError) as of_file:
        load(path)

    # The same error is found in both: `z` is unreachable.
    assert [(p.step, p.text) for p in of_file.value.problems] == [(p.step, p.text) for p in pipeline.validate()]


def test_what_cannot_be_is_refused():
    with pytest.raises(PipelineError, match="has python and shell; name one"):
        Task("t", function="a.b", shell="true")
    with pytest.raises(PipelineError, match="must be a function at the top level of an imported module"):
        Task("t", function=lambda: 1)
    with pytest.raises(PipelineError, match="there are two steps 'a'"):
        Pipeline("p", steps=[Stub("a"), Stub("a")]).document()
    a = Stub("a")
    a >> Stub("b")
    with pytest.raises(PipelineError, match="use Parallel"):
        a >> Stub("c")


def test_a_pipeline_in_python_runs(test_dag):
    pipeline = Pipeline(
        "made_in_python",
        steps=[
            Task("make", shell="export xs='[1, 2]'", returns=["xs"]),
            Map(
                "each",
                iterate_on="xs",
                iterate_as="x",
                branch=[Task("one", shell="export y=$((x + 1))", returns=["y"])],
            ),
            Task("bad", shell="exit 1", on_failure=[Task("fix", shell="true", next="success")]),
        ],
    )

    ran = test_dag(pipeline.dag())

    assert ran.state == "success", ran.states
    assert ran.parameters("fix")["y"] == [2, 3]
    assert isinstance(Fail("x"), Fail)


def test_a_pipeline_may_handle_a_failure() -> None:
    """As in runnable."""
    handler = Pipeline("handler", steps=[Task("a", shell="true"), Task("b", shell="true")])

    graph = Pipeline("p", steps=[Task("main", shell="true", on_failure=handler)]).model().graph

    assert {name: (step.next, step.on_failure) for name, step in graph.steps.items() if not step.is_terminal} == {
        "main": ("success", "a"),
        "a": ("b", ""),
        "b": ("fail", ""),
    }


def test_a_pipeline_in_python_reads_the_files_that_one_in_a_file_reads(write):
    """Paths are relative to the file that makes it."""
    write("rows: 2\nlimit: 1\n", "parameters.yaml")
    write("catalog: {type: file-system, config: {catalog_location: store}}\n", "config.yaml")
    pipeline = Pipeline("p", steps=[Task("a", shell="true")], parameters={"rows": 1, "name": "x"})
    pipeline.folder = write("", "dags.py").parent

    dag = pipeline.dag("other", parameters_file="parameters.yaml", config="config.yaml", params={"limit": 9})

    assert dag.dag_id == "other"
    assert dict(dag.params) == {"rows": 2, "name": "x", "limit": 9}
    assert pipeline.model(config="config.yaml").catalog.endswith("store")


def test_a_wrong_file_of_parameters_of_a_pipeline_in_python_is_named(write):
    pipeline = Pipeline("p", steps=[Task("a", shell="true")])

    with pytest.raises(PipelineError, match="must be a mapping"):
        pipeline.dag(parameters_file=write("[1]", "more.yaml"))


@pytest.mark.parametrize(
    ("name", "counterpart"),
    [
        ("configuration_file", "config"),
        ("parameters", "params"),
        ("tag", "tags, a list"),
        ("conn_id", "launch_conn_id"),
    ],
)
def test_an_argument_of_another_name_is_refused_with_ours(write, name, counterpart):
    """Airflow's own error only says that the argument is unexpected."""
    path = write("dag: {start_at: a, steps: {a: {type: task, command_type: shell, command: 'true', next: success}}}")
    pipeline = Pipeline("p", steps=[Task("a", shell="true")])

    for make in (pipeline.dag, partial(dag_from_file, path)):
        with pytest.raises(TypeError, match=f"'{name}' is not an argument; here it is {counterpart}"):
            make(**{name: "x"})
