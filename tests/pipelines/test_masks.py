"""Secrets in the fields of steps, which Airflow stores and shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Param

from airflow_provider_launch._task.secrets import hidden_in_arguments
from airflow_provider_launch.pipelines import dag_from_file
from airflow_provider_launch.pipelines.plugin import BaseExecutor
from airflow_provider_launch.specs import AppDef, Role

SECRETS = {
    "by name": ({"DB_PASS": "hush-1"}, {"hush-1"}),
    "a word": ({"env": {"JWT": "hush-1", "LEVEL": "debugging"}}, {"hush-1"}),
    "an address": ({"DATABASE_URL": "postgres://me:hush-1@db/x"}, {"hush-1"}),
    "a flag": ("run --password hush-1 --level debugging", {"hush-1"}),
    "a quoted flag": ("run --token 'hush 1' && echo done", {"hush 1"}),
    "an open quote": ("echo it's; run --password hush-1", {"hush-1"}),
    "a header": ('curl -H "Authorization: Bearer hush-1" x', {"Bearer hush-1", "hush-1"}),
    "an export": ("export TOKEN=hush-1; run", {"hush-1"}),
    "a list": (["--password", "hush-1", "x"], {"hush-1"}),
    "nested": ({"overrides": [{"name": "x", "password": "hush-1"}]}, {"hush-1"}),
    "a variable of a pod": ({"sidecars": [{"env": [{"name": "DB_PASSWORD", "value": "hush-1"}]}]}, {"hush-1"}),
    "a folder": ("mkdir -p results", set()),
    "a reference": ("run --token $TOKEN_OF_MINE", set()),
    "a name like a parameter": ({"token": "$token_of_mine"}, {"$token_of_mine"}),
    "no text": ({"token": 5, "password": None}, set()),
    "words of a model": ({"parameters": {"tokenizer": "bert-base", "key": "dataset", "max_tokens": "512"}}, set()),
    "code": ("python -c \"print(sorted(x, key='name'), open(token_file='a/b'))\"", set()),
}


@pytest.mark.parametrize(("value", "expected"), SECRETS.values(), ids=SECRETS)
def test_what_is_hidden_in_a_field(value: Any, expected: set[str]) -> None:
    assert hidden_in_arguments(value).keys() == expected


def test_a_value_of_several_lines_is_hidden_line_by_line() -> None:
    assert {"first-line", "second-line"} <= hidden_in_arguments({"PRIVATE_KEY": "first-line\nsecond-line"}).keys()


MAPPED = """
    executor: local
    parameters: {hosts: [{host: a, password: hush-1, redis_auth: hush-3, db_pass_prod: hush-4, note: "LONG pwd=hush-2"}]}
    dag:
      start_at: m
      steps:
        m:
          type: map
          iterate_on: hosts
          iterate_as: one
          next: success
          branch:
            start_at: a
            steps: {a: {type: task, command_type: shell, command: "true", returns: [], next: success}}
    """


def test_the_label_of_an_element_shows_no_secret(write, test_dag) -> None:
    """Airflow stores it as it is. A part of a secret at its cut would match no mask."""
    ran = test_dag(dag_from_file(write(MAPPED.replace("LONG", "x" * 4)), "labels"))
    (label,) = [str(each.rendered_map_index) for each in ran.run.get_task_instances() if each.task_id == "m.each.a"]

    assert label.startswith('{"host": "a", "password": "***", "redis_auth": "***", "db_pass_prod": "***", "note": "xxx')
    assert "hush" not in label


FILE = """
    executor: {type: EXECUTOR, config: {env: {DB_PASS: hush-env, DATABASE_URL: "postgres://me:hush-url@db/x"}}}
    dag:
      start_at: one
      steps:
        one: {type: task, command_type: shell, command: "run --password {{ params.word }}", next: success}
    """


class Silent(BaseExecutor):
    class Config(BaseExecutor.Config):
        env: Any = None

    def trigger_job(self, node: Any, map_variable: Any = None, **_: Any) -> None:
        node.show("it is hush-env")


@pytest.fixture
def silent(tmp_path_factory, monkeypatch) -> None:
    site = tmp_path_factory.mktemp("site")
    info = site / "launch_silent-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: launch-silent\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[airflow_provider_launch.executors]\nsilent = {__name__}:Silent\n")
    monkeypatch.syspath_prepend(str(site))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("executor", ["local", "silent"])
def test_rendered_fields_of_a_step_show_no_secret(write, executor: str) -> None:
    from airflow.sdk.log import redact

    task = dag_from_file(write(FILE.replace("EXECUTOR", executor)), f"masks_{executor}").get_task("one")
    run = SimpleNamespace(conf={}, run_id="r")
    context: Any = {"params": {"word": f"hush-{executor}"}, "dag_run": run, "task": task, "dag": task.dag}

    task.render_template_fields(context)

    assert f"hush-{executor}" in task.command
    shown = str(redact({name: getattr(task, name, None) for name in task.template_fields}))
    assert "hush" not in shown
    assert "postgres://me:***@db/x" in shown


@pytest.mark.usefixtures("silent")
def test_a_line_of_a_plug_in_shows_no_rest_of_a_secret(write, capsys) -> None:
    """Airflow replaces the first mask that fits."""
    task = dag_from_file(write(FILE.replace("EXECUTOR", "silent")), "masks_rest").get_task("one")
    task.app = AppDef("a", [Role("r", "/", entrypoint="x", env={"DB_PASS": "hush-env", "OTHER_TOKEN": "is hush-e"})])

    task._launched({})

    assert "it *** " in capsys.readouterr().out


@pytest.mark.usefixtures("silent")
def test_lines_of_a_plug_in_show_no_secret(write) -> None:
    """The task writes the lines itself, so it must register the secrets of the app."""
    from airflow.sdk.log import redact

    task = dag_from_file(write(FILE.replace("EXECUTOR", "silent")), "masks_lines").get_task("one")
    task.app = AppDef("a", [Role("r", "/", entrypoint="x", env={"JWT": "of-this-line"}, args=["--token", "of-an-arg"])])

    task._launched({})

    assert redact("it is of-this-line and of-an-arg") == "it is *** and ***"


RECORDED = """
    executor: local
    parameters: {}
    dag:
      start_at: one
      steps:
        one: {type: task, command_type: shell, command: COMMAND, returns: NAMES, next: success}
    """


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("""'echo ''{"db_pass": {"prod": "hush-1"}}'' > $LAUNCH_RESULT_PATH'""", "[db_pass]"),
        ("'export A_TOKEN=hush-12345; echo connected with $A_TOKEN >&2; exit 3'", "[]"),
    ],
    ids=["nested value", "last lines"],
)
def test_the_record_of_an_attempt_shows_no_secret(write, test_dag, command: str, names: str) -> None:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    ran = test_dag(dag_from_file(write(RECORDED.replace("COMMAND", command).replace("NAMES", names)), "recorded"))
    with create_session() as session:
        found = session.query(XComModel).filter_by(key="attempt", run_id=ran.run.run_id, dag_id="recorded")
        records = [str(each.value) for each in found]

    assert records
    assert "***" in str(records)
    assert "hush" not in str(records)


@pytest.mark.parametrize("kind", ["argument", "value", "param"])
def test_a_run_does_not_push_out_the_secrets_of_the_file(write, kind: str) -> None:
    from airflow.sdk.log import redact

    secret = f"hush-of-{kind}"  # other tests mask the same ones
    argument = f"export DB_PASS={secret}; " if kind == "argument" else ""
    params = {"value": {"db_pass": secret}, "param": {"db_pass": Param(secret)}}.get(kind)
    app = f'{{name: a, roles: [{{name: r, image: "", entrypoint: x, args: ["{argument}{{{{ params.text }}}}"]}}]}}'
    step = f"{{type: task, command_type: app, app: {app}, next: success}}"
    text = f"executor: local\nparameters: {{text: x}}\ndag:\n  start_at: one\n  steps:\n    one: {step}\n"
    task = dag_from_file(write(text), "places", params=params).get_task("one")
    many = " ".join(f"pwd=a{number:03}x" for number in range(300))
    run = SimpleNamespace(conf={}, run_id="r")
    context: Any = {"params": {"text": many}, "dag_run": run, "task": task, "dag": task.dag}

    task.render_template_fields(context)

    assert redact(f"it is {secret}") == "it is ***"
