"""Precedence of settings of the pipeline, the step and placeholders."""

from __future__ import annotations

import json

import pytest

from airflow_provider_launch.pipelines import PipelineError, load, validate
from airflow_provider_launch.pipelines.executors import placement
from airflow_provider_launch.pipelines.layers import ConnectionPlaceholders, resolve


def resolved(write, config: str, overrides: str, kind: str = "local"):
    path = write(f"""
        executor:
          type: {kind}
          config: {config}
        dag:
          start_at: a
          steps:
            a: {{type: stub, command: m.f, next: success}}
        """)
    model = load(path)
    step = load(
        write("dag: {start_at: a, steps: {a: {type: task, command: m.f, next: success}}}\n", "b.yaml")
    ).graph.steps["a"]
    import dataclasses

    import yaml

    problems: list = []
    step = dataclasses.replace(step, overrides={kind: yaml.safe_load(overrides)})
    return resolve(model, step, kind, problems), [str(problem) for problem in problems]


PAGE = "{k1: v1, k3: v3, placeholders: {k2: v2}}"


@pytest.mark.parametrize(
    ("config", "overrides", "expected"),
    [
        # The example of the published page.
        (PAGE, "{k1: value_specific_to_node, k2: }", {"k1": "value_specific_to_node", "k2": "v2", "k3": "v3"}),
        (PAGE, "{k2: , k1: value_specific_to_node}", {"k1": "value_specific_to_node", "k2": "v2", "k3": "v3"}),
        # Keys of the step override those of a mapping placeholder, in any order.
        ("{k3: v3, placeholders: {p: {k1: other, k2: v2}}}", "{p: , k1: mine}", {"k1": "mine", "k2": "v2", "k3": "v3"}),
        ("{k3: v3, placeholders: {p: {k1: other, k2: v2}}}", "{k1: mine, p: }", {"k1": "mine", "k2": "v2", "k3": "v3"}),
        # Falsy values are values.
        (
            "{a: 1, b: x, c: true, placeholders: {a: 5, b: 6, c: 7}}",
            "{a: 0, b: '', c: false}",
            {"a": 0, "b": "", "c": False},
        ),
        # A name instead of a mapping.
        ("{k1: v1, placeholders: {big: {k1: v9}}}", "big", {"k1": "v9"}),
        ("{k1: v1, overrides: {big: {k1: v9}}}", "big", {"k1": "v9"}),
        # Variables are merged, lists are not.
        ("{env: {A: '1', B: '2'}, l: [1]}", "{env: {B: '3'}, l: [2]}", {"env": {"A": "1", "B": "3"}, "l": [2]}),
        ("{docker_image: one}", "{image: two}", {"image": "two"}),
        # The pipeline itself may leave a key empty.
        ("{k1: , placeholders: {k1: v1}}", "{}", {"k1": "v1"}),
    ],
)
def test_the_nearest_setting_wins(write, config, overrides, expected):
    assert resolved(write, config, overrides) == (expected, [])


def test_an_empty_setting_needs_a_placeholder(write):
    _, problems = resolved(write, "{placeholders: {gpu_big: {gpu: 8}}}", "{gpu_bgi: }")

    assert any("there is no placeholder of that name; did you mean 'gpu_big'?" in problem for problem in problems)


FILE = """
    executor: {type: local-container, config: {image: repo/base:1, env: {key: value}}}
    dag:
      start_at: step 1
      steps:
        step 1: {type: task, command: m.f, next: step 2}
        step 2:
          type: task
          command: m.f
          overrides: {local-container: {docker_image: repo/other:1, environment: {key: not-value}}, slurm: {partition: p}}
          next: step 3
        step 3: {type: task, command: m.f, overrides: {local-container: {run_in_local: true}}, next: step 4}
        step 4: {type: task, command: m.f, executor: {type: slurm, config: {partition: core}}, next: step 5}
        step 5: {type: task, command: m.f, executor: {type: aws-batch, config: {image: i, conn_id: batch}}, next: success}
    """


def test_a_step_may_run_elsewhere_or_otherwise(write):
    path = write(FILE)
    assert validate(path) == []
    model = load(path)

    found = [placement(model, model.graph.steps[f"step {at}"]) for at in (1, 2, 3, 4, 5)]

    assert [place.backend.name for place in found] == ["docker", "docker", "local", "slurm", "aws_batch"]
    assert [place.settings.image for place in found] == ["repo/base:1", "repo/other:1", "", "", "i"]
    assert [place.settings.env.get("key") for place in found[:3]] == ["value", "not-value", "value"]
    assert [place.conn_id for place in found] == [
        "launch_docker_default", "launch_docker_default", "launch_local_default", "launch_slurm_default", "batch",
    ]  # fmt: skip
    assert found[3].options == {"partition": "core"}


