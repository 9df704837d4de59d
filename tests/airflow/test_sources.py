"""Files and addresses that an app names are opened by the worker: only those of the DAG file, or allowed ones."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import re
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator, TaskGroup, task, task_group

from airflow_provider_launch.operators._code import Code, is_joined
from airflow_provider_launch.operators._sources import Sources, strings_in
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.schedulers.environment import FIELD_PATH
from airflow_provider_launch.specs import AppDef, InvalidAppError, Role, Workspace
from airflow_provider_launch.specs.overlays import get_overlay, guarded
from tests.airflow import support
from tests.airflow.support import FakeExecutionApi, a_dag, run_task

pytestmark = pytest.mark.usefixtures("absent_engine")

REFUSED = "is not written in the DAG file"


def app_dict(overlay: Any) -> dict[str, Any]:
    return {
        "name": "app",
        "roles": [{"name": "main", "image": "i", "entrypoint": "x", "metadata": {"docker": overlay}}],
    }


def made_of(overlay: Any) -> AppDef:
    return AppDef("app", [Role("main", "i", entrypoint="x", metadata={"docker": overlay})])


def ran(api: FakeExecutionApi | None = None, **kwargs: Any) -> support.Ran:
    with a_dag():
        made = LaunchAppOperator(task_id="t", launch_conn_id="place", unavailable_for_s=0, **kwargs)
    return run_task(made, api or FakeExecutionApi())


@pytest.mark.parametrize("form", ["{path}", "file://{path}", "http://127.0.0.1:9/{path}", "/proc/self/environ"])
@pytest.mark.parametrize("kind", [None, "Container"])
@pytest.mark.parametrize("as_dict", [False, True])
def test_an_overlay_that_a_template_names_is_not_opened(
    secret, monkeypatch, form: str, kind: str | None, as_dict
) -> None:
    location = form.format(path=secret)
    monkeypatch.setenv("AIRFLOW_VAR_PLACE", location)
    template = "{{ var.value.place }}"
    overlay = template if kind is None else {kind: template}
    found = ran(app=app_dict(overlay) if as_dict else made_of(overlay))

    assert found.state == "failed"
    assert REFUSED in str(found.error)
    assert repr(location) in str(found.error)
    assert "allowed_app_sources" in str(found.error)
    assert "hush" not in "\n".join(found.lines)


@pytest.mark.parametrize("how", ["callable", "xcom"])
def test_an_app_of_a_run_opens_nothing(secret, monkeypatch, how: str) -> None:
    api = FakeExecutionApi()
    given = app_dict(str(secret))
    monkeypatch.setitem(support.RUN, "conf", {"app": given})
    api.xcoms["make", "return_value"] = given
    with a_dag():
        app = BaseOperator(task_id="make").output if how == "xcom" else app_of_run
        made = LaunchAppOperator(task_id="t", launch_conn_id="place", app=app, unavailable_for_s=0)
    found = run_task(made, api)

    assert found.state == "failed"
    assert REFUSED in str(found.error)


def app_of_run(context: Any, jinja_env: Any) -> Any:
    return context["dag_run"].conf["app"]


@pytest.mark.parametrize("how", ["function", "component"])
def test_a_function_that_hands_on_a_text_of_a_run_opens_nothing(secret, monkeypatch, how: str) -> None:
    monkeypatch.setitem(support.RUN, "conf", {"file": str(secret)})
    if how == "component":
        found = ran(component=f"{__name__}:made_of", component_args={"overlay": "{{ dag_run.conf['file'] }}"})
    else:
        with a_dag():

            @task.launch(launch_conn_id="place", unavailable_for_s=0)
            def train(dag_run: Any = None) -> AppDef:
                return made_of(dag_run.conf["file"])

            made = train().operator
        found = run_task(made, FakeExecutionApi())

    assert found.state == "failed"
    assert REFUSED in str(found.error)


@pytest.mark.parametrize("how", ["override", "quoted", "key", "argument", "dollar", "part", "quoted part"])
def test_a_component_that_reads_a_path_in_a_text_of_a_run_opens_nothing(secret, tmp_path, monkeypatch, how) -> None:
    (tmp_path / "sites").mkdir()
    (tmp_path / "one.yaml").write_text(CONFIG_OF_HYDRA)
    path = tmp_path / "sites" / "${site.name}"
    (tmp_path / "sites.yaml").write_text(
        f"site: null\n{CONFIG_OF_HYDRA.strip()[:-2]}, metadata: {{docker: '{path}'}}}}]\n"
    )
    (tmp_path / "a b").symlink_to(secret)
    text = {
        "override": f"+app.roles.0.metadata.docker={secret}",
        "quoted": f"+app.roles.0.metadata.docker={tmp_path}/a\\ b",
        "key": f"+app.roles.0.metadata={{docker: {secret}}}",
        "argument": str(secret),
        "dollar": "+app.roles.0.metadata.docker='http://127.0.0.1:9/$x'",
        "part": "site={name: ../kubeconfig}",
        "quoted part": "+site.name='../kubeconfig'",
    }[how]
    monkeypatch.setenv("AIRFLOW_VAR_PLACE", text)
    given = "{{ var.value.place }}"
    name = "sites" if "part" in how else "one"
    args = [f"--overlay={given}"] if how == "argument" else ["-cd", str(tmp_path), "-cn", name, given]

    found = ran(component=f"{__name__}:made_of" if how == "argument" else "utils.hydra", component_args=args)

    assert found.state == "failed"
    assert REFUSED in str(found.error)


CONFIG_OF_HYDRA = """
app:
  _target_: airflow_provider_launch.specs.AppDef
  name: app
  roles: [{_target_: airflow_provider_launch.specs.Role, name: main, image: i, entrypoint: x}]
