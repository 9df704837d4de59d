"""Pipelines and jobs of runnable's SDK. The classes here have the attributes of those of runnable 0.50."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_launch.pipelines import Pipeline, PipelineError


@dataclass
class TaskReturns:
    name: str
    kind: str = "json"


@dataclass
class Catalog:
    get: list[str] = field(default_factory=list)
    put: list[str] = field(default_factory=list)
    store_copy: bool = True


@dataclass
class Traversal:
    name: str
    next_node: str = ""
    on_failure: Any = None


@dataclass
class BaseTask(Traversal):
    catalog: Catalog | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    returns: list[Any] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)


@dataclass
class PythonTask(BaseTask):
    function: Any = None


@dataclass
class NotebookTask(BaseTask):
    notebook: str = ""
    optional_ploomber_args: dict[str, Any] | None = None


@dataclass
class ShellTask(BaseTask):
    command: str = ""


class Stub(Traversal):
    pass


@dataclass
class Parallel(Traversal):
    branches: dict[str, Any] = field(default_factory=dict)


@dataclass
class Conditional(Parallel):
    parameter: str = ""


@dataclass
class Map(Traversal):
    branch: Any = None
    iterate_on: str = ""
    iterate_as: str = ""
    reducer: str | None = None


class Loop(Traversal):
    pass


@dataclass
class ShellJob:
    command: str
    returns: list[Any] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    catalog: Catalog | None = None


class PeerPipeline:
    """Links its steps and gathers those of handlers, as runnable does."""

    def __init__(self, steps: list[Any], name: str = "", description: str = "") -> None:
        self.name, self.description = name, description
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            step.next_node = following.name if following else "success"
        self.steps = [*steps, *(one for step in steps if step.on_failure for one in step.on_failure.steps)]


def peers() -> PeerPipeline:
    shell = "echo $x"
    return PeerPipeline(
        [
            PythonTask("write", function=asyncio.run, returns=["x", TaskReturns("score", "metric"), TaskReturns("m", "object")]),
            NotebookTask("book", notebook="a.ipynb", catalog=Catalog(get=["*.csv"], put=["out/**"])),
            ShellTask("say", command=shell, secrets=["TOKEN"], on_failure=PeerPipeline([Stub("repair")])),
            Parallel("both", branches={"a": PeerPipeline([Stub("one")]), "b": PeerPipeline([Stub("one")])}),
            Conditional("choose", parameter="x", branches={"1": PeerPipeline([Stub("one")])}),
            Map("each", iterate_on="x", iterate_as="y", reducer="max", branch=PeerPipeline([ShellTask("one", command=shell)])),
        ],
        name="peers",
        description="of a peer",
    )  # fmt: skip


def test_each_kind_of_step_becomes_ours() -> None:
    graph = Pipeline.from_runnable(peers()).document()["dag"]

    steps = graph["steps"]
    assert (graph["start_at"], graph["description"]) == ("write", "of a peer")
    assert [(name, step["type"], step["next"]) for name, step in steps.items()] == [
        ("write", "task", "book"), ("book", "task", "say"), ("say", "task", "both"), ("both", "parallel", "choose"),
        ("choose", "conditional", "each"), ("each", "map", "success"), ("repair", "stub", "success"),
    ]  # fmt: skip
    assert (steps["write"]["command_type"], steps["write"]["command"]) == ("python", "asyncio.runners.run")
    assert [item["kind"] for item in steps["write"]["returns"]] == ["json", "metric", "object"]
    assert steps["book"]["catalog"] == {"get": ["*.csv"], "put": ["out/**"]}
    assert (steps["say"]["on_failure"], steps["say"]["secrets"]) == ("repair", ["TOKEN"])
    assert "returns" not in steps["say"]
    assert set(steps["both"]["branches"]) == {"a", "b"}
    assert (steps["choose"]["parameter"], steps["each"]["reducer"]) == ("x", "max")
    assert steps["each"]["branch"]["steps"]["one"]["command"] == "echo $x"


def test_the_result_is_a_dag() -> None:
    dag = Pipeline.from_runnable(peers(), "other", parameters={"x": [1]}).dag()

    assert dag.dag_id == "other"
    assert {"say__ok", "say__failed", "repair"} <= set(dag.task_ids)


def test_the_result_runs(test_dag) -> None:
    inner = PeerPipeline([ShellTask("one", command="export y=$((x * 10))", returns=["y"])])
    repair = PeerPipeline([ShellTask("repair", command="export fixed=$y", returns=["fixed"])])
    source = PeerPipeline(
        [
            Map("each", iterate_on="xs", iterate_as="x", branch=inner, reducer="max"),
            ShellTask("bad", command="exit 1", on_failure=repair),
            ShellTask("never", command="exit 1"),
        ]
    )

    ran = test_dag(Pipeline.from_runnable(source, "of_runnable", parameters={"xs": [1, 2]}).dag())

    assert (ran.state, ran.states["bad"], ran.states["never"]) == ("success", "failed", "skipped")
    assert ran.returned("repair") == {"fixed": 20}


def test_a_job_is_a_pipeline_of_one_task() -> None:
    pipeline = Pipeline.from_runnable(ShellJob("export x=1", returns=["x"]), "nightly")

    assert pipeline.dag().task_ids == ["job", "success"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PeerPipeline([Loop("again"), Loop("more")], "p"), ["step 'again' is a loop", "step 'more' is a loop"]),
        (PeerPipeline([PythonTask("f", function=lambda: 1)], "p"), ["must be a function at the top level"]),
        (PeerPipeline([Stub("a")]), ["has no name; pass one"]),
        (
            PeerPipeline([NotebookTask("b", notebook="a.ipynb", optional_ploomber_args={"log_output": True})], "p"),
            ["task 'b' has 'optional_ploomber_args', but ploomber does not run it here"],
        ),
        (
            PeerPipeline(
                [PythonTask("f", function=lambda: 1), Map("m", branch=PeerPipeline([Loop("again")])), Loop("l")], "p"
            ),
            ["task 'f'", "step 'again' is a loop", "step 'l' is a loop"],
        ),
    ],
    ids=["loop", "lambda", "no name", "ploomber", "nested"],
)
def test_steps_without_a_counterpart_are_named(source: Any, expected: list[str]) -> None:
    with pytest.raises(PipelineError) as caught:
        Pipeline.from_runnable(source)

    assert len(caught.value.problems) == len(expected)
    assert all(text in str(caught.value) for text in expected)
