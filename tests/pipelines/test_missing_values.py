"""Values of tasks before a task that has none: skipped, marked as a success, or nothing returned."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_launch.pipelines import dag_from_file
from airflow_provider_launch.pipelines.gates import known_parameters
from airflow_provider_launch.pipelines.parameters import reduced
from airflow_provider_launch.specs.errors import InvalidAppError


class Run:
    """The XComs of a run, by task id and index, as a task instance sees them."""

    def __init__(self, dag: Any) -> None:
        self.dag = dag
        self.xcoms: dict[tuple[str, str, int], Any] = {}
        self.requests = 0
        self.states: dict[str, str] = {}
        self.dag_id = self.run_id = "x"
        self.task: Any = None
        self.map_index = -1
        self.params: dict[str, Any] = {name: dag.params[name] for name in dag.params}

    def done(self, task_id: str, index: int = -1, **returned: Any) -> None:
        """Let a task succeed."""
        known, _ = self.known(task_id, index)
        known.set(returned, self.task.order)
        value = known.to_json(returned, index if index >= 0 else None)
        self.xcom_push("parameters", value)

    def known(self, task_id: str, index: int = -1) -> Any:
        self.task, self.map_index = self.dag.get_task(task_id), index
        return known_parameters({"ti": self, "params": self.params}, self.task.sources, self.task.scope)

    def values(self, task_id: str, index: int = -1) -> dict[str, Any]:
        return self.known(task_id, index)[0].values

    def gate(self, task_id: str) -> Any:
        """Run a gate."""
        self.task, self.map_index = self.dag.get_task(task_id), -1
        value = self.task.execute({"ti": self, "params": self.params})
        if value is not None:
            self.xcom_push("return_value", value)
        return self.xcoms[task_id, "parameters", -1]["returned"]

    def get_task_states(self, task_ids: list[str], **_: Any) -> dict[str, dict[str, str]]:
        return {self.run_id: {name: self.states.get(name, "success") for name in task_ids}}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[self.task.task_id, key, self.map_index] = value

    def xcom_pull(self, task_ids: Any, key: str = "return_value", map_indexes: int | None = None) -> Any:
        self.requests += 1
        if map_indexes is None:
            return [
                value for (task, name, _), value in sorted(self.xcoms.items()) if [task] == task_ids and name == key
            ]
        return self.xcoms.get((task_ids, key, map_indexes))


@pytest.fixture
def run(write):
    return lambda text: Run(dag_from_file(write(text)))


CHAIN = """
    parameters: {base: 5}
    dag:
      start_at: p1
      steps:
        p1: {type: task, command_type: shell, command: export x=10 y=1, returns: [x, y], next: p2}
        p2: {type: task, command_type: shell, command: exit 3, returns: [y], next: p3}
        p3: {type: task, command_type: shell, command: "true", next: p4}
        p4: {type: task, command_type: shell, command: "true", next: success, on_failure: fix}
        fix: {type: task, command_type: shell, command: "true", next: success}
    """


@pytest.mark.parametrize("finished", [["p1", "p2"], ["p1", "p2", "p3"], ["p1"], ["p1", "p3"]])
def test_a_task_that_was_marked_as_a_success_hides_no_value(run, finished):
    """A shell step would see an empty variable: think of `rm -rf $x/...`."""
    ran = run(CHAIN)
    for name in finished:
        ran.done(name, **{"p1": {"x": 10, "y": 1}, "p2": {"y": 2}}.get(name, {}))

    expected = {"base": 5, "x": 10, "y": 2 if "p2" in finished else 1}
    assert ran.values("p4") == expected
    # The handler of a task that failed, which has no values either.
    assert ran.values("fix") == expected


def test_the_values_of_a_chain_are_one_request(run):
    ran = run(CHAIN)
    for name in ("p1", "p2", "p3"):
        ran.done(name)
    ran.requests = 0

    ran.values("p4")

    assert ran.requests == 1


MAP = """
    parameters: {{xs: [a, b, c]}}
    dag:
      start_at: m
      steps:
        m:
          type: map
          iterate_on: {on}
          iterate_as: x
          next: after
          branch:
            start_at: one
            steps:
              one: {{type: task, command_type: shell, command: export sq=1, returns: [sq], next: two}}
              two: {{type: task, command_type: shell, command: "true", returns: [more], next: success}}
        after: {{type: task, command_type: shell, command: "true", next: success}}
    """


@pytest.mark.parametrize("on", ["xs", "[a, b, c]"], ids=["mapped", "in the file"])
def test_an_element_without_values_keeps_its_position(run, on):
    ran = run(MAP.format(on=on))
    ran.gate("m.fan_out")

    def done(step: str, at: int, **returned: Any) -> None:
        ran.done(f"m.each.{step}", at, **returned)

    for at in (0, 2):
        done("one", at, sq="ABC"[at] * 2)
        done("two", at, more=at)
    # The second element: `one` was marked as a success.
    done("two", 1, more=1)

    assert ran.gate("m.fan_in") == {"sq": ["AA", None, "CC"], "more": [0, 1, 2]}
    assert ran.values("after")["xs"] == ["a", "b", "c"]


def test_an_element_whose_last_task_was_marked_has_the_values_before_it(run):
    ran = run(MAP.format(on="xs"))
    ran.gate("m.fan_out")
    for at in range(3):
        ran.done("m.each.one", at, sq=at)
    ran.done("m.each.two", 1, more="b")

    assert ran.gate("m.fan_in") == {"sq": [0, 1, 2], "more": [None, "b", None]}


def test_a_map_that_was_marked_as_a_success_hides_no_value(run):
    ran = run(MAP.format(on="xs").replace("start_at: m\n", "start_at: first\n").replace(
        "steps:\n        m:", "steps:\n        first: {type: task, command_type: shell, command: 'true', next: m}\n        m:", 1
    ))  # fmt: skip
    ran.done("first", known=1)

    assert ran.values("after") == {"xs": ["a", "b", "c"], "known": 1}


JOIN = """
    dag:
      start_at: first
      steps:
        first: {type: task, command_type: shell, command: "true", next: report}
        report: {type: task, command_type: shell, command: "true", next: show, on_failure: apologise}
        apologise: {type: task, command_type: shell, command: "true", next: again}
        again: {type: task, command_type: shell, command: "true", next: show}
        show: {type: task, command_type: shell, command: "true", next: success}
    """


def test_values_of_a_path_that_was_left_after_clear_do_not_count(run):
    """The handler ran, then the failed task was cleared and succeeded: the handler is skipped, its XCom is still there."""
    ran = run(JOIN)
    ran.done("first", text="first", kept=1)
    ran.done("apologise", text="sorry")
    ran.done("again")
    ran.states["report"] = "failed"
    assert ran.values("show") == {"text": "sorry", "kept": 1}

    ran.done("report", text="report")
    ran.states |= {"report": "success", "apologise": "skipped", "again": "skipped"}

    assert ran.values("show") == {"text": "report", "kept": 1}


@pytest.mark.parametrize("reducer", ["min", "max", "sum"])
def test_a_reducer_that_misses_a_value_names_the_element(reducer):
    with pytest.raises(InvalidAppError, match=f"element 1 of the map, .* no value of 'x', which reducer '{reducer}'"):
        reduced([{"x": 1}, {"y": 2}, {"x": 3}], reducer)


def test_the_last_value_is_that_of_the_last_element():
    assert reduced([{"x": 1}, {}], "last") == {"x": None}
