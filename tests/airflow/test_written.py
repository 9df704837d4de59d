"""An app names only what its authors wrote before the task saw a value of the run, also if Airflow maps the task."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import gc
import importlib
import importlib.abc
import importlib.util
import json
import py_compile
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest
from airflow.sdk import Param, task, task_group

from airflow_provider_launch.operators._names import consists_of
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.sensors.launch import AppStatusSensor
from airflow_provider_launch.specs import AppDef, Role, Workspace
from tests.airflow import support
from tests.airflow.support import FakeExecutionApi, Ran, a_dag, run_task
from tests.airflow.test_sources import REFUSED, app_dict, made_of

pytestmark = pytest.mark.usefixtures("absent_engine")

OPEN = {"launch_conn_id": "place", "unavailable_for_s": 0}
HYDRA = "app: {{_target_: builtins.open, _args_: [{}, w]}}\n"


@task
def make() -> int:
    return 1


def mapped(api: FakeExecutionApi, made: Any) -> Ran:
    # Airflow compares identities.
    gc.disable()
    try:
        return run_task(made, api, map_index=0)
    finally:
        gc.enable()


def one_of(overlay: str) -> AppDef:
    return made_of(overlay)


# ---- rows of `.expand_kwargs()` ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["component", "hydra", "app", "template", "workspace", "connection"])
def test_a_row_of_a_run_gives_no_default_arguments(secret, tmp_path, monkeypatch, how: str) -> None:
    """Airflow takes each argument that is missing from them."""
    monkeypatch.setenv("AIRFLOW_VAR_WORD", "hush-token")
    (tmp_path / "one.yaml").write_text(HYDRA.format(tmp_path / "opened"))
    (tmp_path / "theirs.py").write_text(f"open('{tmp_path / 'opened'}', 'w')\n")
    app = app_dict({})
    app["roles"][0]["args"] = ["{{ var.value.word }}"]
    api = FakeExecutionApi()
    defaults = {
        "component": {"component": f"{tmp_path}/theirs.py:made"},
        "hydra": {"component": "utils.hydra", "component_args": {"config_dir": str(tmp_path), "config_name": "one"}},
        "app": {"app": app_dict(str(secret))},
        "template": {"app": app},
        "workspace": {"app": app_dict({}), "workspace": str(tmp_path)},
        "connection": {"app": app_dict({}), "launch_conn_id": "launch_local_default"},
    }[how]
    api.xcoms["make", "return_value"] = [{"default_args": defaults}]
    with a_dag():
        made = LaunchAppOperator.partial(task_id="t", unavailable_for_s=0).expand_kwargs(make())  # type: ignore[arg-type]
    found = mapped(api, made)

    assert "argument 'default_args' of .expand_kwargs() comes from a run" in str(found.error)
    assert not found.logged("hush-token")
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("conn_id", ["launch_{}".format("elsewhere"), "launch_in_this_file"])
def test_a_row_of_a_run_gives_only_a_connection_of_the_dag_file(monkeypatch, conn_id: str) -> None:
    extra = {"host": "tcp://127.0.0.1:9"}
    for name in ("LAUNCH_ELSEWHERE", "LAUNCH_IN_THIS_FILE"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "launch_docker", "extra": extra}))
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [{"app": app_dict({}), "launch_conn_id": conn_id}]
    with a_dag() as dag:
        dag.fileloc = __file__
        made = LaunchAppOperator.partial(task_id="t", unavailable_for_s=0).expand_kwargs(make())  # type: ignore[arg-type]
    refused = f"connection {conn_id!r} comes from a run" in str(mapped(api, made).error)

    assert refused is conn_id.endswith("elsewhere")


def test_the_name_of_an_argument_in_a_row_is_no_text_of_the_dag_file(secret) -> None:
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [{"overlay": str(secret), str(secret): 1}]
    with a_dag():

        @task.launch(**OPEN)
        def train(overlay: str, **context: Any) -> AppDef:
            return made_of(overlay)

        made: Any = train.expand_kwargs(make()).operator  # type: ignore[arg-type, attr-defined]

    assert REFUSED in str(mapped(api, made).error)


@pytest.mark.parametrize("how", ["handle", "default_args"])
def test_a_sensor_renders_no_template_of_a_run(monkeypatch, how: str) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_WORD", "hush-token")
    row = {"handle": "{{ var.value.word }}"}
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [row if how == "handle" else {"handle": "x", "default_args": row}]
    with a_dag():
        made = AppStatusSensor.partial(task_id="t").expand_kwargs(make())  # type: ignore[arg-type]
    found = mapped(api, made)

    assert found.state == "failed"
    assert "hush-token" not in str(found.error)


@pytest.mark.parametrize("given", [None, [], "launch_{}".format("elsewhere")])
def test_a_row_does_not_lift_the_limit_of_a_sensor(given: Any) -> None:
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [{"handle": "local://launch_elsewhere/a", "launch_conn_id": given}]
    with a_dag():
        part = AppStatusSensor.partial(task_id="t", launch_conn_id="place")
        made = part.expand_kwargs(make(), strict=False)  # type: ignore[arg-type]

    assert "comes from a run in .expand_kwargs()" in str(mapped(api, made).error)


# ---- operators built on ours ---------------------------------------------------------------------------------------


class OfApp(LaunchAppOperator):
    def __init__(self, *, name: str, **kwargs: Any) -> None:
        super().__init__(app=made_of(f"/usr/share/{name}"), **kwargs)


class OfComponent(LaunchAppOperator):
    def __init__(self, *, name: str, **kwargs: Any) -> None:
        args = {"overlay": f"/usr/share/{name}"}
        super().__init__(component="tests.airflow.test_written:one_of", component_args=args, **kwargs)


class OfHydra(LaunchAppOperator):
    def __init__(self, *, name: str, **kwargs: Any) -> None:
        args = {"config_dir": f"/usr/share/{name}/..", "config_name": "one"}
        super().__init__(component="utils.hydra", component_args=args, **kwargs)


class OfWorkspace(LaunchAppOperator):
    def __init__(self, *, name: str, **kwargs: Any) -> None:
        super().__init__(app=made_of({}), workspace=f"/usr/share/{name}/..", **kwargs)


class OfLambda(LaunchAppOperator):
    def __init__(self, *, name: str, **kwargs: Any) -> None:
        super().__init__(app=lambda context, jinja_env: made_of(name.removeprefix("../..")), **kwargs)


class OfPartial(LaunchAppOperator):
    def __init__(self, *, name: str, **kwargs: Any) -> None:
        super().__init__(app=functools.partial(of_name, name.removeprefix("../..")), **kwargs)


class OfMethod(LaunchAppOperator):
    def __init__(self, *, name: str, **kwargs: Any) -> None:
        self.overlay = name.removeprefix("../..")
        super().__init__(app=self.build, **kwargs)

    def build(self, context: Any, jinja_env: Any) -> AppDef:
        return made_of(self.overlay)


def of_name(overlay: str, context: Any, jinja_env: Any) -> AppDef:
    return made_of(overlay)


BUILT = [OfApp, OfComponent, OfHydra, OfWorkspace, OfLambda, OfPartial, OfMethod]


@pytest.mark.parametrize("how", ["expand", "expand_kwargs"])
@pytest.mark.parametrize("operator", BUILT)
def test_texts_that_an_operator_makes_of_mapped_values_name_no_file(
    secret, tmp_path, operator: type[LaunchAppOperator], how: str
) -> None:
    """Airflow calls its constructor with values of the run."""
    (tmp_path / "one.yaml").write_text(HYDRA.format(tmp_path / "opened"))
    api = FakeExecutionApi()
    name = f"../..{secret}"
    api.xcoms["make", "return_value"] = [name if how == "expand" else {"name": name}]
    with a_dag():
        part = operator.partial(task_id="t", **OPEN)
        made = part.expand(name=make()) if how == "expand" else part.expand_kwargs(make())  # type: ignore[arg-type]
    found = mapped(api, made)

    assert "not written in" in str(found.error)
    assert not found.logged("hush-token")
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("how", ["expand", "expand_kwargs", "function of a library"])
@pytest.mark.parametrize("field", ["overlay", "workspace"])
def test_a_mapped_app_of_a_run_opens_no_other_file_of_the_dag_file(secret, tmp_path, field: str, how: str) -> None:
    """Our class has a base of Python, which an author did not write."""
    (tmp_path / "dag.py").write_text(f"OTHER_TASK = '{secret}'\n")
    app = app_dict(str(secret))
    if field == "workspace":
        app["roles"][0] |= {"metadata": {}, "workspace": {"projects": {str(secret): ""}}}
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [{"app": app} if how == "expand_kwargs" else app]
    with a_dag() as dag:
        dag.fileloc = str(tmp_path / "dag.py")
        part, given = LaunchAppOperator.partial(task_id="t", **OPEN), make()
        if how == "function of a library":
            given = given.map(copy.copy)  # type: ignore[attr-defined]
        made = part.expand_kwargs(given) if how == "expand_kwargs" else part.expand(app=given)  # type: ignore[arg-type]
    found = mapped(api, made)

    assert REFUSED in str(found.error)
    assert not found.logged("hush-token")


def test_a_mapped_config_of_another_task_calls_nothing(tmp_path) -> None:
    (tmp_path / "one.yaml").write_text(HYDRA.format(tmp_path / "opened"))
    (tmp_path / "dag.py").write_text(f"OTHER_TASK = '{tmp_path}', 'one'\n")
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [{"config_dir": str(tmp_path), "config_name": "one"}]
    with a_dag() as dag:
        dag.fileloc = str(tmp_path / "dag.py")
        made = LaunchAppOperator.partial(task_id="t", component="utils.hydra", **OPEN).expand(component_args=make())

    assert REFUSED in str(mapped(api, made).error)
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("how", ["expand", "expand_kwargs"])
@pytest.mark.parametrize("is_written", [True, False], ids=["of the function", "of a run"])
def test_a_function_that_maps_the_output_of_a_task_is_code_of_the_author(secret, how: str, is_written: bool) -> None:
    folder = secret.parent
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [f"../..{folder}"]
    with a_dag():
        part = LaunchAppOperator.partial(task_id="t", **OPEN)
        apps = make().map(lambda word: app_dict(f"{folder if is_written else word}/kubeconfig"))  # type: ignore[attr-defined]
        made = part.expand(app=apps) if how == "expand" else part.expand_kwargs(apps.map(lambda app: {"app": app}))

    assert mapped(api, made).logged("hush-token") is is_written


class Apps:
    """Methods that make the app of a mapped task."""

    def __init__(self, overlay: str) -> None:
        self.overlay = overlay

    def of_object(self, word: str) -> dict[str, Any]:
        return app_dict(self.overlay)

    @classmethod
    def of_class(cls, word: str) -> dict[str, Any]:
        return app_dict(str(PLACES[0]))


PLACES: list[Path] = []


@functools.lru_cache
def cached_app(word: str) -> dict[str, Any]:
    return app_dict(str(PLACES[0]))


@pytest.mark.parametrize("how", ["expand", "expand_kwargs"])
@pytest.mark.parametrize("kind", ["method", "class method", "cached", "library"])
def test_a_method_that_maps_the_output_of_a_task_is_code_of_the_author(
    secret, monkeypatch, how: str, kind: str
) -> None:
    monkeypatch.setattr(f"{__name__}.PLACES", [secret])
    cached_app.cache_clear()
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = ["a"] if kind != "library" else [app_dict(str(secret))]
    function: Any = {
        "method": Apps(str(secret)).of_object,
        "class method": Apps.of_class,
        "cached": cached_app,
        "library": copy.copy,
    }[kind]
    with a_dag():
        part, given = LaunchAppOperator.partial(task_id="t", **OPEN), make().map(function)  # type: ignore[attr-defined]
        made = part.expand(app=given) if how == "expand" else part.expand_kwargs(given.map(lambda app: {"app": app}))
    found = mapped(api, made)

    # In a row the last step is a lambda, which is code of the author.
    assert found.logged("hush-token") is (kind != "library" or how == "expand_kwargs")


def test_an_operator_of_an_installed_package_is_one_of_an_author(secret, tmp_path, monkeypatch) -> None:
    """Also a class whose module does not name ours."""
    package = tmp_path / "site-packages" / "acme_operators"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "bases.py").write_text(
        "from airflow_provider_launch.operators.launch import LaunchAppOperator\n\n\n"
        "class Base(LaunchAppOperator):\n    def __init__(self, *, size, **kwargs):\n"
        "        super().__init__(app=self.app_of(size), **kwargs)\n"
    )
    app = app_dict("OVERLAY")
    (package / "own.py").write_text(
        f"from acme_operators.bases import Base\n\n\nclass Own(Base):\n    def app_of(self, size):\n"
        f"        return {app!r}\n".replace("OVERLAY", str(secret))
    )
    monkeypatch.syspath_prepend(str(package.parent))
    operator = importlib.import_module("acme_operators.own").Own
    with a_dag():
        made = operator.partial(task_id="t", **OPEN).expand(size=make())
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = ["small"]
    found = mapped(api, made)
    for module in [name for name in sys.modules if name.startswith("acme_operators")]:
        sys.modules.pop(module)

    assert found.logged("hush-token"), found.error


MADE = """
from airflow_provider_launch.specs import AppDef, Role

