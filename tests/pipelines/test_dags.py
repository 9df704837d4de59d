"""Folders of files, limits of a run, and additions of a connection."""

from __future__ import annotations

import json

import pytest

from airflow_provider_launch.pipelines import PipelineError, dag_from_file, load_pipelines

STUB = "dag: {{start_at: a, steps: {{a: {{type: stub, next: {}}}}}}}\n"


def test_a_folder_of_files_becomes_dags_of_a_module(write, tmp_path):
    write(STUB.format("success"), "files/one.yaml")
    write("name: the second\n" + STUB.format("success"), "files/two.yml")
    write("parameters: {x: 1}\n", "files/only_parameters.yaml")
    namespace = {"__file__": str(tmp_path / "module.py")}

    dags = load_pipelines("files", namespace, tags=["of a file"])

    assert [dag.dag_id for dag in dags] == ["one", "the_second"]
    found = {name: value for name, value in namespace.items() if name != "__file__"}
    assert found == {"pipeline_one": dags[0], "pipeline_the_second": dags[1]}
    assert [dag.tags for dag in dags] == [{"of a file"}] * 2


def test_problems_of_all_files_of_a_folder_come_at_once(write, tmp_path):
    write(STUB.format("gone"), "files/one.yaml")
    write(STUB.format("sucess"), "files/two.yaml")

    with pytest.raises(PipelineError) as caught:
        load_pipelines("files", {"__file__": str(tmp_path / "module.py")})

    assert {problem.place.file.rpartition("/")[2] for problem in caught.value.problems} == {"one.yaml", "two.yaml"}
    with pytest.raises(PipelineError, match="does not exist; the path is relative to the caller"):
        load_pipelines("fils", {"__file__": str(tmp_path / "module.py")})


MAP = """
    executor: {{type: local, config: {config}}}
    parameters: {{xs: [1, 2]}}
    dag:
      start_at: m
      steps:
        m:
          type: map
          iterate_on: xs
          iterate_as: x
          next: success
          {more}
          branch: {{start_at: a, steps: {{a: {{type: task, command_type: shell, command: "true", next: success}}}}}}
    """


@pytest.mark.parametrize(
    ("config", "tasks"),
    [("{}", 16), ("{enable_parallel: false}", 1), ("{enable_parallel: true}", 16), ("{parallelism: 3}", 3)],
)
def test_a_pipeline_limits_the_tasks_of_a_run(write, config, tasks):
    dag = dag_from_file(write(MAP.format(config=config, more="")))

    assert dag.max_active_tasks == tasks
    # Deferred elements count only here.
    assert dag.get_task("m.each.a").max_active_tis_per_dagrun == (None if tasks == 16 else tasks)


def test_a_map_limits_its_elements(write):
    dag = dag_from_file(write(MAP.format(config="{}", more="parallelism: 1")))

    assert dag.get_task("m.each.a").max_active_tis_per_dagrun == 1


def test_a_setting_of_a_step_wins_over_one_of_the_connection(run_pipeline, monkeypatch):
    extra = {"time_limit_s": 1}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_local", "extra": extra}))

    ran = run_pipeline("""
        executor: {type: local, config: {conn_id: place}}
        dag:
          start_at: a
          steps:
            a: {type: task, command_type: shell, command: sleep 20, next: success, on_failure: b}
            b: {type: task, command_type: shell, command: sleep 2, overrides: {local: {time_limit_s: 60}}, next: success}
        """)

    assert (ran.states["a"], ran.states["b"]) == ("failed", "success")
    assert "time limit" in ran.xcom("a", "attempt")["error"]
