"""`LaunchAppOperator(component=...)`: checked when the DAG is parsed, called when the task runs."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_launch._airflow import AirflowFailException
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, InvalidAppError, Role
from tests.airflow.support import FakeExecutionApi, a_dag, run_task

pytestmark = pytest.mark.engine("local")

COMPONENT = """
from airflow_provider_launch.specs import AppDef, Role

CALLS = []

def train(words: list[str], n: int = 1, fail: bool = False) -> AppDef:
    CALLS.append(words)
    if fail:
        raise ValueError("cannot train so")
    return AppDef("mine", [Role("w", "", entrypoint="echo", args=words, num_replicas=n)])

def other() -> AppDef:
    return "no app"

def many(**kwargs: str) -> AppDef: ...
"""


class SomeTask(BaseOperator):
    def execute(self, context):
        return ["-x", "{{ no template }}"]


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.py").write_text(COMPONENT)
    return f"{tmp_path}/mine.py"


def task_of(component, component_args=None, **kwargs):
    with a_dag():
        return LaunchAppOperator(task_id="t", component=component, component_args=component_args, **kwargs)


def lines_of(ran):
    return [line.partition("] ")[2] for line in ran.lines if line.startswith("[")]


@pytest.mark.parametrize(
    ("component", "arguments", "lines"),
    [
        ("utils.echo", None, ["hello world"]),
        ("utils.echo", {"msg": "run {{ run_id }}"}, ["run test_run"]),
        ("utils.echo", {"msg": "x", "num_replicas": "{{ 1 + 1 }}"}, ["x", "x"]),
        ("utils.echo", ["--msg", "{{ ti.task_id }}", "--num_replicas", "{{ 1 + 1 }}"], ["t", "t"]),
        ("utils.sh", ["echo", "a  b", "{{ run_id }}"], ["a  b test_run"]),
        ("utils.sh", {"args": ["echo", "{{ run_id }}"], "env": {"A": "{{ ds_nodash | default('d') }}"}}, ["test_run"]),
    ],
)
def test_the_component_is_called_with_rendered_arguments(component, arguments, lines):
    api = FakeExecutionApi()

    ran = run_task(task_of(component, arguments), api)

    assert ran.error is None
    assert lines_of(ran) == lines
    assert api.xcoms["t", "return_value"]["state"] == "SUCCEEDED"


def test_the_rendered_arguments_are_shown():
    api = FakeExecutionApi()
    run_task(task_of("utils.echo", {"msg": "run {{ run_id }}"}), api)

    assert api.rendered["component_args"] == {"msg": "run test_run"}
    assert "run test_run" in api.rendered["request"]


def test_outputs_of_other_tasks_are_arguments():
    with a_dag():
        words = SomeTask(task_id="words").output
        task = LaunchAppOperator(
            task_id="t", component="utils.sh", component_args={"args": words, "entrypoint": "echo"}
        )
    api = FakeExecutionApi()
    api.xcoms["words", "return_value"] = ["-x", "{{ no template }}"]

    ran = run_task(task, api)

    assert ran.error is None
    assert lines_of(ran) == ["-x {{ no template }}"]
    assert task.upstream_task_ids == {"words"}


def test_one_component_with_many_arguments():
    arguments = [{"msg": "a {{ ti.map_index }}"}, ["--msg", "b {{ ti.map_index }}"], {"mgs": "c"}]
    with a_dag():
        task = LaunchAppOperator.partial(task_id="t", component="utils.echo").expand(component_args=arguments)

    ran = [run_task(task, FakeExecutionApi(), map_index=index) for index in range(3)]

    assert [lines_of(each) for each in ran[:2]] == [["a 0"], ["b 1"]]
    assert ran[2].state == "failed"
    assert "did you mean 'msg'?" in str(ran[2].error)


def test_a_path_is_relative_to_the_dag_file(tmp_path, file):
    dag_file = tmp_path / "dag.py"
    dag_file.write_text(
        textwrap.dedent("""
            from airflow.sdk import DAG
            from airflow_provider_launch.operators.launch import LaunchAppOperator

            with DAG("test_dag", schedule=None):
                task = LaunchAppOperator(
                    task_id="t", component="mine.py:train", component_args={"words": ["a", "{{ run_id }}"]}
                )
        """)
    )
    namespace: dict = {"__file__": str(dag_file)}
    exec(compile(dag_file.read_text(), str(dag_file), "exec"), namespace)

    ran = run_task(namespace["task"], FakeExecutionApi())

    assert lines_of(ran) == ["a test_run"]


def test_a_component_is_called_at_parse_time_only_without_templates(file):
    from airflow_provider_launch.specs.finder import get_component

    calls = get_component(f"{file}:train").fn.__globals__["CALLS"]
    task_of(f"{file}:train", {"words": ["{{ ds }}"]})
    assert calls == []
    task_of(f"{file}:train", {"words": ["a"]})
    assert calls == [["a"]]


@pytest.mark.parametrize(
    ("component", "arguments", "text"),
    [
        ("utils.ehco", None, "did you mean 'utils.echo'?"),
        ("utils.echo", {"mgs": "x"}, "did you mean 'msg'?"),
        ("utils.echo", {"mgs": "{{ ds }}"}, "did you mean 'msg'?"),
        ("utils.echo", ["--mgs", "{{ ds }}"], "did you mean '--msg'?"),
        ("utils.touch", {}, "needs the argument 'file'"),
        ("utils.touch", {"image": "{{ ds }}"}, "needs the argument 'file'"),
        ("utils.touch", ["--image", "{{ ds }}"], "required: --file"),
        ("utils.echo", {"num_replicas": "many"}, "'num_replicas' must be int"),
        ("utils.echo", {"num_replicas": "many", "msg": "{{ ds }}"}, "'num_replicas' must be int"),
        ("utils.echo", ["--num_replicas", "many", "--msg", "{{ ds }}"], "invalid int value: 'many'"),
        ("utils.sh", {"args": ["{{ ds }}"], "env": {"A": 1}}, "'env' must be dict[str, str]"),
        ("utils.echo", {"num_replicas": 0}, "num_replicas: must be at least 1"),
        ("utils.echo", "--msg x", "component_args must be a mapping"),
        ("utils.echo", 3, "component_args must be a mapping"),
        ("dist.ddp", {"script": "a.py", "j": "2x"}, "`-j 2x`"),
        ("dist.ddp", {"j": "2x1"}, "No main module or script specified"),
        ("utils.echo:x:y", None, "does not exist"),
        ("FILE:train", {"words": ["a"], "fail": True}, "cannot train so"),
        ("FILE:train", {}, "needs the argument 'words'"),
        ("FILE:other", {}, "must return an AppDef, not str"),
        ("FILE:many", {}, r"takes **kwargs"),
        ("FILE:none", {}, "has no function 'none'"),
        ("FILE:train", {"words": "{{ ds }}", "n": True}, "'n' must be int"),
    ],
)
def test_errors_are_reported_when_the_dag_is_parsed(component, arguments, text, file):
    with pytest.raises(InvalidAppError) as caught:
        task_of(component.replace("FILE", file), arguments)

    assert text in str(caught.value)


def test_a_file_with_a_syntax_error_is_reported_when_the_dag_is_parsed(tmp_path):
    (tmp_path / "bad.py").write_text("def train(:\n")

    with pytest.raises(InvalidAppError, match="invalid syntax"):
        task_of(f"{tmp_path}/bad.py:train")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "exactly one of `app` and `component`"),
        ({"app": AppDef("a", [Role("r", "", entrypoint="x")]), "component": "utils.echo"}, "exactly one"),
        ({"app": AppDef("a", [Role("r", "", entrypoint="x")]), "component_args": {}}, "needs a component"),
        ({"component": len}, "must be a name"),
    ],
)
def test_an_app_or_a_component_is_given(arguments, text):
    with pytest.raises(InvalidAppError, match=text), a_dag():
        LaunchAppOperator(task_id="t", **arguments)


def test_errors_of_rendered_arguments_end_the_task_without_retries():
    api = FakeExecutionApi(retries=3)

    ran = run_task(task_of("utils.echo", {"num_replicas": "{{ run_id }}"}), api)

    assert ran.state == "failed"
    assert "'num_replicas' must be int, but 'test_run' is not" in str(ran.error)


def test_the_dag_can_be_stored():
    with DAG("test_dag", schedule=None) as dag:
        LaunchAppOperator(task_id="t", component="utils.echo", component_args={"msg": "{{ ds }}"})

    stored = DagSerialization.to_dict(dag)

    assert "'msg': '{{ ds }}'" in str(stored)


def test_a_dry_run_shows_the_request(capsys):
    task_of("utils.echo", {"msg": "there"}).dry_run()

    assert "there" in capsys.readouterr().out


def test_a_deferred_task_calls_the_component_once(file):
    from airflow_provider_launch.specs.finder import get_component
    from tests.airflow.support import run_to_end

    calls = get_component(f"{file}:train").fn.__globals__["CALLS"]
    task = task_of(f"{file}:train", {"words": ["{{ run_id }}"]}, deferrable=True, defer_after_s=0)

    ran, _ = run_to_end(task, FakeExecutionApi())

    assert ran.error is None
    assert calls == [["test_run"]]


def test_a_component_runs_code_of_a_workspace(tmp_path):
    """With its default image on local processes: the script is that of the workspace, the Python that of Airflow."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "hello.py").write_text(
        "import sys, airflow_provider_launch; print('hello', sys.argv[1], sys.prefix)\n"
    )
    arguments = {"script": "hello.py", "args": ["{{ run_id }}"]}

    ran = run_task(task_of("utils.python", arguments, workspace=str(tmp_path / "code")), FakeExecutionApi())

    assert ran.error is None, ran.error
    assert lines_of(ran) == [f"hello test_run {sys.prefix}"]