def made() -> AppDef:
    return AppDef("a", [Role("r", "i", entrypoint="x")])

open("{}", "w").close()
"""


class OfName(LaunchAppOperator):
    def __init__(self, *, kind: str, **kwargs: Any) -> None:
        super().__init__(component=f"components/{kind}.py:made", **kwargs)


@pytest.mark.parametrize("kind", ["../../theirs", "own"])
@pytest.mark.parametrize("args", [{"word": "a"}, ["--word", "a"]], ids=["names", "list"])
def test_a_component_of_a_run_is_not_imported(tmp_path, kind: str, args: Any) -> None:
    """Rendering the arguments needs their types."""
    for file in ("dags/components/own.py", "theirs.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(
            "from airflow_provider_launch.specs import AppDef, Role\n\n\n"
            "def made(word: str) -> AppDef:\n    return AppDef('a', [Role('r', 'i', entrypoint='x')])\n\n\n"
            f"open('{tmp_path / 'imported'}', 'w').close()\n"
        )
    is_written = kind == "own"
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [kind]
    with a_dag() as dag:
        dag.fileloc = str(tmp_path / "dags" / "dag.py")
        part = OfName.partial(task_id="t", component_args=args, **OPEN)
        made = part.expand(kind=[kind] if is_written else make())
    found = mapped(api, made)

    assert ("is not written in the DAG file or in the class of the operator" in str(found.error)) is not is_written
    assert (tmp_path / "imported").exists() is is_written


class OfTemplate(LaunchAppOperator):
    template_fields = ("component", *LaunchAppOperator.template_fields)


def test_a_component_that_a_template_of_a_run_names_is_not_imported(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(support.RUN, "conf", {"kind": "../../theirs"})
    (tmp_path / "theirs.py").write_text(f"open('{tmp_path / 'imported'}', 'w').close()\n")
    with a_dag() as dag:
        dag.fileloc = str(tmp_path / "dags" / "dag.py")
        name = f"{tmp_path}/dags/components/{{{{ dag_run.conf['kind'] }}}}.py:made"
        part = OfTemplate.partial(task_id="t", component=name, component_args={"word": "a"}, **OPEN)
        made = part.expand(cfg=[{}])
    found = run_task(made, FakeExecutionApi(), map_index=0)

    assert "is not written in the DAG file or in the class of the operator" in str(found.error)
    assert not (tmp_path / "imported").exists()


class OfWords(LaunchAppOperator):
    kind = "one"

    def __init__(self, *, size: str, package: str = "acme_words", **kwargs: Any) -> None:
        super().__init__(component=f"{package}.{self.kind}:made", component_args={"size": size}, **kwargs)


def test_a_mapped_operator_may_put_the_name_of_a_component_together(tmp_path, monkeypatch) -> None:
    (tmp_path / "acme_words").mkdir()
    (tmp_path / "acme_words" / "one.py").write_text(
        "from airflow_provider_launch.specs import AppDef, Role\n\n\n"
        "def made(size: str) -> AppDef:\n    return AppDef('a', [Role('r', 'i', entrypoint='x', args=[size])])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with a_dag():
        made = OfWords.partial(task_id="t", **OPEN).expand(size=["small"])
    found = run_task(made, FakeExecutionApi(), map_index=0)
    for module in ("acme_words", "acme_words.one"):
        sys.modules.pop(module, None)

    assert "does not answer" in str(found.error)


class OfPart(LaunchAppOperator):
    def __init__(self, *, kind: str, **kwargs: Any) -> None:
        super().__init__(component=f"acme_parts.train_{kind.lower()}:made", **kwargs)


@pytest.mark.parametrize("is_written", [True, False], ids=["of the file", "of a run"])
def test_values_of_the_file_make_any_name_of_a_component(tmp_path, monkeypatch, is_written: bool) -> None:
    """A word in the file that a run gives does not: this docstring has `other`."""
    (tmp_path / "acme_parts").mkdir()
    for kind in ("small", "other"):
        (tmp_path / "acme_parts" / f"train_{kind}.py").write_text(MADE.format(tmp_path / "imported"))
    monkeypatch.syspath_prepend(str(tmp_path))
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = ["other"]
    with a_dag():
        made = OfPart.partial(task_id="t", **OPEN).expand(kind=["SMALL"] if is_written else make())
    mapped(api, made)
    for module in [name for name in sys.modules if name.startswith("acme_parts")]:
        sys.modules.pop(module)

    assert (tmp_path / "imported").exists() is is_written


class OfModule(LaunchAppOperator):
    def __init__(self, *, rate: str, **kwargs: Any) -> None:
        super().__init__(component=f"{__name__}:own_code", **kwargs)
        self.rate = rate


@pytest.mark.parametrize("rate", ["0.1", "own_code", "tests"])
def test_a_value_of_a_run_that_is_not_in_the_name_of_a_component_changes_nothing(rate: str) -> None:
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [rate]
    with a_dag():
        made = OfModule.partial(task_id="t", **OPEN).expand(rate=make())  # type: ignore[arg-type]
    found = mapped(api, made)

    assert "is not written in the DAG file or in the class of the operator" not in str(found.error)


class OfStart(LaunchAppOperator):
    def __init__(self, *, kind: str, **kwargs: Any) -> None:
        super().__init__(component=f"{kind}/own.py:made", **kwargs)


class OfMarks(LaunchAppOperator):
    """Its code has single letters and marks."""

    def __init__(self, *, kind: str, **kwargs: Any) -> None:
        if str(kind).partition(".")[0] in {"a", "b"}:
            kind = kind.replace("/", "_")
        super().__init__(component=f"components/{kind}/own.py:made", **kwargs)


class OfSlice(LaunchAppOperator):
    def __init__(self, *, kind: str, **kwargs: Any) -> None:
        super().__init__(component=f"components/{kind[:2]}/own.py:made", **kwargs)


class OfText(LaunchAppOperator):
    def __init__(self, *, kind: Any, **kwargs: Any) -> None:
        super().__init__(component="components/{}/own.py:made".format("".join(map(str, kind))), **kwargs)


CODES = {"al", "ba", "ck", "co", "de", "up", "usa"}


class OfCodes(LaunchAppOperator):
    """It names a table of short texts."""

    def __init__(self, *, kind: str, **kwargs: Any) -> None:
        self.is_known = kind in CODES
        super().__init__(component=f"components/{kind}/own.py:made", **kwargs)


class OfGuard(LaunchAppOperator):
    """It tests for steps out of a folder, and forgets some."""

    def __init__(self, *, kind: str, **kwargs: Any) -> None:
        if kind in {"../..", "..", "~"} and kwargs.get("is_strict", False):
            raise ValueError(kind)
        super().__init__(component=f"components/{kind}/own.py:made", **kwargs)


class OfSystem(LaunchAppOperator):
    """It names an attribute of a module, and another module with more of them."""

    def __init__(self, *, kind: str, **kwargs: Any) -> None:
        self.hint, self.sep = tempfile.gettempdir(), SimpleNamespace(template="")
        self.word = self.sep.template
        super().__init__(component=f"components/{kind}/own.py:made", **kwargs)


@pytest.mark.parametrize("how", ["expand", "expand_kwargs"])
@pytest.mark.parametrize(
    ("operator", "kind", "file"),
    [
        (OfStart, "../..", "../own.py"),
        (OfStart, "~", "home/own.py"),
        (OfMarks, "..", "dags/own.py"),
        (OfMarks, "ab", "dags/components/ab/own.py"),
        (OfMarks, "é", "dags/components/é/own.py"),
        (OfMarks, 77, "dags/components/77/own.py"),
        (OfMarks, True, "dags/components/True/own.py"),
        (OfSlice, "secret", "dags/components/se/own.py"),
        (OfText, [1, 2], "dags/components/12/own.py"),
        (OfCodes, "code", "dags/components/code/own.py"),
        (OfCodes, "backup", "dags/components/backup/own.py"),
        (OfCodes, "usaal", "dags/components/usaal/own.py"),
        (OfGuard, "..", "dags/own.py"),
        (OfGuard, "../..", "own.py"),
        (OfSystem, "tmp", "dags/components/tmp/own.py"),
    ],
    ids=[
        *("folders", "home", "dots", "letters", "accent", "number", "true", "slice", "joined"),
        *("codes", "three codes", "long code", "guard", "guard of two", "attribute of a module"),
    ],
)
def test_no_value_of_a_run_makes_the_name_of_a_component(
    tmp_path, monkeypatch, operator: Any, kind: Any, file: str, how: str
) -> None:
    home = tmp_path / "worker" / "home"
    monkeypatch.setenv("HOME", str(home))
    (home.parent / file).parent.mkdir(parents=True, exist_ok=True)
    for folder in (home, home.parent / "dags" / "components"):
        folder.mkdir(parents=True, exist_ok=True)
    (home.parent / file).write_text(MADE.format(tmp_path / "imported"))
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [kind if how == "expand" else {"kind": kind}]
    with a_dag() as dag:
        dag.fileloc = str(home.parent / "dags" / "dag.py")
        part = operator.partial(task_id="t", **OPEN)
        made = part.expand(kind=make()) if how == "expand" else part.expand_kwargs(make())
    found = mapped(api, made)

    assert "is not written in the DAG file or in the class of the operator" in str(found.error)
    assert not (tmp_path / "imported").exists()


PACKAGE = "acme_pieces"


class Kind(enum.Enum):
    TRAIN = "train"


def module_of(kind: str) -> str:
    return f"acme_pieces.{kind}"


class Components:
    suffix = "_of_settings:made"

    def name(self, kind: str) -> str:
        return f"acme_pieces.{kind}{self.suffix}"


COMPONENTS = Components()


class OfPieces(LaunchAppOperator):
    kinds: ClassVar[dict[str, str]] = {"first": "train"}
    version = 2

    def __init__(
        self, *, how: str, data: str, package: str = "acme_pieces", name: str = "", folder: str = "", **kwargs: Any
    ) -> None:
        self.data = data
        components = {
            "default": f"{package}.train:made",
            "variable": f"{PACKAGE}.train:made",
            "attribute": f"acme_pieces.{self.kinds['first']}:made",
            "number": f"acme_pieces.train{self.version}:made",
            "enum": f"acme_pieces.{Kind[name.upper()].value}:made" if name == "train" else "",
            "helper": f"{module_of('train')}:made",
            "format": "{}.train:{}".format(package, "made"),
            "percent": "%s.train:%s" % (package, "made"),  # noqa: UP031 - an old form
            "argument": f"acme_pieces.{name}:made",
            "lower case": f"acme_pieces.{name.lower()}:made",
            "path": f"{Path(folder) / 'acme_pieces' / 'train.py'}:made",
            "version": f"{PACKAGE}.v{self.version}:made",
            "settings": COMPONENTS.name("train"),
            "function": f"{PACKAGE}.{of_name.__name__}:made",
        }
        super().__init__(component=components[how], **kwargs)


@pytest.mark.parametrize("data", ["cats", "train/made", "acme", "2"])
@pytest.mark.parametrize(
    ("how", "given"),
    [
        *((how, {}) for how in ("default", "variable", "attribute", "number", "helper", "format", "percent")),
        *((how, {}) for how in ("path", "version", "settings", "function")),
        ("enum", {"name": "train"}),
        ("argument", {"name": "train"}),
        ("lower case", {"name": "TRAIN"}),
    ],
)
def test_pieces_of_the_author_make_the_name_of_a_component_with_any_data(
    tmp_path, monkeypatch, how: str, given: dict[str, str], data: str
) -> None:
    (tmp_path / "acme_pieces").mkdir()
    given = {**given, "folder": str(tmp_path)}
    for file in ("train", "train2", "v2", "train_of_settings", "of_name"):
        (tmp_path / "acme_pieces" / f"{file}.py").write_text(MADE.format(tmp_path / "imported"))
    monkeypatch.syspath_prepend(str(tmp_path))
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [data]
    with a_dag():
        made = OfPieces.partial(task_id="t", how=how, **given, **OPEN).expand(data=make())  # type: ignore[arg-type]
    found = mapped(api, made)
    for module in [name for name in sys.modules if name.startswith("acme_pieces")]:
        sys.modules.pop(module)

    assert (tmp_path / "imported").exists(), found.error


def test_a_long_name_of_a_component_is_searched_in_little_time() -> None:
    pieces = {"ab" * length for length in range(1, 400)}

    assert consists_of("ab" * 500, pieces)
    assert not consists_of("ab" * 499 + "x", pieces)
    assert not consists_of("ab" * 501, pieces)


@pytest.mark.parametrize(
    ("name", "pieces", "is_made"),
    [
        ("jobs/v2.py", ["jobs/", "v", "2", ".py"], True),
        ("jobs.v2:made", ["jobs", ".v", "2", ":made"], True),
        ("jobs.v22:made", ["jobs", ".v", "2", ":made"], False),
        ("jobs.al2:made", ["jobs", ".al", "2", ":made"], False),
        ("jobs.al/eu:made", ["jobs", ".", "al", "/", "eu", ":made"], True),
        ("jobs.aleu:made", ["jobs", ".", "al", "eu", ":made"], False),
        ("jobs/../a.py", ["jobs/", "..", "/a.py"], False),
        ("jobs/../a.py", ["jobs/.", "./a.py"], False),
        ("jobs/../a.py", ["jobs/..", "/a.py"], True),
        ("~/jobs/a.py", ["~", "/jobs/a.py"], False),
        ("~/jobs/a.py", ["~/jobs", "/a.py"], True),
        ("jobs/a..b.py", ["jobs/", "a", "..", "b", ".py"], True),
    ],
)
def test_short_pieces_do_not_make_words(name: str, pieces: list[str], is_made: bool) -> None:
    assert consists_of(name, pieces) is is_made


class OfAuthor(LaunchAppOperator):
    def __init__(self, *, size: str, overlay: str, **kwargs: Any) -> None:
        app = made_of(overlay)
        app.roles[0].args = [size]
        super().__init__(app=app, **kwargs)


class OfAuthorComponent(LaunchAppOperator):
    def __init__(self, *, size: str, overlay: str, **kwargs: Any) -> None:
        args = {"overlay": overlay}
        super().__init__(component="tests.airflow.test_written:one_of", component_args=args, **kwargs)


@pytest.mark.parametrize("operator", [OfAuthor, OfAuthorComponent])
@pytest.mark.parametrize("how", ["partial", "mapped"])
def test_a_mapped_operator_of_an_author_opens_files_of_the_dag_file(
    secret, operator: type[LaunchAppOperator], how: str
) -> None:
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = ["small"]
    with a_dag():
        if how == "partial":
            made = operator.partial(task_id="t", overlay=str(secret), **OPEN).expand(size=make())  # type: ignore[arg-type]
        else:
            made = operator.partial(task_id="t", size="small", **OPEN).expand(overlay=[str(secret)])

    assert mapped(api, made).logged("hush-token")


def sets_component_args(task: Any, context: Any) -> None:
    task.component_args = {"overlay": context["dag_run"].conf["file"]}


def sets_workspace(task: Any, context: Any) -> None:
    task.workspace = context["dag_run"].conf["file"]


def sets_cfg(task: Any, context: Any) -> None:
    task.cfg = {"build_host": context["dag_run"].conf["file"]}


class Sets(LaunchAppOperator):
    def __init__(self, *, sets: Callable[[Any, Any], None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sets = sets

    def execute(self, context: Any) -> Any:
        self.sets(self, context)
        return super().execute(context)


@pytest.mark.parametrize("sets", [sets_component_args, sets_workspace, sets_cfg])
def test_a_field_that_an_operator_sets_in_a_run_names_no_file(secret, monkeypatch, tmp_path, sets: Any) -> None:
    monkeypatch.setitem(support.RUN, "conf", {"file": str(secret)})
    with a_dag() as dag:
        dag.fileloc = str(tmp_path / "dag.py")
        args: dict[str, Any] = {"component_args": {"overlay": "x"}} if sets is sets_component_args else {}
        name = "one_of" if args else "own_code"
        made = Sets(task_id="t", sets=sets, component=f"tests.airflow.test_written:{name}", **args, **OPEN)

    assert REFUSED in str(run_task(made, FakeExecutionApi()).error)


def own_code() -> AppDef:
    return AppDef("app", [Role("main", "i", entrypoint="x", workspace=Workspace({".": ""}))])


class Renders(LaunchAppOperator):
    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        self.component_args = {"overlay": context["dag_run"].conf["file"]}
        super().render_template_fields(context, jinja_env)


def test_a_field_that_an_operator_sets_before_it_renders_names_no_file(secret, monkeypatch) -> None:
    monkeypatch.setitem(support.RUN, "conf", {"file": str(secret)})
    with a_dag():
        name = "tests.airflow.test_written:one_of"
        made = Renders(task_id="t", component=name, component_args={"overlay": "x"}, **OPEN)

    assert REFUSED in str(run_task(made, FakeExecutionApi()).error)


class OwnParam(Param):
    pass


def test_a_parameter_in_the_dag_file_has_no_value_of_the_run(secret, monkeypatch) -> None:
    """Airflow writes the value into the object before the task is rendered."""
    monkeypatch.setitem(support.RUN, "conf", {"overlay": str(secret)})
    monkeypatch.setitem(globals(), "OVERLAY", OwnParam("gpu.yaml", type="string"))
    with a_dag():

        @task.launch(params={"overlay": OVERLAY}, **OPEN)
        def train(overlay: str) -> AppDef:
            return made_of(overlay)

        made = train("{{ params.overlay }}").operator  # type: ignore[attr-defined]

    assert REFUSED in str(run_task(made, FakeExecutionApi()).error)


OVERLAY: Any = None


class Few(LaunchAppOperator):
    template_fields = ("cfg", "launch_conn_id")


@pytest.mark.parametrize("how", ["app", "workspace", "component", "hydra"])
def test_a_field_without_templates_names_no_file_of_a_run(secret, tmp_path, how: str) -> None:
    (tmp_path / "one.yaml").write_text(HYDRA.format(tmp_path / "opened"))
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [
        {
            "app": app_dict(str(secret)),
            "workspace": str(tmp_path),
            "component": {"overlay": str(secret)},
            "hydra": {"config_dir": str(tmp_path), "config_name": "one"},
        }[how]
    ]
    with a_dag():
        if how == "app":
            made: Any = Few.partial(task_id="t", **OPEN).expand(app=make())
        elif how == "workspace":
            made = Few.partial(task_id="t", app=made_of({}), **OPEN).expand(workspace=make())
        else:
            name = "utils.hydra" if how == "hydra" else "tests.airflow.test_written:one_of"
            made = Few.partial(task_id="t", component=name, **OPEN).expand(component_args=make())
    found = mapped(api, made)

    assert REFUSED in str(found.error)
    assert not found.logged("hush-token")
    assert not (tmp_path / "opened").exists()


# ---- what happens before the function is called --------------------------------------------------------------------

NAMES: dict[str, str] = {}


def keeps(path: str) -> str:
    NAMES[path] = Path(path).stem
    return path


@pytest.mark.parametrize("how", ["map", "macro", "filter", "pre_execute", "callback"])
@pytest.mark.parametrize("kind", ["function", "component"])
def test_a_variable_that_was_changed_before_the_call_names_no_file(secret, monkeypatch, kind: str, how: str) -> None:
    monkeypatch.setitem(globals(), "NAMES", {})
    monkeypatch.setitem(support.RUN, "conf", {"file": str(secret)})
    template = {"macro": "{{ keeps(dag_run.conf['file']) }}", "filter": "{{ dag_run.conf['file'] | keeps }}"}
    given: Any = template.get(how, "{{ dag_run.conf['file'] }}")
    hooks: dict[str, Any] = {
        "pre_execute": {"pre_execute": lambda context: keeps(context["dag_run"].conf["file"]) and None},
        "callback": {"on_execute_callback": lambda context: keeps(context["dag_run"].conf["file"])},
    }.get(how, {})
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [str(secret)]
    with a_dag() as dag:
        dag.user_defined_macros = dag.user_defined_filters = {"keeps": keeps}

        @task.launch(**OPEN, **hooks)
        def train(overlay: str) -> AppDef:
            return made_of(overlay)

        if how == "map":
            given = make().map(keeps)  # type: ignore[attr-defined]
        if kind == "component":
            part = {"task_id": "t", "component": "tests.airflow.test_written:one_of", **OPEN, **hooks}
            made: Any = (
                LaunchAppOperator.partial(**part).expand(component_args=given.map(lambda path: {"overlay": path}))
                if how == "map"
                else LaunchAppOperator(component_args={"overlay": given}, **part)
            )
        else:
            made = (train.expand(overlay=given) if how == "map" else train(given)).operator  # type: ignore[attr-defined]
    found = mapped(api, made) if how == "map" else run_task(made, api)

    assert REFUSED in str(found.error)
    assert NAMES


@pytest.mark.parametrize("given", ["/", ".", "..", "./"])
def test_a_mark_that_cuts_or_joins_texts_is_no_workspace(tmp_path, monkeypatch, given: str) -> None:
    monkeypatch.setitem(support.RUN, "conf", {"code": given})
    (tmp_path / "acme_marks.py").write_text(
        "from airflow_provider_launch.specs import AppDef, Role, Workspace\n\ncode, name = '.', './'\n\n\n"
        "def train(code, name='a', sep='.'):\n    if '..' in name or name == './':\n        raise ValueError(name)\n"
        "    args = [f'{name}/{code}', '.'.join(sorted(name)), name.replace('/', '..')]\n"
        "    role = Role('m', 'i', entrypoint='x', args=args, workspace=Workspace.from_str(code))\n"
        "    return AppDef('a', [role])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    train = importlib.import_module("acme_marks").train
    with a_dag():
        made = task.launch(task_id="t", **OPEN)(train)("{{ dag_run.conf['code'] }}").operator  # type: ignore[call-overload]
    found = run_task(made, FakeExecutionApi())
    sys.modules.pop("acme_marks")

    assert REFUSED in str(found.error)


# ---- right DAGs ----------------------------------------------------------------------------------------------------


class Names(NamedTuple):
    overlay: str


class Own:
    def __init__(self, overlay: str) -> None:
        self.overlay = overlay


@pytest.mark.parametrize("kind", [Names, Own, SimpleNamespace])
def test_a_function_opens_files_of_an_object_that_its_author_made(secret, kind: Any) -> None:
    settings = kind(overlay=str(secret))
    with a_dag():

        @task.launch(**OPEN)
        def train() -> AppDef:
            return made_of(settings.overlay)

        made = train().operator  # type: ignore[attr-defined]

    assert run_task(made, FakeExecutionApi()).logged("hush-token")


@pytest.mark.parametrize("how", ["from", "module", "package", "relative", "module of a module", "package of a module"])
def test_a_function_opens_files_of_a_module_that_it_imports_later(secret, tmp_path, monkeypatch, how: str) -> None:
    """Airflow recommends such imports, because each parse of a DAG file pays for the others."""
    (tmp_path / "lazily").mkdir()
    (tmp_path / "lazily" / "__init__.py").write_text("")
    (tmp_path / "lazily" / "later").mkdir()
    (tmp_path / "lazily" / "later" / "__init__.py").write_text("from .paths import overlay\n")
    (tmp_path / "lazily" / "later" / "paths.py").write_text("from ..paths import OVERLAY as overlay\n")
    for file in ("lazily/paths.py", "lazy_paths.py"):
        (tmp_path / file).write_text(f"OVERLAY = '{secret}'\n")
    lines = {
        "from": "from lazy_paths import OVERLAY as overlay",
        "module": "import lazy_paths; overlay = lazy_paths.OVERLAY",
        "package": "import lazily.paths; overlay = lazily.paths.OVERLAY",
        "relative": "from .paths import OVERLAY as overlay",
        "module of a module": "from lazily.later.paths import overlay",
        "package of a module": "from lazily.later import overlay",
    }
    (tmp_path / "lazily" / "build.py").write_text(
        "from airflow_provider_launch.specs import AppDef, Role\n\n\ndef build(context, jinja_env):\n"
        f"    {lines[how]}\n"
        "    return AppDef('a', [Role('m', 'i', entrypoint='x', metadata={'docker': overlay})])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    build = importlib.import_module("lazily.build").build
    with a_dag():
        made = LaunchAppOperator(task_id="t", app=build, **OPEN)
    found = run_task(made, FakeExecutionApi())
    for module in [name for name in sys.modules if name.startswith(("lazily", "lazy_paths"))]:
        sys.modules.pop(module)

    assert found.logged("hush-token"), found.error


class Lazy:
    """As lazy objects of libraries: each look at its class or attributes loads it."""

    def __getattribute__(self, name: str) -> Any:
        raise LookupError(f"loaded for {name}")


class LazyDict(dict):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise LookupError("loaded")

    keys = values = items = __getitem__ = __iter__


class Meta(type):
    def __getattr__(cls, name: str) -> Any:
        raise LookupError(f"loaded for {name}")


class OfMeta(metaclass=Meta):
    pass


@dataclasses.dataclass
class Unset:
    overlay: str = dataclasses.field(init=False)


def lazy_module() -> ModuleType:
    spec = importlib.util.spec_from_loader("a_lazy_module", Failing())
    assert spec is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)  # type: ignore[arg-type]
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Failing(importlib.abc.Loader):
    def exec_module(self, module: ModuleType) -> None:
        raise LookupError("loaded")


LAZY: Any = None
LAZY_KINDS = {
    "object": Lazy, "mapping": lambda: LazyDict(a="b"), "class": lambda: OfMeta, "instance": OfMeta, "unset": Unset,
    "module": lazy_module,
}  # fmt: skip


@pytest.mark.parametrize("kind", LAZY_KINDS)
@pytest.mark.parametrize("how", ["component", "function"])
def test_an_object_of_a_module_is_not_loaded_and_hides_no_text(secret, monkeypatch, how: str, kind: str) -> None:
    monkeypatch.setitem(globals(), "LAZY", LAZY_KINDS[kind]())
    monkeypatch.setitem(globals(), "AFTER", {"lazy": LAZY, "overlay": str(secret)})
    monkeypatch.setitem(support.RUN, "conf", {"word": "x"})
    with a_dag():
        if how == "component":
            args = {"word": "{{ dag_run.conf['word'] }}"}
            made = LaunchAppOperator(
                task_id="t", component="tests.airflow.test_written:after", component_args=args, **OPEN
            )
        else:
            made = task.launch(task_id="t", **OPEN)(after)("a word").operator  # type: ignore[call-overload]
    found = run_task(made, FakeExecutionApi())

    assert found.logged("hush-token"), found.error


AFTER: dict[str, Any] = {}


def after(word: str) -> AppDef:
    """Name LAZY and OfMeta.x, so that their attributes are looked at."""
    if word == "never":
        return LAZY.x or OfMeta.x
    return made_of(AFTER["overlay"])


@pytest.mark.parametrize("how", ["joined", "mapped", "component"])
def test_arguments_in_the_dag_file_are_parts_of_paths(secret, how: str) -> None:
    folder, name = str(secret.parent), "".join(secret.name)
    with a_dag():

        @task.launch(**OPEN)
        def train(folder: str, name: str) -> AppDef:
            return made_of(f"{folder}/{name}")

        if how == "mapped":
            made: Any = train.partial(folder=folder).expand(name=[name]).operator  # type: ignore[attr-defined]
        elif how == "joined":
            made = train(folder, name).operator  # type: ignore[attr-defined]
        else:
            args = {"folder": folder, "name": name, "word": "{{ ti.task_id }}"}
            made = LaunchAppOperator(
                task_id="t", component="tests.airflow.test_written:in_folder", component_args=args, **OPEN
            )

    assert run_task(made, FakeExecutionApi(), map_index=0 if how == "mapped" else -1).logged("hush-token")


def in_folder(folder: str, name: str, word: str) -> AppDef:
    return made_of(f"{folder}/{name}")


class OfFolder(LaunchAppOperator):
    def __init__(self, *, size: str, **kwargs: Any) -> None:
        super().__init__(app=made_of({}), workspace=".", **kwargs)
        self.size = size


def operator_for(overlay: str) -> type[LaunchAppOperator]:
    class OfClosure(LaunchAppOperator):
        def __init__(self, *, size: str, **kwargs: Any) -> None:
            super().__init__(app=made_of(overlay), **kwargs)
            self.size = size

    return OfClosure


def test_a_mapped_operator_opens_files_of_its_closure(secret) -> None:
    with a_dag():
        made = operator_for(str(secret)).partial(task_id="t", **OPEN).expand(size=["small"])

    assert run_task(made, FakeExecutionApi(), map_index=0).logged("hush-token")


def test_a_mapped_operator_may_name_the_folder_of_the_dag_file() -> None:
    with a_dag():
        made = OfFolder.partial(task_id="t", **OPEN).expand(size=["small"])

    assert REFUSED not in str(run_task(made, FakeExecutionApi(), map_index=0).error)


def test_installed_packages_do_not_use_up_the_limit_of_modules(secret, tmp_path, monkeypatch) -> None:
    package = tmp_path / "site-packages" / "acme_large"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import airflow_provider_launch\n" + "".join(f"import acme_large.m{number}\n" for number in range(120))
    )
    for number in range(120):
        (package / f"m{number}.py").write_text("import airflow_provider_launch\n")
    (tmp_path / "acme_paths.py").write_text(f"def overlay(size):\n    return {{'gpu': '{secret}'}}[size]\n")
    (tmp_path / "acme_build.py").write_text(
        "import acme_large\nimport acme_paths\nfrom airflow_provider_launch.specs import AppDef, Role\n\n\n"
        "def build(context, jinja_env):\n    acme_large.m1\n"
        "    role = Role('m', 'i', entrypoint='x', metadata={'docker': acme_paths.overlay('gpu')})\n"
        "    return AppDef('a', [role])\n"
    )
    for folder in (tmp_path, package.parent):
        monkeypatch.syspath_prepend(str(folder))
    build = importlib.import_module("acme_build").build
    with a_dag():
        made = LaunchAppOperator(task_id="t", app=build, **OPEN)
    found = run_task(made, FakeExecutionApi())
    for module in [name for name in sys.modules if name.startswith("acme_")]:
        sys.modules.pop(module)

    assert found.logged("hush-token"), found.error


@pytest.mark.parametrize("how", ["cache", "dict", "method", "registered", "object of a library"])
def test_a_module_that_is_imported_at_the_top_names_files(secret, tmp_path, monkeypatch, how: str) -> None:
    """Also if no variable leads to it: the class of a cached function belongs to Python."""
    (tmp_path / "acme_tops.py").write_text(
        "import functools\nimport acme_registry\n\n\n"
        f"def plain(size):\n    return {{'gpu': '{secret}'}}[size]\n\n\n"
        "class Own:\n    def method(self, size):\n        return plain(size)\n\n\n"
        "cached, table, method = functools.lru_cache(plain), {'a': plain}, Own().method\n"
        "acme_registry.FOUND['gpu'] = plain\n"
    )
    (tmp_path / "acme_registry.py").write_text("FOUND = {}\n")
    lines = {
        "cache": ("from acme_tops import cached", "cached('gpu')"),
        "dict": ("from acme_tops import table", "table['a']('gpu')"),
        "method": ("from acme_tops import method", "method('gpu')"),
        "registered": ("import acme_registry, acme_tops", "acme_registry.FOUND['gpu']('gpu')"),
        "object of a library": (
            "import argparse, os; FOUND = argparse.Namespace(gpu=os.environ['ACME_OVERLAY'])",
            "FOUND.gpu",
        ),
    }
    top, call = lines[how]
    monkeypatch.setenv("ACME_OVERLAY", str(secret))
    (tmp_path / "acme_dag.py").write_text(
        f"from airflow_provider_launch.specs import AppDef, Role\n{top}\n\n\n"
        "def build(context, jinja_env):\n"
        f"    return AppDef('a', [Role('m', 'i', entrypoint='x', metadata={{'docker': {call}}})])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    build = importlib.import_module("acme_dag").build
    with a_dag():
        made = LaunchAppOperator(task_id="t", app=build, **OPEN)
    found = run_task(made, FakeExecutionApi())
    for module in [name for name in sys.modules if name.startswith("acme_")]:
        sys.modules.pop(module)

    assert found.logged("hush-token"), found.error


def test_a_function_opens_files_of_a_module_of_an_editable_install(secret, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "checkout" / "acme_editable"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "paths.py").write_text(f"OVERLAY = '{secret}'\n")

    class Finder:
        @classmethod
        def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
            file, places = folder / "__init__.py", [str(folder)]
            found = importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)
            return found if name == "acme_editable" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    with a_dag():

        @task.launch(**OPEN)
        def train() -> AppDef:
            from acme_editable.paths import OVERLAY  # type: ignore[import-not-found]

            return made_of(OVERLAY)

        made = train().operator  # type: ignore[attr-defined]
    found = run_task(made, FakeExecutionApi())
    for module in ("acme_editable", "acme_editable.paths"):
        sys.modules.pop(module, None)

    assert found.logged("hush-token"), found.error


HELPERS = {
    "closure": "helper = (lambda path: lambda: path)(PATH)",
    "closure of a closure": "helper = (lambda path: (lambda inner: lambda: inner())(lambda: path))(PATH)",
    "default": "def helper(path=PATH): return path",
    "default by name": "def helper(*, path=PATH): return path",
    "partial": "helper = functools.partial(str, PATH)",
    "partial in a closure": "helper = (lambda inner: lambda: inner())(functools.partial(str, PATH))",
    "method": "helper = Own(PATH).method",
    "default of a class": "helper = Default().method",
    "cached": "helper = functools.lru_cache(lambda path=PATH: path)",
    "large table": "KEPT = {'a': PATH}\nTABLE = [*map(float, range(300_000))]\ndef helper(): return KEPT['a']",
}


@pytest.mark.parametrize("how", [*HELPERS, "wrapper", "wrapper of a method"])
def test_a_function_opens_files_that_its_helpers_hold(secret, tmp_path, monkeypatch, how: str) -> None:
    """As in a factory of DAGs, which reads a file of settings."""
    monkeypatch.setenv("ACME_OVERLAY", str(secret))
    app = "AppDef('a', [Role('m', 'i', entrypoint='x', metadata={'docker': helper()})])"
    (tmp_path / "acme_helpers.py").write_text(
        "import functools, os\nfrom airflow_provider_launch.specs import AppDef, Role\n\n\n"
        "class Own:\n    def __init__(self, path):\n        self.path = path\n\n"
        "    def method(self):\n        return self.path\n\n\n"
        "class Default(Own):\n    def __init__(self, path=os.environ['ACME_OVERLAY']):\n        self.path = path\n\n\n"
        "def wrapped(path):\n    def wrap(function):\n        @functools.wraps(function)\n"
        "        def call(*args, **kwargs):\n            return function(*args, **kwargs, helper=lambda: path)\n\n"
        "        return call\n\n    return wrap\n\n\n"
        f"{HELPERS.get(how, '')}\n\n\n".replace("PATH", "os.environ['ACME_OVERLAY']")
        + {
            "wrapper": "@wrapped(os.environ['ACME_OVERLAY'])\n"
            f"def build(context, jinja_env, helper):\n    return {app}\n",
            "wrapper of a method": "class Builds(Own):\n    @wrapped('')\n"
            "    def build(self, context, jinja_env, helper):\n        helper = self.method\n"
            f"        return {app}\n\n\n"
            "build = Builds(os.environ['ACME_OVERLAY']).build\n",
        }.get(how, f"def build(context, jinja_env):\n    return {app}\n")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    build = importlib.import_module("acme_helpers").build
    if how.startswith("wrapper"):
        # No variable leads to the values.
        vars(sys.modules["acme_helpers"]).pop("build")
    with a_dag():
        made = LaunchAppOperator(task_id="t", app=build, **OPEN)
    found = run_task(made, FakeExecutionApi())
    sys.modules.pop("acme_helpers")

    assert found.logged("hush-token"), found.error


@pytest.mark.parametrize("how", ["text", "compiled file"])
def test_a_function_without_source_opens_files(secret, tmp_path, monkeypatch, how: str) -> None:
    text = (
        "from airflow_provider_launch.specs import AppDef, Role\n\n\ndef build(context, jinja_env):\n"
        f"    return AppDef('a', [Role('m', 'i', entrypoint='x', metadata={{'docker': '{secret}'}})])\n"
    )
    if how == "text":
        made_here: dict[str, Any] = {}
        exec(compile(text, "<a text>", "exec"), made_here)
        build = made_here["build"]
    else:
        (tmp_path / "acme_compiled.py").write_text(text)
        py_compile.compile(str(tmp_path / "acme_compiled.py"), cfile=str(tmp_path / "acme_compiled.pyc"))
        (tmp_path / "acme_compiled.py").unlink()
        monkeypatch.syspath_prepend(str(tmp_path))
        build = importlib.import_module("acme_compiled").build
    with a_dag():
        made = LaunchAppOperator(task_id="t", app=build, **OPEN)
    found = run_task(made, FakeExecutionApi())
    sys.modules.pop("acme_compiled", None)

    assert found.logged("hush-token"), found.error


@pytest.mark.parametrize("how", ["library", "run"])
def test_a_function_opens_no_file_that_a_library_or_a_hook_put_into_a_helper(
    secret, tmp_path, monkeypatch, how: str
) -> None:
    package = tmp_path / "site-packages" / "acme_library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import os\n\n\ndef helper(path=os.environ['ACME_OVERLAY']):\n    return path\n"
    )
    monkeypatch.setenv("ACME_OVERLAY", str(secret))
    monkeypatch.setitem(support.RUN, "conf", {"file": str(secret)})
    monkeypatch.syspath_prepend(str(package.parent))
    kept: dict[str, str] = {}
    helper = importlib.import_module("acme_library").helper if how == "library" else lambda: kept["file"]
    sys.modules.pop("acme_library", None)
    with a_dag():

        @task.launch(pre_execute=lambda context: kept.update(context["dag_run"].conf), **OPEN)
        def train() -> AppDef:
            return made_of(helper())

        made = train().operator  # type: ignore[attr-defined]

    assert REFUSED in str(run_task(made, FakeExecutionApi()).error)


@pytest.mark.parametrize("how", ["component", "function"])
def test_a_component_of_an_installed_package_opens_files_of_its_modules(
    secret, tmp_path, monkeypatch, how: str
) -> None:
    package = tmp_path / "site-packages" / "acme_apps"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "paths.py").write_text(f"def overlay(size):\n    return {{'gpu': '{secret}'}}[size]\n")
    (package / "apps.py").write_text(
        "from acme_apps.paths import overlay\nfrom airflow_provider_launch.specs import AppDef, Role\n\n\n"
        "def trainer(size: str, lr: str = '') -> AppDef:\n"
        "    role = Role('m', 'i', entrypoint='x', args=[lr], metadata={'docker': overlay(size)})\n"
        "    return AppDef('a', [role])\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setitem(support.RUN, "conf", {"lr": "0.1"})
    with a_dag():
        if how == "component":
            args = {"size": "gpu", "lr": "{{ dag_run.conf['lr'] }}"}
            made = LaunchAppOperator(task_id="t", component="acme_apps.apps:trainer", component_args=args, **OPEN)
        else:

            @task.launch(**OPEN)
            def train(lr: str) -> AppDef:
                from acme_apps.apps import trainer

                return trainer(size="gpu", lr=lr)

            made = train("{{ dag_run.conf['lr'] }}").operator  # type: ignore[attr-defined]
    found = run_task(made, FakeExecutionApi())
    for module in ("acme_apps", "acme_apps.apps", "acme_apps.paths"):
        sys.modules.pop(module, None)

    assert found.logged("hush-token"), found.error


@pytest.mark.parametrize("form", ["with_suffix", "stem", "temporary"])
def test_a_path_of_the_own_name_or_the_temporary_folder_is_opened(secret, tmp_path, monkeypatch, form: str) -> None:
    lines = {
        "with_suffix": "Path(__file__).with_suffix('.yaml')",
        "stem": "Path(__file__).parent / f'{Path(__file__).stem}.yaml'",
        "temporary": "Path(tempfile.gettempdir()) / 'acme-fixed.yaml'",
    }
    (tmp_path / "own_named.py").write_text(
        "import tempfile\nfrom pathlib import Path\nfrom airflow_provider_launch.specs import AppDef, Role\n\n\n"
        "def build(context, jinja_env):\n"
        f"    role = Role('m', 'i', entrypoint='x', metadata={{'docker': str({lines[form]})}})\n"
        "    return AppDef('a', [role])\n"
    )
    # Older than the task, as in a retry.
    for file in ("own_named.yaml", "acme-fixed.yaml"):
        secret.rename(tmp_path / file)
        secret.write_text((tmp_path / file).read_text())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    build = importlib.import_module("own_named").build
    sys.modules.pop("own_named")
    with a_dag():
        made = LaunchAppOperator(task_id="t", app=build, **OPEN)

    assert run_task(made, FakeExecutionApi()).logged("hush-token")


@pytest.mark.parametrize("kind", ["app", "function"])
def test_values_of_a_mapped_group_in_the_dag_file_name_files(secret, kind: str) -> None:
    with a_dag():

        @task_group
        def group(overlay: Any) -> None:
            if kind == "app":
                LaunchAppOperator(task_id="t", app=made_of(overlay), **OPEN)
            else:
                task.launch(task_id="t", **OPEN)(one_of)(overlay)

        made = group.expand(overlay=[str(secret)])
    (inner,) = made.children.values()

    assert run_task(inner, FakeExecutionApi(), map_index=0).logged("hush-token")
