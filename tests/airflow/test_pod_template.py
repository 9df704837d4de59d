"""Pod templates that a task names by path: read next to the DAG file, rendered, and only if the DAG file names them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import BaseOperator, task, task_group

from airflow_provider_launch.operators import _request
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Role
from tests.airflow import support
from tests.airflow.support import FakeExecutionApi, a_dag, run_task

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "u", "user": {"token": "no-token"}}],
}
TEMPLATE = """
kind: Pod
spec:
  nodeSelector: {run: "{{ run_id }}", who: '{{ var.value.who }}'}
  containers: [{name: base, tty: true}]
"""


@pytest.fixture
def template(tmp_path, monkeypatch):
    """A template next to the DAG file, and a cluster that is not there: a request is built without it."""
    extra = {"kubeconfig_secret": json.dumps(KUBECONFIG), "namespace": "x"}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_kubernetes", "extra": extra}))
    monkeypatch.setenv("AIRFLOW_VAR_WHO", "me\n  hostNetwork: true")
    (tmp_path / "pod.yaml").write_text(TEMPLATE)
    return tmp_path / "pod.yaml"


def made(folder: Any, **cfg: Any) -> LaunchAppOperator:
    with a_dag() as dag:
        dag.fileloc = str(folder / "dag.py")
        return LaunchAppOperator(
            task_id="t",
            app=AppDef("app", [Role("main", "i", entrypoint="x")]),
            launch_conn_id="place",
            unavailable_for_s=0,
            cfg=cfg,
        )


def ran(folder: Any, **cfg: Any) -> support.Ran:
    return run_task(made(folder, **cfg), FakeExecutionApi())


@pytest.mark.parametrize("by_role", [False, True])
def test_a_template_is_read_next_to_the_dag_file_and_each_text_is_rendered(template, by_role: bool) -> None:
    """A value from outside is a text of the pod, and never more of the file."""
    given = {"pod_template": "pod.yaml"}
    found = ran(template.parent, **({"by_role": {"main": given}} if by_role else given))
    shown = "\n".join(found.lines)

    assert '"run": "' in shown
    assert "{{" not in shown
    assert '"who": "me\\n  hostNetwork: true"' in shown
    assert '"tty": true' in shown
    assert '"hostNetwork"' not in shown


def test_a_dry_run_reads_the_template_and_leaves_its_texts(template, capsys) -> None:
    made(template.parent, pod_template="pod.yaml").dry_run()

    assert '"run": "{{ run_id }}"' in capsys.readouterr().out


@pytest.mark.parametrize("by_role", [False, True])
def test_a_template_that_a_variable_names_is_not_opened(template, monkeypatch, by_role: bool) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_PLACE", str(template))
    given = {"pod_template": "{{ var.value.place }}"}
    found = ran(template.parent, **({"by_role": {"main": given}} if by_role else given))

    assert found.state == "failed"
    assert "is not written in the DAG file" in str(found.error)
    assert "hostNetwork" not in "\n".join(found.lines)


@pytest.mark.parametrize("where", ["connection", "role of the connection", "configuration"])
def test_a_template_of_the_administrator_is_opened(template, monkeypatch, where: str) -> None:
    """Also if the app has a template, so that its own files are checked."""
    (template.parent / "admin.yaml").write_text(
        "kind: Pod\nspec: {nodeSelector: {pool: ours}, containers: [{name: base}]}\n"
    )
    given: dict[str, Any] = {"pod_template": str(template.parent / "admin.yaml")}
    extra: dict[str, Any] = {"kubeconfig_secret": json.dumps(KUBECONFIG), "namespace": "x"}
    if where == "configuration":
        (template.parent / "launchconfig").write_text(f"[kubernetes]\npod_template = {given['pod_template']}\n")
        monkeypatch.setenv("AIRFLOW__LAUNCH__CONFIG_FILE", str(template.parent / "launchconfig"))
    else:
        extra |= given if where == "connection" else {"by_role": {"main": given}}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_kubernetes", "extra": extra}))
    with a_dag():
        app = AppDef("app", [Role("main", "i", entrypoint="x", args=["{{ run_id }}"])])
        task = LaunchAppOperator(task_id="t", app=app, launch_conn_id="place", unavailable_for_s=0)

    assert '"pool": "ours"' in "\n".join(run_task(task, FakeExecutionApi()).lines)


def comp(word: str = "") -> AppDef:
    return AppDef("app", [Role("sh", "i", entrypoint="x", args=[word])])


@pytest.mark.parametrize("how", ["xcom", "template", "mapping", "expand", "row", "builtin", "app", "launch", "python"])
@pytest.mark.parametrize("option", ["by_role", "byRole"])
def test_a_template_in_a_json_text_of_a_run_is_not_opened(template, monkeypatch, how: str, option: str) -> None:
    """Text is cast before locations are checked, also if the app may name any file."""
    given = {"sh": {"pod_template": str(template)}}
    monkeypatch.setitem(support.RUN, "conf", {"given": given})
    api = FakeExecutionApi()
    cfg: Any = {option: json.dumps(given)}
    api.xcoms["make", "return_value"] = [cfg] if how == "expand" else [{"cfg": cfg}] if how == "row" else cfg
    base: dict[str, Any] = {"task_id": "t", "launch_conn_id": "place", "unavailable_for_s": 0}
    written = {"component": f"{__name__}:comp", "component_args": {"word": "a"}}
    with a_dag() as dag:
        dag.fileloc = str(template.parent / "dag.py")
        cfg = BaseOperator(task_id="make").output
        if how == "template":
            cfg = {option: "{{ dag_run.conf['given'] | tojson }}"}
        elif how == "mapping":
            cfg = {option: {"sh": {"pod_template": "{{ dag_run.conf['given']['sh']['pod_template'] }}"}}}
        if how == "expand":
            made = LaunchAppOperator.partial(**base, **written).expand(cfg=cfg)
        elif how == "row":
            made = LaunchAppOperator.partial(**base, **written).expand_kwargs(cfg)
        elif how == "launch":
            made = task.launch(cfg=cfg, **base)(comp)().operator
        elif how == "python":
            made = task.launch_python(cfg=cfg, image="i", **base)(comp)().operator
        elif how == "app":
            made = LaunchAppOperator(app=comp(), cfg=cfg, **base)
        elif how == "builtin":
            made = LaunchAppOperator(component="utils.sh", component_args=["echo"], cfg=cfg, **base)
        else:
            made = LaunchAppOperator(cfg=cfg, **base, **written)
    found = run_task(made, api, map_index=0 if how in {"expand", "row"} else -1)

    assert found.state == "failed"
    assert f"option pod_template names {str(template)!r}, which is not written in the DAG file" in str(found.error)


@pytest.mark.parametrize("kind", ["by_role", "build_host"])
def test_an_option_that_a_check_does_not_know_opens_nothing_of_a_run(template, monkeypatch, kind: str) -> None:
    """Whatever the scheduler opens for an option is checked once more, without the freedom of the app."""
    if kind == "by_role":
        monkeypatch.setattr(_request, "with_pod_templates", lambda cfg, *_: cfg)
    api = FakeExecutionApi()
    own = {"pod_template": str(template)} if kind == "by_role" else {kind: "tcp://other.example:1"}
    api.xcoms["make", "return_value"] = {"by_role": json.dumps({"sh": own})}
    with a_dag():
        made = LaunchAppOperator(
            task_id="t",
            launch_conn_id="place",
            unavailable_for_s=0,
            component=f"{__name__}:comp",
            component_args={"word": "a"},
            cfg=BaseOperator(task_id="make").output,
        )
    found = run_task(made, api)

    assert found.state == "failed"
    assert "which is not written in the DAG file" in str(found.error)


@pytest.mark.parametrize("end", ["}}", ', "node_selector": {{ params }} } }'])
def test_a_template_in_a_json_text_of_the_dag_file_is_opened(template, end: str) -> None:
    found = ran(template.parent, by_role='{"main": {"pod_template": "pod.yaml"' + end)

    assert '"tty": true' in "\n".join(found.lines)


def test_a_template_in_a_json_text_of_a_mapped_group_is_opened(template) -> None:
    app = AppDef("app", [Role("main", "i", entrypoint="x")])
    with a_dag() as dag:
        dag.fileloc = str(template.parent / "dag.py")

        @task_group
        def each(options: Any) -> None:
            LaunchAppOperator(
                task_id="t", app=app, launch_conn_id="place", cfg={"by_role": options}, unavailable_for_s=0
            )

        each.expand(options=['{"main": {"pod_template": "pod.yaml"}}'])
    found = run_task(dag.task_dict["each.t"], FakeExecutionApi(), map_index=0)

    assert '"tty": true' in "\n".join(found.lines)


def test_a_missing_template_is_named(template) -> None:
    found = ran(template.parent, pod_template="other.yaml")

    assert found.state == "failed"
    assert "option pod_template: overlay file" in str(found.error)
    assert "other.yaml" in str(found.error)