@pytest.mark.parametrize(
    ("component", "arguments"),
    [
        ("dist.ddp", {"script": "train.py"}),
        ("dist.spmd", ["--h", "cpu.nano", "--script", "train.py"]),
        ("utils.python", {"script": "{{ 'train' }}.py"}),
    ],
    ids=["ddp", "spmd", "python"],
)
def test_a_script_that_is_not_there_is_refused_with_the_cure(component, arguments):
    """Local processes start in the directory of the worker, which only shows that the file cannot be opened."""
    ran = run_task(task_of(component, arguments), FakeExecutionApi())

    assert f"component {component!r}: there is no script 'train.py' in {Path.cwd()}" in str(ran.error)
    assert "workspace='.'" in str(ran.error)
    assert isinstance(ran.error, AirflowFailException)


@pytest.mark.parametrize("where", ["workspace", "image", "path", "directory"])
def test_a_script_is_found(where, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print('trained')")
    arguments = {"script": str(tmp_path / "train.py") if where == "path" else "train.py"}
    if where == "image":
        arguments["image"] = str(tmp_path)
    if where == "directory":
        monkeypatch.chdir(tmp_path)
    task = task_of("utils.python", arguments, **({"workspace": str(tmp_path)} if where == "workspace" else {}))
    ran = run_task(task, FakeExecutionApi())

    assert (ran.error, lines_of(ran)) == (None, ["trained"])


def with_default(x: str, db_password: str = "hush-default") -> AppDef:
    return AppDef("app", [Role("main", "", entrypoint="echo", args=[x, db_password])])


def test_the_default_of_an_argument_is_masked(no_masks) -> None:
    from airflow.sdk.log import redact

    with a_dag():
        made = LaunchAppOperator(
            task_id="t", component=f"{__name__}:with_default", component_args={"x": "{{ run_id }}"},
            launch_conn_id="launch_local_default",
        )  # fmt: skip
    found = run_task(made, FakeExecutionApi())

    assert found.error is None
    assert "hush-default" not in str(redact("\n".join(found.lines)))
