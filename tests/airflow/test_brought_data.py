"""Text from templates, XComs, connections and params reaches an app unchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, literal

from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Role, macros
from airflow_provider_launch.specs.app_dict import app_to_dict
from tests.airflow.support import FakeExecutionApi, a_dag, run_task

pytestmark = pytest.mark.engine("local")

DATA = "p$$w ${app_id} $HOME '${replica_id}'"
"""With all that macros and shells look for."""
TEXTS = ["3.10", "1234567e8", "1_000", "0x1F", "1,2", "'x'", "[1]", "None", "True", "", "$"]


def role(*args: Any, **env: Any) -> Role:
    return Role("w", "", entrypoint="python3", args=["-c", _PRINTS, *args], env=env)


_PRINTS = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('A')]))"


def printed(task: Any, api: FakeExecutionApi) -> Any:
    ran = run_task(task, api)
    (line,) = [line for line in ran.lines if line.startswith("[w/0] [")]
    return json.loads(line.removeprefix("[w/0] "))


@pytest.mark.parametrize("as_dict", [False, True])
def test_macros_are_not_applied_to_text_from_templates(as_dict: bool) -> None:
    args = ["{{ params.data }}", f"{macros.replica_id} {{{{ params.data }}}} $$ {{{{ [params.data] }}}}"]
    app = AppDef("app", [role(*args, A=f"{macros.replica_id} {{{{ params.data }}}}")])
    with DAG("test_dag", schedule=None, params={"data": DATA}):
        task = LaunchAppOperator(task_id="t", app=app_to_dict(app) if as_dict else app)

    assert printed(task, FakeExecutionApi()) == [[DATA, f"0 {DATA} $ {[DATA]}"], f"0 {DATA}"]


@pytest.mark.parametrize("as_dict", [False, True])
def test_the_output_of_a_task_may_stand_anywhere_in_an_app(as_dict: bool) -> None:
    api = FakeExecutionApi()
    api.xcoms["maker", "return_value"] = DATA
    with a_dag():
        maker = BaseOperator(task_id="maker")
        app: Any = AppDef("app", [role(maker.output, literal("{{ no }} $$"), A=maker.output)])
        if as_dict:
            app = {"name": "app", "roles": [dict(vars(app.roles[0]))]}
            app["roles"][0] = {key: app["roles"][0][key] for key in ("name", "image", "entrypoint", "args", "env")}
        task = LaunchAppOperator(task_id="t", app=app)

    assert task.upstream_task_ids == {"maker"}
    assert printed(task, api) == [[DATA, "{{ no }} $"], DATA]


def test_macros_count_in_a_whole_app_of_another_task() -> None:
    api = FakeExecutionApi()
    api.xcoms["maker", "return_value"] = app_to_dict(AppDef("app", [role(f"n{macros.replica_id} $$")]))
    with a_dag():
        task = LaunchAppOperator(task_id="t", app=BaseOperator(task_id="maker").output)

    assert printed(task, api) == [["n0 $"], None]


@pytest.mark.parametrize("native", [False, True])
def test_data_in_arguments_of_a_component_is_data(native: bool) -> None:
    api = FakeExecutionApi()
    api.xcoms["maker", "return_value"] = DATA
    with DAG("test_dag", schedule=None, params={"data": DATA}, render_template_as_native_obj=native):
        texts = ["{{ params.data }}", f"{macros.replica_id} $$", BaseOperator(task_id="maker").output]
        task = LaunchAppOperator(task_id="t", component="utils.sh", component_args=["printf", "%s|", *texts])

    assert run_task(task, api).logged(f"{DATA}|0 $|{DATA}|")
    assert api.rendered["component_args"] == ["printf", "%s|", DATA, "${replica_id} $$", DATA]


@pytest.mark.parametrize("as_dict", [False, True])
def test_text_of_an_app_stays_text_where_a_dag_renders_native_objects(as_dict: bool) -> None:
    templates = [f"{{{{ params.t{number} }}}}" for number in range(len(TEXTS))]
    app = AppDef("app", [role(*templates, A="{{ params.t0 }}")])
    params = {f"t{number}": text for number, text in enumerate(TEXTS)}
    with DAG("test_dag", schedule=None, params=params, render_template_as_native_obj=True):
        task = LaunchAppOperator(task_id="t", app=app_to_dict(app) if as_dict else app)

    assert printed(task, FakeExecutionApi()) == [TEXTS, TEXTS[0]]


def native(text: str | None, other: str, *words: str, env: dict[str, str], numbers: list[int], n: int) -> AppDef:
    """Return an app that prints its arguments."""
    return AppDef("app", [role(str(text), other, *words, str(numbers), str(n), A=env["A"])])


@pytest.mark.parametrize("text", TEXTS)
def test_text_in_arguments_of_a_component_stays_text_where_a_dag_renders_native_objects(text: str) -> None:
    args = {
        "text": "{{ params.none }}",
        "other": "{{ params.text }}",
        "words": ["{{ params.text }}", "{{ params.text }}.0"],
        "env": {"A": "{{ params.text }}"},
        "numbers": "{{ params.numbers }}",
        "n": "{{ params.n }}",
    }
    params = {"none": None, "text": text, "numbers": [1, 2], "n": 4}
    with DAG("test_dag", schedule=None, params=params, render_template_as_native_obj=True):
        task = LaunchAppOperator(task_id="t", component=f"{__file__}:native", component_args=args)

    assert printed(task, FakeExecutionApi()) == [["None", text, text, f"{text}.0", "[1, 2]", "4"], text]


@pytest.mark.parametrize("text", TEXTS)
def test_a_command_line_of_a_component_stays_text_where_a_dag_renders_native_objects(text: str) -> None:
    words = ["{{ params.text }}", "{{ params.n }}", "{{ params.numbers }}"]
    params = {"text": text, "numbers": [1, 2], "n": 4}
    with DAG("test_dag", schedule=None, params=params, render_template_as_native_obj=True):
        task = LaunchAppOperator(task_id="t", component="utils.sh", component_args=["printf", "%s|", *words])

    assert run_task(task, FakeExecutionApi()).logged(f"{text}|4|[1, 2]|")


def test_a_finalizer_of_the_dag_still_works() -> None:
    options = {"finalize": lambda value: f"<{value}>"}
    with DAG("test_dag", schedule=None, params={"data": "a$$b"}, jinja_environment_kwargs=options):
        task = LaunchAppOperator(task_id="t", app=AppDef("app", [role("{{ params.data }}")]))

    assert printed(task, FakeExecutionApi()) == [["<a$$b>"], None]


@pytest.mark.parametrize("text", TEXTS)
def test_text_in_options_stays_text_where_a_dag_renders_native_objects(text: str) -> None:
    cfg = {"comment": "{{ params.text }}", "more": "{{ params.text }}.0", "tags": "{{ params.numbers }}", "n": 3}
    params = {"text": text, "numbers": [1, 2]}
    with DAG("test_dag", schedule=None, params=params, render_template_as_native_obj=True):
        task = LaunchAppOperator(
            task_id="t",
            app=AppDef("app", [role()]),
            cfg=cfg,
            checkpoint_dir="/{{ params.text }}",
            workspace=cfg["more"],
        )
        whole = LaunchAppOperator(task_id="w", app=AppDef("app", [role()]), cfg="{{ params.all }}")
        conn = LaunchAppOperator(task_id="c", app=AppDef("app", [role()]), launch_conn_id="{{ params.text }}")
    context: Any = {"params": {**params, "all": "{'n': 1}"}}
    for each in (task, whole, conn):
        each.render_template_fields(context)

    assert task.cfg == {"comment": text, "more": f"{text}.0", "tags": [1, 2], "n": 3}
    assert (task.checkpoint_dir, task.workspace, conn.launch_conn_id) == (f"/{text}", f"{text}.0", text)
    assert whole.cfg == {"n": 1}
    assert cfg["comment"] == "{{ params.text }}"