def test_a_config_file_wins_over_the_pipeline(write):
    path = write("executor: local\ndag: {start_at: a, steps: {a: {type: task, command: m.f, next: success}}}\n")
    config = write("executor: {type: kubernetes, config: {image: i}}\nrun_log_store: {type: buffered}\n", "config.yaml")

    model = load(path, config)

    assert placement(model, model.graph.steps["a"]).backend.name == "kubernetes"
    assert validate(path, write("executor: kubernets\n", "wrong.yaml"))[0].place.file.endswith("wrong.yaml")


LEFT = """
    executor: {type: TYPE, config: {conn_id: place, placeholders: {big: , env: }}}
    dag:
      start_at: a
      steps:
        a: {type: task, command_type: shell, command: 'export b="$A $B"', returns: [b], overrides: {TYPE: {env: }}, next: c}
        c: {type: task, command_type: shell, command: 'test "$b" = "1 2"', overrides: {TYPE: big}, next: success}
    """


def left(kind: str = "local") -> str:
    return LEFT.replace("TYPE", kind)


def test_the_connection_has_the_value_of_a_placeholder_that_the_file_leaves_empty(run_pipeline, monkeypatch):
    """Connections are not read while a DAG is parsed, so none is defined here."""
    extra = {"grace_s": 3, "placeholders": {"env": {"env": {"A": "1", "B": "2"}}, "big": {"cpu": 4, "grace_s": 7}}}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_local", "extra": extra}))

    ran = run_pipeline(left())

    assert ran.state == "success", ran.states
    config = ran.xcom("c", "attempt")["config"]
    assert (config["cpu"], config["grace_s"]) == (4, 7)
    assert ran.xcom("a", "attempt")["config"]["env"] == {"A": "1", "B": "2"}


def test_a_placeholder_of_the_file_wins_over_one_of_the_connection(write):
    text = "executor: {type: local, config: {placeholders: {cpu: 1}}}\n"
    text += "dag: {start_at: a, steps: {a: {type: task, command: m.f, overrides: {local: {cpu: }}, next: success}}}\n"
    model = load(write(text))

    found = placement(model, model.graph.steps["a"], ConnectionPlaceholders("place", {"cpu": 9}))

    assert found.settings.cpu == 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"bigg": {"cpu": 4}},
            "leaves placeholder 'big' to connection 'place', which does not have it; did you mean 'bigg'? add it",
        ),
        ({}, "there are none; add it to 'placeholders' in the connection's extra, or give it a value here"),
        ({"big": {"cpu": "many"}}, "setting 'cpu' must be a whole number of at least 1, not 'many'"),
        (
            {"big": {"conn_id": "x"}},
            "placeholder 'big' of connection 'place' sets conn_id, which a connection cannot set",
        ),
        ({"big": {"grace": 1}}, "'grace' is not a setting of executor 'local'; did you mean 'grace_s'?"),
        ({"big": 5}, "'overrides' names 'big', but executor 'local' has no such placeholder"),
    ],
)
def test_what_is_wrong_in_a_connection_has_the_line_of_the_step(write, values, expected):
    path = write(left())
    assert validate(path) == []
    model = load(path)

    with pytest.raises(PipelineError) as caught:
        placement(model, model.graph.steps["c"], ConnectionPlaceholders("place", values))

    (problem,) = caught.value.problems
    assert expected.replace("? add it", "?") in str(problem)
    assert str(problem).startswith(f"{path}:6: step 'c': ")


def test_a_placeholder_without_a_value_fails_the_task_before_it_launches(run_pipeline, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_local", "extra": {}}))

    ran = run_pipeline(left())

    assert ran.states["a"] == "failed"
    assert ran.xcom("a", "handle") is None


def test_an_image_may_come_from_the_connection(write):
    text = (
        left("kubernetes").replace("conn_id: place, ", "conn_id: place, image: , ").replace("big: ,", "big: , image: ,")
    )
    path = write(text)
    assert validate(path) == []
    model = load(path)
    step = model.graph.steps["c"]

    with_image = ConnectionPlaceholders("place", {"image": "repo/a:1", "big": {}})
    found = placement(model, step, with_image)

    assert found.settings.image == "repo/a:1"


def test_settings_that_shape_the_dag_are_not_left_to_a_connection(write):
    text = "executor: {type: local, config: {conn_id: , placeholders: {conn_id: }}}\n"
    text += "dag: {start_at: a, steps: {a: {type: task, command: m.f, next: success}}}\n"

    (problem,) = validate(write(text))

    assert "leaves 'conn_id' to the connection, which cannot set it" in str(problem)
