"""Folders of files, limits of a run, and additions of a connection."""

from __future__ import annotations

import json
import logging
import traceback
from datetime import datetime, timedelta, timezone

import pytest
import yaml

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


def test_files_for_all_dags_of_a_folder_are_relative_to_the_module(write, tmp_path):
    write("dag: {start_at: a, steps: {a: {type: stub, next: success}}}\n", "files/one.yaml")
    write("x: 1\n", "files/common.yaml")
    write("parameters: {y: 2}\n", "config.yaml")
    write("dag: [", "files/parts/included.yaml")

    (dag,) = load_pipelines(
        "files", {"__file__": str(tmp_path / "module.py")}, parameters_file="files/common.yaml", config="config.yaml"
    )

    assert dict(dag.params) == {"x": 1, "y": 2}


def test_a_folder_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(PipelineError, match="does not exist; the path is relative to the caller"):
        load_pipelines("fils", {"__file__": str(tmp_path / "module.py")})


WRONG = {
    "typo": (STUB.format("sucess"), "wrong.yaml:1: step 'a': 'next' names 'sucess', which does not exist"),
    "not YAML": ("dag: [", "wrong.yaml:2: is not valid YAML"),
    "same id": ("name: good\n" + STUB.format("success"), "becomes the DAG 'good', like 'good.yaml'"),
    "argument of Airflow": (
        "dag: {start_at: a, steps: {a: {type: task, command: m.f, airflow: {pool: 5}, next: success}}}\n",
        "wrong.yaml:1: step 'a': is refused by Airflow: 'pool' for task 'a' expects",
    ),
    "unexpected error": (f"name: {'x' * 300}\n" + STUB.format("success"), "wrong.yaml: cannot become a DAG: "),
}


@pytest.fixture
def module(write):
    """A DAG file that loads a folder with a valid file and, unless empty, a wrong one."""

    def make(wrong: str):
        write(STUB.format("success"), "files/good.yaml")
        write(wrong, "files/wrong.yaml")
        return write(
            """
            # airflow dag
            from airflow_provider_launch.pipelines import load_pipelines

            load_pipelines("files", globals())
            """,
            "module.py",
        )

    return make