"""


@pytest.mark.parametrize("how", ["app", "dict", "function", "component"])
def test_files_that_the_dag_file_names_are_opened(secret, how: str) -> None:
    """The launch continues to the engine, which does not exist."""
    location = str(secret)
    if how == "component":
        found = ran(component=f"{__name__}:made_of", component_args={"overlay": location})
    elif how == "function":
        with a_dag():

            @task.launch(launch_conn_id="place", unavailable_for_s=0)
            def train() -> AppDef:
                return made_of(location)

            made = train().operator
        found = run_task(made, FakeExecutionApi())
    else:
        found = ran(app=made_of(location) if how == "app" else app_dict(location))

    assert REFUSED not in str(found.error)
    assert found.logged("hush-token")


HERE = Path(__file__).parent
FROM_OUTSIDE, CHANGED, KEPT = Path(), Path(), {"place": ""}


def in_closure(place: str) -> Any:
    return lambda context, jinja_env: made_of(place)


def in_defaults(place: str) -> Any:
    def build(context: Any, jinja_env: Any, path: str = place) -> AppDef:
        return made_of(path)

    return build


def in_keyword_defaults(place: str) -> Any:
    def build(context: Any, jinja_env: Any, *, path: Path = Path(place)) -> AppDef:
        return made_of(str(path))

    return build


def in_a_wrapped_function(place: str) -> Any:
    build = in_defaults(place)
    return functools.wraps(build)(lambda context, jinja_env: dataclasses.replace(build(context, jinja_env)))


def in_a_variable(place: str) -> Any:
    sys.modules[__name__].FROM_OUTSIDE = (Path(place),)  # type: ignore[attr-defined]
    return lambda context, jinja_env: made_of(str(FROM_OUTSIDE[0]))  # type: ignore[index]


def in_arguments(place: str) -> Any:
    return functools.partial(lambda path, context, jinja_env: made_of(path), place)


def next_to_the_code(place: str) -> Any:
    return lambda context, jinja_env: made_of(f"{Path(__file__).parent / 'nowhere'}/a.yaml")


@pytest.mark.parametrize(
    "how",
    [
        in_closure,
        in_defaults,
        in_keyword_defaults,
        in_a_wrapped_function,
        in_a_variable,
        in_arguments,
        next_to_the_code,
    ],
)
def test_a_function_that_got_a_text_of_a_run_opens_files_of_its_author(secret, monkeypatch, how: Any) -> None:
    monkeypatch.setitem(support.RUN, "conf", {"rate": "0.1"})
    monkeypatch.setattr(sys.modules[__name__], "FROM_OUTSIDE", ())

    found = ran(app=how(str(secret)))

    assert REFUSED not in str(found.error)
    if how is next_to_the_code:
        assert f"'{HERE}/nowhere/a.yaml' cannot be read" in str(found.error)
    else:
        assert found.logged("hush-token")


def into_a_variable(context: Any, jinja_env: Any) -> AppDef:
    global CHANGED  # noqa: PLW0603 - what is refused
    CHANGED = Path(context["dag_run"].conf["file"])
    return made_of(str(CHANGED))


def into_a_closure() -> Any:
    text = ""

    def build(context: Any, jinja_env: Any) -> AppDef:
        nonlocal text
        text = context["dag_run"].conf["file"]
        return made_of(text)

    return build


def into_a_mapping(context: Any, jinja_env: Any) -> AppDef:
    KEPT["place"] = context["dag_run"].conf["file"]
    return made_of(KEPT["place"])


class IntoItself:
    def __init__(self) -> None:
        self.place = ""

    def __call__(self, context: Any, jinja_env: Any) -> AppDef:
        self.place = context["dag_run"].conf["file"]
        return made_of(self.place)


@pytest.mark.parametrize("how", [into_a_variable, into_a_closure(), into_a_mapping, IntoItself()])
def test_a_function_that_keeps_a_text_of_a_run_opens_nothing(secret, monkeypatch, how: Any) -> None:
    monkeypatch.setitem(support.RUN, "conf", {"file": str(secret)})

    assert REFUSED in str(ran(app=how).error)


def test_a_component_that_got_a_text_of_a_run_opens_files_of_the_dag_file(secret, monkeypatch) -> None:
    monkeypatch.setenv("PLACE", str(secret))
    monkeypatch.setitem(support.RUN, "conf", {"rate": "0.1"})
    dag_file = secret.parent / "dag.py"
    dag_file.write_text(f"OVERLAY = {str(secret)!r}\n")
    with a_dag() as dag:
        made = LaunchAppOperator(
            task_id="t", launch_conn_id="place", unavailable_for_s=0,
            component=f"{__name__}:made_in", component_args={"folder": "{{ dag_run.conf['rate'] }}"},
        )  # fmt: skip
    dag.fileloc = str(dag_file)
    found = run_task(made, FakeExecutionApi())

    assert REFUSED not in str(found.error)
    assert found.logged("hush-token")


def made_in(folder: str) -> AppDef:
    """The text is not used; the place is that of another source."""
    return made_of(os.environ["PLACE"])


def test_a_component_that_got_a_text_of_a_run_opens_nothing_of_other_sources(secret, monkeypatch) -> None:
    """Its author cannot be told from the run: the text may have become the path in any way."""
    monkeypatch.setenv("PLACE", str(secret))
    monkeypatch.setitem(support.RUN, "conf", {"rate": "0.1"})
    component = {"component": f"{__name__}:made_in"}

    refused = ran(**component, component_args={"folder": "{{ dag_run.conf['rate'] }}"})
    opened = ran(**component, component_args={"folder": "0.1"})

    assert f"{str(secret)!r}, which is not written in the DAG file or in the module of the function" in str(
        refused.error
    )
    assert "the function may have it from a run" in str(refused.error)
    assert opened.logged("hush-token")


def test_code_in_an_archive_is_searched(tmp_path, monkeypatch) -> None:
    with zipfile.ZipFile(tmp_path / "dags.zip", "w") as archive:
        archive.writestr("zipped_builder.py", "PLACE = 5\n\ndef build():\n    return '/opt/in/archive'\n")
    monkeypatch.syspath_prepend(str(tmp_path / "dags.zip"))
    build = importlib.import_module("zipped_builder").build

    assert {"/opt/in/archive", str(tmp_path / "dags.zip")} <= Code([build]).texts | Code([build])._starts


@pytest.mark.parametrize("function", [len, dict, functools.partial(print)])
def test_functions_without_a_source_have_no_texts(function: Any) -> None:
    assert not Code([function]).texts


def test_a_variable_that_has_no_value_yet_is_no_text_of_a_function() -> None:
    """A function that is defined before a variable of its scope gets the value when it is called."""

    def build() -> str:
        return later

    code = Code([build])
    later = "/opt/assigned/later"

    assert build() in code.texts


def test_the_environment_is_not_the_code_of_a_function(monkeypatch) -> None:
    """Airflow names the run there, and the user who triggers a run chooses its id."""
    chosen = "/chosen/by/A/RUN".lower()
    monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", chosen)
    environ = os.environ

    assert chosen not in Code([lambda: environ]).texts


@pytest.mark.parametrize(
    ("overrides", "is_allowed"),
    [
        (["n={{ var.value.n }}"], True),
        (["folder=FOLDER", "n={{ var.value.n }}"], True),
        (["site=own", "n={{ var.value.n }}"], True),
        (["site={{ var.value.site }}"], True),
        (["missing={{ var.value.n }}"], True),
        (["folder={{ var.value.folder }}"], False),
        (["folder=FOLDER", "n={{ var.value.folder }}", "part={{ var.value.part }}"], False),
        (["+app.roles.0.metadata.docker={{ var.value.folder }}/kubeconfig"], False),
    ],
)
def test_a_config_of_hydra_opens_files_of_its_author(secret, tmp_path, monkeypatch, overrides, is_allowed) -> None:
    missing = "'???'" if "missing" in str(overrides) else "'one'"
    config = f"defaults: [_self_, {{site: other}}]\nn: 0\nmissing: {missing}\nfolder: OWN\npart: kubeconfig\n"
    config += CONFIG_OF_HYDRA.strip()[:-2]
    config = f"{config}, metadata: {{docker: '${{folder}}/${{part}}'}}, args: ['n=${{n}}', 'x${{missing}}']}}]\n"
    (tmp_path / "one.yaml").write_text(config.replace("OWN", str(tmp_path)))
    (tmp_path / "site").mkdir()
    for name in ("own", "other"):
        (tmp_path / "site" / f"{name}.yaml").write_text("city: x\n")
    for name, value in {"n": "5", "site": "own", "folder": str(tmp_path), "part": "kubeconfig"}.items():
        monkeypatch.setenv(f"AIRFLOW_VAR_{name.upper()}", value)
    given = [each.replace("FOLDER", str(tmp_path)) for each in overrides]

    found = ran(component="utils.hydra", component_args=["-cd", str(tmp_path), "-cn", "one", *given])

    assert (REFUSED in str(found.error)) is not is_allowed, found.error
    assert found.logged("hush-token") is is_allowed


def test_files_that_the_configuration_allows_are_opened(secret, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_PLACE", str(secret))
    monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOWED_APP_SOURCES", f"s3://x, {secret.parent}")

    found = ran(app=made_of("{{ var.value.place }}"))

    assert REFUSED not in str(found.error)
    assert found.logged("hush-token")


@pytest.mark.engine("local")
@pytest.mark.parametrize("field", ["workspace", "app"])
def test_a_workspace_of_a_run_is_not_mirrored(tmp_path, monkeypatch, field: str) -> None:
    (tmp_path / "hush.txt").write_text("")
    monkeypatch.setenv("AIRFLOW_VAR_PLACE", str(tmp_path))
    role = {"name": "main", "image": "", "entrypoint": "sh", "args": ["-c", "ls"]}
    given = {"name": "app", "roles": [role]}
    kwargs: dict[str, Any] = {"app": given, "workspace": "{{ var.value.place }}"}
    if field == "app":
        role["workspace"] = {"projects": {str(tmp_path): ""}}
        monkeypatch.setitem(support.RUN, "conf", {"app": given})
        kwargs = {"app": app_of_run}
    with a_dag():
        made = LaunchAppOperator(task_id="t", **kwargs)
    found = run_task(made, FakeExecutionApi())

    assert found.state == "failed"
    assert f"the workspace of role 'main' names {str(tmp_path)!r}, which {REFUSED}" in str(found.error)
    assert not found.logged("hush.txt")


def mirrored(workspace: str) -> AppDef:
    return AppDef("app", [Role("main", "", entrypoint="ls", workspace=Workspace.from_str(workspace))])


@pytest.mark.engine("local")
@pytest.mark.parametrize("field", ["workspace", "argument", "part of an argument"])
@pytest.mark.parametrize("form", ["{path}", '"{path}"', "'{path}': a", '"{escaped}"', '{{"{escaped}": ""}}'])
def test_no_notation_of_a_run_names_a_workspace(tmp_path, monkeypatch, field: str, form: str) -> None:
    (tmp_path / "hush.txt").write_text("")
    escaped = "".join(f"\\x{ord(sign):02x}" for sign in str(tmp_path))
    monkeypatch.setitem(support.RUN, "conf", {"place": form.format(path=tmp_path, escaped=escaped)})
    given = "{{ dag_run.conf['place'] }}"
    kwargs: dict[str, Any] = {"component": f"{__name__}:mirrored", "component_args": {"workspace": given}}
    if field == "workspace":
        kwargs = {"component": "utils.sh", "component_args": ["ls"], "workspace": given}
    elif field == "part of an argument":
        kwargs["component_args"] = [f"--workspace={given}"]
    with a_dag():
        made = LaunchAppOperator(task_id="t", **kwargs)
    found = run_task(made, FakeExecutionApi())

    assert found.state == "failed"
    assert ("has an escape" if "escaped" in form else REFUSED) in str(found.error)
    assert not found.logged("hush.txt")


OPTIONS = {
    "launch_docker": {"host": "tcp://127.0.0.1:9"},
    "launch_kubernetes": {"kubeconfig_path": "/nowhere", "namespace": "x"},
    "launch_aws_batch": {"region_name": "eu-west-1"},
}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("how", ["template", "whole", "xcom"])
def test_an_engine_that_a_run_names_does_not_build(monkeypatch, tmp_path, kind: str, how: str) -> None:
    """It would get the files of the workspace, and the logins of the worker for its registries."""
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": kind, "extra": OPTIONS[kind]}))
    given = {"build_host": "https://other.example:443", "image_repo": "registry.example/x"}
    api = FakeExecutionApi()
    monkeypatch.setitem(support.RUN, "conf", {"cfg": given})
    api.xcoms["make", "return_value"] = given
    with a_dag() as dag:
        dag.render_template_as_native_obj = how == "whole"
        cfg: Any = {**given, "build_host": "{{ dag_run.conf['cfg']['build_host'] }}"}
        if how != "template":
            cfg = "{{ dag_run.conf['cfg'] }}" if how == "whole" else BaseOperator(task_id="make").output
        role = Role("main", "i", entrypoint="x")
        made = LaunchAppOperator(
            task_id="t", launch_conn_id="place", app=AppDef("app", [role]), workspace=str(tmp_path), cfg=cfg
        )
    found = run_task(made, api)

    assert found.state == "failed"
    assert f"option build_host names 'https://other.example:443', which {REFUSED}" in str(found.error)


@pytest.mark.parametrize("option", ["build_host", "pod_template"])
@pytest.mark.parametrize("how", ["launch", "launch_python"])
@pytest.mark.parametrize("source", ["variable", "xcom"])
def test_an_option_of_a_task_with_a_function_is_not_taken_from_a_run(
    monkeypatch, secret, option: str, how: str, source: str
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_kubernetes", "extra": OPTIONS["launch_kubernetes"]})
    )
    monkeypatch.setenv("AIRFLOW_VAR_PLACE", str(secret))
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = {option: str(secret)}
    with a_dag():
        cfg: Any = {option: "{{ var.value.place }}"} if source == "variable" else BaseOperator(task_id="make").output
        given: dict[str, Any] = {"launch_conn_id": "place", "unavailable_for_s": 0, "cfg": cfg}
        if how == "launch":

            @task.launch(**given)
            def train() -> AppDef:
                return AppDef("app", [Role("main", "i", entrypoint="x")])

        else:

            @task.launch_python(image="i", **given)
            def train() -> None: ...

        made = train().operator
    found = run_task(made, api)

    assert found.state == "failed"
    assert f"option {option} names {str(secret)!r}, which {REFUSED}" in str(found.error)


@pytest.mark.parametrize("where", ["DAG file", "DAG file with a function", "configuration", "connection"])
def test_an_engine_that_no_run_names_builds(monkeypatch, tmp_path, where: str) -> None:
    """The launch continues to the engine, which does not exist."""
    host = f"unix://{tmp_path}/no.sock"
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "file").write_text("")
    monkeypatch.setitem(support.RUN, "conf", {"host": host})
    options: dict[str, Any] = {"image_repo": "registry.example/x", "build_host": host}
    if where == "configuration":
        monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOWED_APP_SOURCES", f"unix://{tmp_path}")
        options["build_host"] = "{{ dag_run.conf['host'] }}"
    elif where == "connection":
        extra = {"host": "tcp://127.0.0.1:9", "build_host": options.pop("build_host")}
        monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_docker", "extra": extra}))
    given = {"workspace": str(tmp_path / "project"), "cfg": options}
    if where == "DAG file with a function":
        with a_dag():

            @task.launch_python(image="i", launch_conn_id="place", unavailable_for_s=0, **given)
            def train() -> None: ...

            made = train().operator
        found = run_task(made, FakeExecutionApi())
    else:
        found = ran(app=AppDef("app", [Role("main", "i", entrypoint="x")]), **given)

    assert REFUSED not in str(found.error)
    assert "no.sock" in str(found.error)


@pytest.mark.parametrize("option", ["build_host", "image_repo"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_run_does_not_remove_an_option_of_the_connection(monkeypatch, tmp_path, option: str, value: object) -> None:
    """Otherwise the worker would build on its own engine."""
    ours = {"image_repo": "registry.example/x", "build_host": f"unix://{tmp_path}/no.sock"}
    extra = {"host": "tcp://127.0.0.1:9", **ours}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_docker", "extra": extra}))
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = {option: value}
    with a_dag():
        app = AppDef("app", [Role("main", "i", entrypoint="x")])
        made = LaunchAppOperator(
            task_id="t", app=app, workspace=str(tmp_path), cfg=BaseOperator(task_id="make").output,
            launch_conn_id="place", unavailable_for_s=0,
        )  # fmt: skip
    found = run_task(made, api)

    assert f"option {option} is empty, which would remove the one of the connection" in str(found.error)


@pytest.mark.parametrize("cfg", [{"image_repo": None}, {"image_repo": ""}, {"build_host": None}])
def test_the_dag_file_may_remove_an_option_of_the_connection(monkeypatch, tmp_path, cfg: dict[str, Any]) -> None:
    ours = {"image_repo": "registry.example/x", "build_host": f"unix://{tmp_path}/no.sock"}
    extra = {"host": "tcp://127.0.0.1:9", **ours}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_docker", "extra": extra}))

    found = ran(app=AppDef("app", [Role("main", "i", entrypoint="x", args=["{{ run_id }}"])]), cfg=cfg)

    # It was not refused, and got as far as the engine.
    assert "the Docker engine at tcp://127.0.0.1:9 does not answer" in str(found.error)


@pytest.mark.parametrize("host", ["10.255.255.1:2375", "127.0.0.1:9", "localhost:9"])
def test_an_address_without_a_scheme_is_not_a_path(monkeypatch, tmp_path, host: str) -> None:
    """Docker takes it for one of TCP, also if the directory of the worker is allowed."""
    monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOWED_APP_SOURCES", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(support.RUN, "conf", {"host": host})
    cfg = {"image_repo": "registry.example/x", "build_host": "{{ dag_run.conf['host'] }}"}

    found = ran(app=AppDef("app", [Role("main", "i", entrypoint="x")]), workspace=str(tmp_path), cfg=cfg)

    assert f"option build_host names {host!r}, which {REFUSED}" in str(found.error)
    monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOWED_APP_SOURCES", f"tcp://{host}")
    found = ran(app=AppDef("app", [Role("main", "i", entrypoint="x")]), workspace=str(tmp_path), cfg=cfg)

    assert REFUSED not in str(found.error)


@pytest.mark.parametrize(
    ("repository", "allowed", "of_connection", "is_allowed"),
    [
        ("registry.example/team/a", "", None, False),
        ("registry.example/team/a", "CWD", None, False),
        ("registry.example/team/../a", "docker://registry.example/team", None, False),
        ("registry.example/team/a", "docker://registry.example/team", None, True),
        ("registry.example/team/a", "", "registry.example/team", False),
        ("registry.example/team/a", "", "registry.example/team/a", True),
    ],
    ids=["unknown", "directory", "above", "allowed", "other", "connection"],
)
def test_a_run_does_not_choose_to_whom_an_image_is_pushed(
    monkeypatch, tmp_path, repository: str, allowed: str, of_connection: str | None, is_allowed: bool
) -> None:
    """The image has the files of the workspace, and the push needs a login of the worker."""
    extra = {"host": "tcp://127.0.0.1:9", **({"image_repo": of_connection} if of_connection else {})}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_docker", "extra": extra}))
    monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOWED_APP_SOURCES", allowed.replace("CWD", str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(support.RUN, "conf", {"repository": repository})
    cfg = {"image_repo": "{{ dag_run.conf['repository'] }}"}

    found = ran(app=AppDef("app", [Role("main", "i", entrypoint="x")]), workspace=str(tmp_path), cfg=cfg)

    if is_allowed:
        assert "tcp://127.0.0.1:9" in str(found.error)
    else:
        assert f"option image_repo names {repository!r}, which {REFUSED}" in str(found.error)


FIELD = "[FIELD_PATH]spec.nodeName"
NOT_A_FIELD = "variable NODE begins with [FIELD_PATH], which stands for a field of the pod, and came from a template"


def node_app(node: str) -> AppDef:
    return AppDef("app", [Role("main", "i", entrypoint="x", env={"NODE": node, "OWN": "[FIELD_PATH]metadata.name"})])


def node_dict(node: str) -> dict[str, Any]:
    return {"name": "app", "roles": [{"name": "main", "image": "i", "entrypoint": "x", "env": {"NODE": node}}]}


@pytest.mark.parametrize("how", ["app", "dict", "xcom", "function", "component"])
def test_a_text_of_a_run_is_no_field_of_a_pod(monkeypatch, how: str) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_kubernetes", "extra": OPTIONS["launch_kubernetes"]})
    )
    # This module does not contain it as a whole.
    field = f"{FIELD_PATH}STATUS.hostIP".replace("STATUS", "status")
    monkeypatch.setitem(support.RUN, "conf", {"node": field})
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = node_dict(field)
    template = "{{ dag_run.conf['node'] }}"
    with a_dag():
        given: dict[str, Any] = {"task_id": "t", "launch_conn_id": "place", "unavailable_for_s": 0}
        if how == "function":

            @task.launch(launch_conn_id="place", unavailable_for_s=0)
            def train(dag_run: Any = None) -> AppDef:
                return node_app(dag_run.conf["node"])

            made = train().operator
        elif how == "component":
            made = LaunchAppOperator(component=f"{__name__}:node_app", component_args={"node": template}, **given)
        else:
            app = {"app": node_app(template), "dict": node_dict(template)}.get(how)
            made = LaunchAppOperator(app=app or BaseOperator(task_id="make").output, **given)
    found = run_task(made, api)

    assert found.state == "failed"
    assert NOT_A_FIELD in str(found.error)


@pytest.mark.parametrize(
    ("texts", "is_allowed"),
    [
        ((FIELD,), True),
        (("[FIELD_PATH]spec.node",), True),
        (("[FIELD_PATH]", "spec.nodeName"), True),
        (("[FIELD_PATH]",), False),
        (("[FIELD_PATH]metadata.name", "metadata.name"), False),
    ],
)
def test_a_field_of_a_pod_is_written_in_the_code(texts, is_allowed: bool) -> None:
    app = AppDef("app", [Role("main", "i", entrypoint="x", env={"NODE": FIELD})])
    if is_allowed:
        Sources(set(), Code(texts=texts)).check_variables(app)
    else:
        with pytest.raises(InvalidAppError, match=re.escape(NOT_A_FIELD)):
            Sources(set(), Code(texts=texts)).check_variables(app)


@pytest.mark.parametrize("how", ["app", "dict", "function"])
def test_a_field_in_the_dag_file_may_contain_a_template(monkeypatch, how: str) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_kubernetes", "extra": {"namespace": "x"}})
    )
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.setitem(support.RUN, "conf", {"label": "team", "other": "spec.nodeName"})
    template = "[FIELD_PATH]metadata.labels['{{ dag_run.conf['label'] }}']"
    if how == "function":
        with a_dag():

            @task.launch(launch_conn_id="place", unavailable_for_s=0)
            def train(dag_run: Any = None) -> AppDef:
                return node_app(f"[FIELD_PATH]metadata.labels['{dag_run.conf['label']}']")

            made = train().operator
        found = run_task(made, FakeExecutionApi())
    else:
        found = ran(app=(node_app if how == "app" else node_dict)(template))

    assert "kubeconfig" in str(found.error).lower(), found.error


@pytest.mark.parametrize(
    ("location", "allowed", "is_allowed"),
    [
        ("/opt/overlays/a.yaml", "/opt/overlays", True),
        ("file:///opt/overlays/a.yaml", "/opt/overlays/", True),
        ("/opt/overlays/../secret", "/opt/overlays", False),
        ("file:///opt/overlays/%2e%2e/secret", "/opt/overlays", False),
        ("/opt/overlays-2/a", "/opt/overlays", False),
        ("file://host/opt/overlays/a", "/opt/overlays", False),
        ("s3://bucket/overlays/a", "s3://bucket/overlays", True),
        ("s3://bucket/overlays/../a", "s3://bucket/overlays", False),
        ("s3://bucket/overlays-2", "s3://bucket/overlays", False),
        ("s3://other/overlays/a", "s3://bucket/overlays", False),
        ("https://host@evil/overlays", "https://host", False),
        ("https://host/x::file:///etc/passwd", "https://host", False),
        ("simplecache::https://host/x", "https://host", False),
        ("https://host/x", "", False),
        ("/etc/passwd", "https://host", False),
    ],
)
def test_locations_below_an_allowed_one(monkeypatch, location: str, allowed: str, is_allowed: bool) -> None:
    monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOWED_APP_SOURCES", allowed)
    if is_allowed:
        Sources([]).check(location, location, "x")
    else:
        with pytest.raises(InvalidAppError, match=REFUSED):
            Sources([]).check(location, location, "x")


def test_an_option_of_a_task_that_was_not_rendered_is_of_the_dag_file() -> None:
    """Such as an operator that a function calls."""
    Sources(None, Code()).check_option("/in/the/file", "/in/the/file", "x")
    with pytest.raises(InvalidAppError, match=REFUSED):
        Sources(set(), Code()).check_option("/in/the/file", "/in/the/file", "x")


def test_a_link_in_an_allowed_folder_leads_out_of_it(tmp_path, secret, monkeypatch) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(secret)
    monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOWED_APP_SOURCES", str(tmp_path / "allowed"))

    with pytest.raises(InvalidAppError, match=REFUSED):
        Sources([]).check("x", str(tmp_path / "allowed" / "link"), "x")


@pytest.mark.parametrize(
    ("location", "texts", "is_allowed"),
    [
        ("/data/a", ["/data/a"], True),
        ("/data/a", ["/data", "a"], True),
        ("/data/a/b.yaml", ["/data/", "/a/", "b.yaml"], True),
        ("/data/a/b.yaml", ["/data/a", "./b.yaml/"], True),
        ("/data//./a/", ["/data/a"], True),
        ("./a", ["a"], True),
        ("a/b", ["a", "b"], True),
        ("s3://bucket/a/b", ["s3://bucket", "a", "/b"], True),
        ("/data/../a", ["/data", "..", "a"], True),
        ("/data/gpu.yaml", ["/data", "gpu", ".yaml"], True),
        (".", ["."], False),
        ("..", [".."], False),
        ("~", ["~"], False),
        ("/", ["/"], False),
        ("/data/..", ["/data", ".."], False),
        ("../a", ["..", "a"], False),
        ("/data/gpu.yaml", ["/data", "gpu", "yaml"], False),
        ("/data/a", ["data", "a"], False),
        ("/data/a", ["/data"], False),
        ("/data/a", ["/data/abc", "/data/a/b"], False),
        ("/data/ab", ["/data", "a", "b"], False),
        ("/data/../a", ["/data", "a"], False),
        ("/data/a/a/a", ["/data", "a"], True),
        ("/data/a", ["/", "data", "a"], False),
        ("/", ["a", ""], False),
        ("", ["a"], False),
        ("s3://bucket/a", ["bucket/a", "s3:", "s3://"], False),
        ("https://host/x::file:///data/a", ["https://host", "/data/a"], False),
        ("a/" * 80 + "a", ["a"], False),
        ("/a" + "/a" * 50 + "/b", ["/a", "a", "a/a"], False),
    ],
)
def test_a_path_of_a_function_is_written_in_its_code(location: str, texts: list[str], is_allowed: bool) -> None:
    assert is_joined(location, texts) is is_allowed


def test_a_long_text_of_a_run_costs_little() -> None:
    began = time.process_time()
    for location in ("/" * 300_000 + "a", "a" * 300_000, "a/" * 150_000, "/." * 150_000):
        with pytest.raises(InvalidAppError):
            Sources(set(), Code(texts=["a", "/", "a/a"])).check(location, location, "x")

    assert time.process_time() - began < 5


def test_text_of_an_xcom_is_not_text_of_the_dag_file() -> None:
    given = {"a": ["one", (seen := {"b": "two"})], "c": Workspace({"three": ""})}

    assert {*strings_in(given, {id(seen)})} == {"a", "one", "c", "three", ""}


def with_code(src: str, tag: str = "") -> AppDef:
    """An app with a directory of the worker.

    Args:
        src: the directory.
        tag: another argument.
    """
    role = Role("main", "", entrypoint="sh", args=["-c", f"find . -name '*.key'; echo {tag}"])
    return AppDef("app", [dataclasses.replace(role, workspace=Workspace({src: "in"}))])


@pytest.mark.parametrize("src", ["", "."])
@pytest.mark.parametrize("how", ["component", "function", "app", "app without", "row"])
def test_an_empty_text_of_the_dag_file_names_no_directory(tmp_path, monkeypatch, how: str, src: str) -> None:
    """It would be the one of the DAG file, and such texts have any meaning: here that of a target."""
    (tmp_path / "project").mkdir()
    (tmp_path / "private.key").write_text("hush")
    monkeypatch.setitem(support.RUN, "conf", {"src": src})
    api, given = FakeExecutionApi(), dataclasses.asdict(with_code("project"))
    given["roles"].append({**given["roles"][0], "name": "other", "workspace": {"projects": {src: "in"}}})
    given["roles"][0]["workspace"] = None
    api.xcoms["make", "return_value"] = [{"app": given}] if how == "row" else given
    base: dict[str, Any] = {"launch_conn_id": "launch_local_default", "unavailable_for_s": 0}
    with a_dag() as dag:
        dag.fileloc = str(tmp_path / "dag.py")
        output = BaseOperator(task_id="make").output
        if how == "function":
            made: Any = task.launch(**base)(with_code)("{{ dag_run.conf['src'] }}", tag="").operator
        elif how == "component":
            args = {"src": "{{ dag_run.conf['src'] }}", "tag": ""}
            made = LaunchAppOperator(task_id="t", component=f"{__name__}:with_code", component_args=args, **base)
        elif how.startswith("app"):
            # Without a workspace, as `os.environ.get("CODE", "")` may say.
            workspace: Any = {"project": ""} if how == "app" else ""
            made = LaunchAppOperator(task_id="t", app=output, workspace=workspace, **base)
        else:
            part = LaunchAppOperator.partial(task_id="t", workspace={"project": ""}, **base)
            made = part.expand_kwargs(output)  # type: ignore[arg-type]
    found = run_task(made, api, map_index=0 if how == "row" else -1)

    assert REFUSED in str(found.error)
    assert not found.logged("private.key")


@pytest.mark.parametrize("how", ["argument", "flag", "workspace", "path", "app", "path in app", "group", "hydra"])
def test_a_mark_in_the_dag_file_names_a_directory(tmp_path, how: str) -> None:
    (tmp_path / tmp_path.name).mkdir()
    (tmp_path / "well.key").write_text("")
    (tmp_path / tmp_path.name / "well.key").write_text("")
    base: dict[str, Any] = {"task_id": "t", "launch_conn_id": "launch_local_default", "unavailable_for_s": 0}
    text = "{{ run_id }}"
    config = CONFIG_OF_HYDRA.replace("image: i, entrypoint: x", "image: '', entrypoint: ls, workspace: OF_FILE")
    config = config.replace("OF_FILE", "{_target_: airflow_provider_launch.specs.Workspace, projects: {'.': ''}}")
    (tmp_path / "one.yaml").write_text(f"n: 0\n{config}")
    with a_dag() as dag:
        dag.fileloc = str(tmp_path / "dag.py")
        if how == "hydra":
            args: Any = ["-cd", str(tmp_path), "-cn", "one", "n={{ ti.map_index }}"]
            made: Any = LaunchAppOperator(component="utils.hydra", component_args=args, **base)
        elif how in {"argument", "flag"}:
            args = [f"--src={tmp_path.name}", "--tag", text] if how == "flag" else {"src": ".", "tag": text}
            made = LaunchAppOperator(component=f"{__name__}:with_code", component_args=args, **base)
        elif how == "group":

            @task_group
            def each(src: Any) -> None:
                LaunchAppOperator(component=f"{__name__}:with_code", component_args={"src": src, "tag": text}, **base)

            each.expand(src=["."])
            made = dag.task_dict["each.t"]
        else:
            mark: Any = Path() if "path" in how else "."
            app = with_code(mark if "app" in how else "project", text)
            made = LaunchAppOperator(app=app, workspace=None if "app" in how else {mark: ""}, **base)
    found = run_task(made, FakeExecutionApi(), map_index=0 if how == "group" else -1)

    assert found.error is None
    assert found.logged("well.key")


@pytest.mark.parametrize("given", [{"workspace": "src"}, {"component": "own.py:make"}])
def test_a_mapped_task_has_what_its_group_sets(tmp_path, given: dict[str, Any]) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "own.py").write_text(
        "from airflow_provider_launch.specs import AppDef, Role\n\n\n"
        "def make(x: str = '1') -> AppDef:\n    return AppDef('a', [Role('r', '/', entrypoint='true')])\n"
    )
    kwargs = {} if "component" in given else {"app": AppDef("a", [Role("r", "", entrypoint="true")])}
    with a_dag() as dag:
        dag.fileloc = str(tmp_path / "dag.py")
        with TaskGroup("g", default_args=given):
            part = LaunchAppOperator.partial(task_id="t", launch_conn_id="launch_local_default", **kwargs)
            made = part.expand(on_finish=["keep"])

    assert run_task(made, FakeExecutionApi(), map_index=0).error is None


@pytest.mark.parametrize(
    ("role", "error"),
    [("r", "roles.0: must be a dict"), ({"name": "r", "image": "", "workspace": {"projects": ["."]}},
                                        "roles.0.workspace.projects: must be a dict")],
)  # fmt: skip
def test_a_role_of_a_run_that_is_not_valid_is_named(role: object, error: str) -> None:
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = role
    found = ran(api, app={"name": "app", "roles": [BaseOperator(task_id="make").output]})

    assert error in str(found.error)


@pytest.mark.parametrize("path", ["~nobody-here/x", "src/no"])
def test_a_path_that_does_not_exist_is_named(tmp_path, path: str) -> None:
    with a_dag() as dag:
        dag.fileloc = str(tmp_path / "dag.py")
        app = AppDef("a", [Role("r", "", entrypoint="true")])
        made = LaunchAppOperator(task_id="t", app=app, workspace=path, launch_conn_id="launch_local_default")

    assert f"workspace '{tmp_path / path}' does not exist" in str(run_task(made, FakeExecutionApi()).error)


def test_an_address_that_is_none_is_in_no_allowed_place(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOWED_APP_SOURCES", "https://place.example")

    with pytest.raises(InvalidAppError, match=REFUSED):
        Sources(()).check("http://[x", "http://[x", "option")


def test_the_guard_ends_with_its_block(secret) -> None:
    with guarded(pytest.fail):
        pass

    assert get_overlay(made_of(str(secret)).roles[0], "docker", "Container")


@pytest.mark.parametrize("name", ["config_dir", "config_name"])
def test_a_config_of_hydra_that_a_run_names_is_not_read(tmp_path, monkeypatch, name: str) -> None:
    """The worker calls each function that such a config names."""
    (tmp_path / "one.yaml").write_text(f"app: {{_target_: builtins.open, _args_: [{tmp_path / 'opened'}, w]}}\n")
    values = {"config_dir": str(tmp_path), "config_name": "one"}
    monkeypatch.setitem(support.RUN, "conf", values)
    template = {name: f"{{{{ dag_run.conf['{name}'] }}}}"}

    found = ran(component="utils.hydra", component_args={**values, **template})

    assert found.state == "failed"
    assert REFUSED in str(found.error)
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize(
    ("args", "conf"),
    [
        ({"config_dir": "TMP/conf"}, {"config_name": "one"}),
        ({"config_name": "one"}, {"config_dir": "~/conf"}),
        ({"config_name": "one"}, {"config_dir": "file:TMP/cwd"}),
        ({}, {"config_name": "one"}),
    ],
    ids=["name", "home", "address", "default"],
)
def test_the_directory_of_the_worker_allows_no_other_config_of_hydra(tmp_path, monkeypatch, args, conf) -> None:
    """A name is not compared as a path, and a path as it is opened."""
    cwd = tmp_path / "cwd"
    for folder in (cwd, tmp_path / "conf", tmp_path / f"file:{cwd}"):
        folder.mkdir(parents=True)
        (folder / "one.yaml").write_text(f"app: {{_target_: builtins.open, _args_: [{tmp_path / 'opened'}, w]}}\n")
    (tmp_path / "launchconfig").write_text(f"[component:utils.hydra]\nconfig_dir = {tmp_path}/conf\n")
    monkeypatch.setenv("AIRFLOW__LAUNCH__CONFIG_FILE", str(tmp_path / "launchconfig"))
    monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOWED_APP_SOURCES", str(cwd))
    monkeypatch.setenv("HOME", str(tmp_path))
    # Hydra takes an address for the path of a folder whose name begins with `file:`.
    monkeypatch.chdir(tmp_path if "file:" in str(conf) else cwd)
    monkeypatch.setitem(support.RUN, "conf", {name: text.replace("TMP", f"{tmp_path}") for name, text in conf.items()})
    written = {name: text.replace("TMP", f"{tmp_path}") for name, text in args.items()}

    found = ran(
        component="utils.hydra",
        component_args={**written, **{name: f"{{{{ dag_run.conf['{name}'] }}}}" for name in conf}},
    )

    assert REFUSED in str(found.error)
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("argument", ["--config_dir=", "-cd=", "--config_dir=.torchx", "--config_dir=."])
def test_an_override_of_a_run_does_not_replace_the_directory_of_a_config(tmp_path, monkeypatch, argument: str) -> None:
    """Neither by the default, nor by the directory of the worker, which an empty text means."""
    cwd, own = tmp_path / "cwd", tmp_path / "own"
    for folder in (cwd, cwd / ".torchx", own):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "one.yaml").write_text(f"app: {{_target_: builtins.open, _args_: [{tmp_path / 'opened'}, w]}}\n")
    monkeypatch.chdir(cwd)
    monkeypatch.setitem(support.RUN, "conf", {"override": argument})

    found = ran(
        component="utils.hydra", component_args=["-cd", str(own), "-cn", "one", "{{ dag_run.conf['override'] }}"]
    )

    assert REFUSED in str(found.error)
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("args", [{"config_dir": ".", "config_name": "one"}, ["--config_dir=.", "-cn", "one"]])
def test_the_directory_of_a_config_may_be_a_mark(tmp_path, monkeypatch, args: Any) -> None:
    (tmp_path / "one.yaml").write_text("app: {_target_: builtins.dict}\nn: 0\n")
    monkeypatch.chdir(tmp_path)
    override = "n={{ params.n }}"

    given = [*args, override] if isinstance(args, list) else {**args, "overrides": [override]}
    found = ran(component="utils.hydra", component_args=given, params={"n": 1})

    assert "must give an AppDef, not dict" in str(found.error)


def test_the_key_of_an_override_names_no_directory(tmp_path, monkeypatch) -> None:
    """A run may add keys to a mapping, and the author has not written these."""
    for name in ("src", "keys"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text("")
    role = (
        "image: '', entrypoint: ls, workspace: {_target_: airflow_provider_launch.specs.Workspace, projects: {src: ''}}"
    )
    (tmp_path / "one.yaml").write_text(CONFIG_OF_HYDRA.replace("image: i, entrypoint: x", role))
    monkeypatch.setitem(support.RUN, "conf", {"override": "+app.roles.0.workspace.projects.keys=''"})
    with a_dag() as dag:
        dag.fileloc = str(tmp_path / "dag.py")
        args = ["-cd", str(tmp_path), "-cn", "one", "{{ dag_run.conf['override'] }}"]
        made = LaunchAppOperator(
            task_id="t", component="utils.hydra", component_args=args, launch_conn_id="launch_local_default"
        )
    found = run_task(made, FakeExecutionApi())

    assert REFUSED in str(found.error)
    assert not found.logged("keys.txt")


def test_the_key_of_an_override_is_no_part_of_a_path(secret, tmp_path) -> None:
    config = CONFIG_OF_HYDRA.replace("entrypoint: x", "entrypoint: x, metadata: {docker: ''}")
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "one.yaml").write_text(config)
    api = FakeExecutionApi()
    key = secret.name.replace(".", "_")
    path = secret.rename(secret.with_name(key))
    api.xcoms["make", "return_value"] = [f"app.roles.0.metadata.docker={path}", f"+app.metadata.{key}=a"]
    args = {
        "config_dir": str(tmp_path / "dags"),
        "config_name": "one",
        "overrides": BaseOperator(task_id="make").output,
    }
    with a_dag() as dag:
        dag.fileloc = str(tmp_path / "dags" / "dag.py")
        made = LaunchAppOperator(
            task_id="t", component="utils.hydra", component_args=args, launch_conn_id="place", unavailable_for_s=0
        )
    found = run_task(made, api)

    assert REFUSED in str(found.error)
    assert not found.logged("hush-token")


@pytest.mark.parametrize("names", [["config_dir"], ["config_name"], ["config_dir", "config_name"]])
def test_a_config_of_hydra_in_an_allowed_folder_is_read(tmp_path, monkeypatch, names: list[str]) -> None:
    (tmp_path / "one.yaml").write_text("app: {_target_: builtins.dict}\n")
    monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOWED_APP_SOURCES", str(tmp_path))
    values = {"config_dir": str(tmp_path), "config_name": "one"}
    monkeypatch.setitem(support.RUN, "conf", values)
    templates = {name: f"{{{{ dag_run.conf['{name}'] }}}}" for name in names}

    found = ran(component="utils.hydra", component_args={**values, **templates})

    assert "must give an AppDef, not dict" in str(found.error)


def test_without_hydra_a_task_names_the_extra(tmp_path, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "hydra"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hydra", None)
    monkeypatch.setenv("AIRFLOW_VAR_N", "1")

    found = ran(component="utils.hydra", component_args=["-cd", str(tmp_path), "-cn", "one", "n={{ var.value.n }}"])

    assert "the extra 'hydra' of airflow-provider-launch" in str(found.error)


@pytest.mark.parametrize("how", ["mapping", "list", "list with =", "configuration"])
def test_a_config_of_hydra_in_the_dag_file_is_read(tmp_path, monkeypatch, how: str) -> None:
    (tmp_path / "one.yaml").write_text("app: {_target_: builtins.dict}\nn: 0\n")
    monkeypatch.setitem(support.RUN, "conf", {"n": "1"})
    override = "n={{ dag_run.conf['n'] }}"
    if how == "mapping":
        args: Any = {"config_dir": str(tmp_path), "config_name": "one", "overrides": [override]}
    elif how == "configuration":
        file = tmp_path / "launchconfig"
        file.write_text(f"[component:utils.hydra]\nconfig_dir = {tmp_path}\nconfig_name = one\n")
        monkeypatch.setenv("AIRFLOW__LAUNCH__CONFIG_FILE", str(file))
        args = [override]
    elif how == "list":
        args = ["--config_dir", str(tmp_path), "--config_name", "one", override]
    else:
        args = [f"--config_dir={tmp_path}", "--config_name=one", override]

    found = ran(component="utils.hydra", component_args=args)

    assert "must give an AppDef, not dict" in str(found.error)