@pytest.mark.parametrize(("wrong", "expected"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_an_import_error_of_its_own(module, tmp_path, caplog, wrong, expected):
    """An error of the module would make all of its DAGs stale: their schedules and runs would stop."""
    from airflow.dag_processing.processor import DagFileParseRequest, _parse_file

    path = module(wrong)

    found = _parse_file(
        DagFileParseRequest(file=str(path), bundle_path=tmp_path, bundle_name="tests", callback_requests=[]),
        logging.getLogger("airflow.parse"),
    )

    assert [dag.dag_id for dag in found.serialized_dags] == ["good"]
    assert [*found.import_errors] == ["files/wrong.yaml"]
    assert expected in found.import_errors["files/wrong.yaml"]
    # In front of it is a line of ours, which a task of that file shows.
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("pipelines.dags")]
    assert [expected in line for line in lines] == [True]
    # The log of the DAG processor names the file, too.
    assert f"Failed to serialize DAG: {tmp_path / 'files/wrong.yaml'}" in caplog.text


def test_a_wrong_file_fails_tests_of_dags(module):
    """Tests of a DAGs folder check `import_errors` of a DagBag."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(module(WRONG["typo"][0])))

    assert [*bag.dags] == ["good"]
    assert "names 'sucess'" in str(bag.import_errors)


def test_a_dag_needs_no_name_in_its_module(write):
    from airflow.dag_processing.dagbag import DagBag

    write(STUB.format("success"), "one.yaml")
    path = write(
        "# airflow dag\nfrom airflow_provider_launch.pipelines import dag_from_file\n\ndag_from_file('one.yaml')\n",
        "m.py",
    )

    assert [*DagBag(dag_folder=str(path)).dags] == ["one"]


NAMED = {
    "stem.yaml": STUB.format("success"),
    "a.yaml": "name: stem a\n" + STUB.format("success"),
    "b.yaml": STUB.format("success") + "'name': \"the second\"  # named\n",
    "c.yaml": "name: the\n  third\n" + STUB.format("success"),
    "d.yaml": "{name: fourth, " + STUB.format("success").strip() + "}\n",
    "e.yaml": "x-name: &n fifth\nname: *n\n" + STUB.format("success"),
}


@pytest.mark.parametrize("dag_id", ["stem", "stem_a", "the_second", "the_third", "fourth", "fifth"])
def test_the_start_of_a_task_reads_the_file_of_its_dag(write, tmp_path, monkeypatch, dag_id):
    """Airflow parses the module before each task: 50 files must cost what one costs, and a wrong one nothing."""
    from airflow_provider_launch.pipelines import reader

    for name, text in NAMED.items():
        write(text, f"files/{name}")
    for number in range(50):
        write(STUB.format("success"), f"files/other_{number}.yaml")
    write(WRONG["not YAML"][0], "files/wrong.yaml")
    opened = []
    load = reader.load_document
    monkeypatch.setattr(reader, "load_document", lambda path, *more: opened.append(path.name) or load(path, *more))
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", dag_id)
    namespace = {"__file__": str(tmp_path / "module.py")}

    dags = load_pipelines("files", namespace)

    assert dag_id in [dag.dag_id for dag in dags]
    # Files whose lines do not show the name are read, too.
    assert {*opened} - {"c.yaml", "d.yaml", "e.yaml"} <= {"stem.yaml", "a.yaml", "b.yaml"}
    assert len(opened) <= 4


@pytest.mark.parametrize("damage", ["not text", "a link to nothing"])
@pytest.mark.parametrize(("wanted", "is_reported"), [("good", False), ("bad", True), (None, True)])
def test_a_file_that_cannot_be_read_stops_no_task_of_another_file(
    write, tmp_path, monkeypatch, damage, wanted, is_reported
):
    write(STUB.format("success"), "files/good.yaml")
    path = tmp_path / "files/bad.yaml"
    if damage == "not text":
        path.write_bytes(b"dag: \xff\n")
    else:
        path.symlink_to("nowhere")
    if wanted is not None:
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", wanted)
    namespace = {"__file__": str(tmp_path / "module.py")}

    assert [dag.dag_id for dag in load_pipelines("files", namespace)] == ([] if wanted == "bad" else ["good"])
    assert [name for name in namespace if "bad" in name] == ["pipeline_bad_yaml_invalid"] * is_reported


@pytest.mark.parametrize("line", ["name: [", "name:x", "name: 2001-99-99", "'name': \"x"])
def test_a_name_that_cannot_be_read_stops_no_task_of_another_file(write, tmp_path, monkeypatch, line):
    """The file may be that of any DAG, so that its error is reported."""
    write(STUB.format("success"), "files/good.yaml")
    write(f"{line}\n{STUB.format('success')}", "files/bad.yaml")
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "good")
    namespace = {"__file__": str(tmp_path / "module.py")}

    assert [dag.dag_id for dag in load_pipelines("files", namespace)] == ["good"]
    assert "pipeline_bad_yaml_invalid" in namespace


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


def test_a_reducer_is_found_next_to_the_file(write, tmp_path):
    from airflow_provider_launch.pipelines.parameters import reduced

    write("def best(values):\n    return max(values)\n", "code/mine_of_reducer.py")
    write(
        """
        executor: {type: local, config: {code_dir: code}}
        dag:
          start_at: m
          steps:
            m:
              type: map
              iterate_on: [1, 2]
              iterate_as: x
              reducer: mine_of_reducer.best
              next: success
              branch: {start_at: a, steps: {a: {type: stub, next: success}}}
        """,
        "pipeline.yaml",
    )

    fan_in = dag_from_file(tmp_path / "pipeline.yaml").get_task("m.fan_in")

    assert reduced([{"y": 1}, {"y": 5}], fan_in.reducer, fan_in.folders) == {"y": 5}


def test_a_reducer_is_found_next_to_the_included_file(write, tmp_path):
    from airflow_provider_launch.pipelines.parameters import reduced

    write("def best(values):\n    return max(values)\n", "parts/mine_of_part.py")
    branch = "{start_at: a, steps: {a: {type: stub, next: success}}}"
    step = f"{{type: map, iterate_on: [1], iterate_as: x, reducer: mine_of_part.best, next: success, branch: {branch}}}"
    write(f"dag: {{start_at: m, steps: {{m: {step}}}}}\n", "parts/part.yaml")
    write("dag: {start_at: p, steps: {p: {type: dag, dag_definition: parts/part.yaml, next: success}}}\n")

    fan_in = dag_from_file(tmp_path / "pipeline.yaml").get_task("p.m.fan_in")

    assert reduced([{"y": 1}, {"y": 5}], fan_in.reducer, fan_in.folders) == {"y": 5}


def test_a_patch_keeps_the_type_of_its_command(write):
    path = write(
        """
        executor:
          type: mocked
          config: {what: ever, patches: {a: {command: echo hello}, b: {command: m.f, command_type: python}}}
        dag:
          start_at: a
          steps:
            a: {type: task, command_type: shell, command: exit 1, next: b}
            b: {type: task, command_type: shell, command: exit 1, next: success}
        """
    )

    tasks = dag_from_file(path).task_dict

    assert (tasks["a"].step.command_type, tasks["a"].command) == ("shell", "echo hello")
    assert (tasks["b"].step.command_type, tasks["b"].command) == ("python", "m.f")


def test_below_the_error_of_a_step_are_few_frames_of_ours(write):
    """As in other tasks of this package, the log ends with the cause and not with our code."""
    from airflow_provider_launch.pipelines import dag_from_file
    from tests.airflow.support import FakeExecutionApi, run_task

    step = {"type": "task", "command_type": "shell", "command": "exit 3", "next": "success"}
    dag = dag_from_file(write(yaml.safe_dump({"dag": {"start_at": "a", "steps": {"a": step}}})))
    ran = run_task(dag.get_task("a"), FakeExecutionApi())

    assert "exited with code 3" in str(ran.error)
    frames = traceback.extract_tb(ran.error.__traceback__)
    assert 1 <= sum("/airflow_provider_launch/" in frame.filename for frame in frames) < 3


def test_a_date_of_a_file_is_a_date_of_airflow(write):
    step = "{type: task, command: m.f, airflow: {start_date: 2026-01-02, execution_timeout: 60}, next: success}"
    dag = dag_from_file(write(f"dag: {{start_at: a, steps: {{a: {step}}}}}\n"))

    task = dag.get_task("a")
    assert task.start_date == datetime(2026, 1, 2, tzinfo=timezone.utc)
    assert task.execution_timeout == timedelta(minutes=1)
