"""Functions name files that their authors wrote, in each ordinary way, and none that a run names in any way."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import gc
import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import task

from airflow_provider_launch.operators._code import Code
from airflow_provider_launch.operators._names import pieces_of
from airflow_provider_launch.operators._values import texts_in
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, InvalidAppError, Role, Workspace
from tests.airflow import support
from tests.airflow.support import START, UNSET, DagRun, FakeExecutionApi, a_dag, run_task
from tests.airflow.test_sources import REFUSED, app_dict, made_of

pytestmark = pytest.mark.usefixtures("absent_engine")

OPEN = {"launch_conn_id": "place", "unavailable_for_s": 0}
LIBRARY = """
import enum
from pathlib import Path

OVERLAYS = Path("FOLDER")


class Place(enum.Enum):
    GPU = "FOLDER" + "/over" + "lay"


class Settings:
    overlay = "FOLDER" + "/over" + "lay"


def path(name):
    return "FOLDER/deep/" + name
"""
DAG_FILE = """
import os
from pathlib import Path

import own_library.nested
from airflow_provider_launch.specs import AppDef, Role
from own_library import paths
from own_library.paths import Place, Settings, path

HERE = Path(__file__).parent
SIZES = {"small": "overlay"}
WAYS = {
    "here": lambda: HERE / "conf" / "overlay",
    "dirname": lambda: os.path.join(os.path.dirname(os.path.abspath(__file__)), "conf", "overlay"),
    "resolve": lambda: Path(__file__).resolve().parent / "conf" / "overlay",
    "parents": lambda: Path(__file__).parents[1] / "overlay",
    "up": lambda: os.path.join(os.path.dirname(__file__), "..", "overlay"),
    "normpath": lambda: os.path.normpath(os.path.join(os.path.dirname(__file__), "..", "overlay")),
    "f-string": lambda: f"{HERE}/conf/{SIZES['small']}",
    "suffix": lambda: f"{HERE}/conf/{SIZES['small']}.yaml",
    "format": lambda: "{}/conf/{}".format(HERE, "overlay"),
    "plus": lambda: str(HERE) + "/conf/" + "overlay",
    "function": lambda: path("overlay"),
    "module": lambda: paths.OVERLAYS / "overlay",
    "dots": lambda: own_library.nested.PLACES[0],
    "enum": lambda: Place.GPU.value,
    "class": lambda: Settings.overlay,
    "home": lambda: Path("~/overlay").expanduser(),
}


def app_of(name):
    return lambda: AppDef("app", [Role("main", "i", entrypoint="x", metadata={"docker": str(WAYS[name]())})])
"""
SAME_FILE = """
import os
from pathlib import Path

import own_library.paths
from airflow.sdk import task
from airflow_provider_launch.specs import AppDef, Role, Workspace
from own_library.paths import Settings
from tests.airflow.support import a_dag

PLACES = {"own": os.environ["OWN_FOLDER"]}
WAYS = {
    "variable": lambda: PLACES["own"] + "/overlay",
    "module": lambda: own_library.paths.OVERLAYS / "overlay",
    "class": lambda: Settings.overlay,
}


def app_of(name):
    return AppDef("app", [Role("main", "i", entrypoint="x", metadata={"docker": str(WAYS[name]())})])


def task_of(name, **given):
    with a_dag() as dag:
        dag.fileloc = __file__

        @task.launch(**given)
        def train(dag_run=None):
            return app_of(name)

        made = train().operator
    assert made.get_dag().fileloc == __file__
    return made
"""
NAMES = [line.partition('"')[2].partition('"')[0] for line in DAG_FILE.splitlines() if ": lambda:" in line]


@pytest.mark.parametrize("name", NAMES)
def test_an_ordinary_path_of_a_function_is_opened(tmp_path, monkeypatch, name: str) -> None:
    """Also where the folder of DAGs is a link, as with git-sync, and the run has a configuration."""
    dags = tmp_path / "versions" / "dags"
    (dags / "conf").mkdir(parents=True)
    library = tmp_path / "library"
    for folder in (library / "deep", tmp_path / "home"):
        folder.mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "home", library, library / "deep", dags.parent, dags / "conf"):
        for file in ("overlay", "overlay.yaml"):
            (folder / file).write_text("Container: {Labels: {seen: hush-token}}\n")
    (dags / "ordinary_dag.py").write_text(DAG_FILE)
    (tmp_path / "own_library").mkdir()
    (tmp_path / "own_library" / "nested.py").write_text(f"PLACES = ['{library}' + '/over' + 'lay.yaml'][:]\n")
    (tmp_path / "own_library" / "paths.py").write_text(LIBRARY.replace("FOLDER", str(library)))
    (tmp_path / "linked").symlink_to(dags)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder in (tmp_path, tmp_path / "linked"):
        monkeypatch.syspath_prepend(str(folder))
    for module in ("ordinary_dag", "own_library", "own_library.paths", "own_library.nested"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(support.RUN, "conf", {"rate": "0.1"})
    build = importlib.import_module("ordinary_dag").app_of(name)
    with a_dag():
        made = task.launch(task_id="t", **OPEN)(build)().operator

    found = run_task(made, FakeExecutionApi())

    # `parents` and `up` of a link name another folder than for the file system.
    assert REFUSED not in str(found.error)
    assert found.logged("hush-token")


@pytest.mark.parametrize("name", ["variable", "module", "class"])
def test_a_function_in_the_dag_file_sees_its_variables(tmp_path, monkeypatch, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    for folder in (tmp_path / "own_library", elsewhere):
        folder.mkdir()
    (tmp_path / "own_library" / "paths.py").write_text(LIBRARY.replace("FOLDER", str(elsewhere)))
    (elsewhere / "overlay").write_text("Container: {Labels: {seen: hush-token}}\n")
    (tmp_path / "same_file_dag.py").write_text(SAME_FILE)
    monkeypatch.setenv("OWN_FOLDER", str(elsewhere))
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("same_file_dag", "own_library", "own_library.paths"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(support.RUN, "conf", {"rate": "0.1"})
    made = importlib.import_module("same_file_dag").task_of(name, **OPEN)

    assert run_task(made, FakeExecutionApi()).logged("hush-token")


@pytest.mark.engine("local")
def test_a_function_may_name_the_folder_of_the_dag_file_by_a_mark(monkeypatch, tmp_path) -> None:
    (tmp_path / "seen.txt").write_text("")
    with a_dag() as dag:

        @task.launch()
        def train() -> AppDef:
            return AppDef("app", [Role("main", "", entrypoint="ls", workspace=Workspace({".": ""}))])

        made = train().operator  # type: ignore[attr-defined]
    dag.fileloc = str(tmp_path / "dag.py")

    assert run_task(made, FakeExecutionApi()).logged("seen.txt")


@pytest.mark.parametrize("how", ["args", "list", "keywords", "component", "mapped component"])
def test_a_mapped_component_of_a_run_calls_nothing(tmp_path, how: str) -> None:
    """Airflow makes the task on the worker, with values of the run."""
    (tmp_path / "one.yaml").write_text(f"app: {{_target_: builtins.open, _args_: [{tmp_path / 'opened'}, w]}}\n")
    (tmp_path / "theirs.py").write_text(
        "from airflow_provider_launch.specs import AppDef, Role\n\n\n"
        "def made() -> AppDef:\n    return AppDef('a', [Role('r', 'i', entrypoint='x')])\n\n\n"
        f"open('{tmp_path / 'opened'}', 'w')\n"
    )
    config = {"config_dir": str(tmp_path), "config_name": "one"}
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = {
        "args": [config],
        "list": [["-cd", str(tmp_path), "-cn", "one"]],
        "keywords": [{"component_args": config}],
        "component": [{"component": f"{tmp_path}/theirs.py:made"}],
    }.get(how, [f"{tmp_path}/theirs.py:made"])
    with a_dag():

        @task
        def make() -> int:
            return 1

        given: Any = make()
        part = LaunchAppOperator.partial(
            task_id="t", **({} if "component" in how else {"component": "utils.hydra"}), **OPEN
        )
        if how == "mapped component":
            with pytest.raises(InvalidAppError, match="component comes from a run"):
                part.expand(component=given)
            part._expand_called = True  # no warning about an unused part
            return
        made: Any = part.expand(component_args=given) if how in {"args", "list"} else part.expand_kwargs(given)
    gc.disable()
    try:
        with contextlib.suppress(InvalidAppError):
            assert run_task(made, api, map_index=0).state == "failed"
    finally:
        gc.enable()

    assert not (tmp_path / "opened").exists()


@pytest.mark.engine("local")
def test_a_parameter_of_a_function_may_have_the_name_component() -> None:
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [{"component": "engine"}]
    with a_dag():

        @task
        def make() -> int:
            return 1

        @task.launch()
        def show(component: str) -> AppDef:
            return AppDef("app", [Role("main", "", entrypoint="echo", args=["got", component])])

        made: Any = show.expand_kwargs(make()).operator  # type: ignore[arg-type, attr-defined]

    assert run_task(made, api, map_index=0).logged("got engine")


def test_without_a_list_of_temporary_files_none_is_new(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    code = Code()
    (tmp_path / "gone" / "theirs").mkdir(parents=True)

    assert not code.names(str(tmp_path / "gone" / "theirs"))


@pytest.mark.parametrize("how", ["delimiters", "set"])
def test_arguments_that_are_not_plain_text_are_not_free(secret, monkeypatch, how: str) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_PLACE", str(secret))
    with a_dag() as dag:
        dag.jinja_environment_kwargs = {"variable_start_string": "[[", "variable_end_string": "]]"}
        text = "[[ var.value.place ]]"
        args: dict[str, Any] = {"overlay": text} if how == "delimiters" else {"overlays": {text}}
        name = "one_of" if how == "delimiters" else "any_of"
        made = LaunchAppOperator(task_id="t", component=f"{__name__}:{name}", component_args=args, **OPEN)
    found = run_task(made, FakeExecutionApi())

    assert found.state == "failed"
    assert not found.logged("hush-token")


def one_of(overlay: str) -> AppDef:
    return made_of(overlay)


def any_of(overlays: object) -> AppDef:
    return made_of(next(iter(overlays)))  # type: ignore[call-overload]


@pytest.mark.engine("local")
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "of another"])
def test_a_temporary_folder_of_the_function_is_a_workspace(tmp_path, monkeypatch, is_new: bool) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("of another")
    monkeypatch.setitem(support.RUN, "conf", {"folder": str(tmp_path / "other"), "rate": "a rate of the run"})
    with a_dag():

        @task.launch()
        def train(dag_run: Any = None) -> AppDef:
            folder = dag_run.conf["folder"]
            if is_new:
                folder = tempfile.mkdtemp()
                (Path(folder) / "config.json").write_text(dag_run.conf["rate"])
            role = Role("main", "", entrypoint="cat", args=["config.json"], workspace=Workspace({folder: ""}))
            return AppDef("app", [role])

        made = train().operator  # type: ignore[attr-defined]
    found = run_task(made, FakeExecutionApi())

    assert found.logged("a rate of the run") is is_new
    assert (REFUSED in str(found.error)) is not is_new


KEPT: dict[str, str] = {}


@dataclasses.dataclass
class Settings:
    overlay: str = ""


SETTINGS = Settings()


class KeepsTheRun:
    def __call__(self, context: Any, jinja_env: Any) -> AppDef:
        self.file = context["dag_run"].conf["file"]
        return made_of(self.file)


def keeps_in_a_mapping(context: Any, jinja_env: Any) -> AppDef:
    KEPT["file"] = context["dag_run"].conf["file"]
    return made_of(KEPT["file"])


def keeps_in_settings(context: Any, jinja_env: Any) -> AppDef:
    SETTINGS.overlay = context["dag_run"].conf["file"]
    return made_of(SETTINGS.overlay)


@pytest.mark.parametrize("is_mapped", [False, True], ids=["plain", "mapped"])
@pytest.mark.parametrize(
    "how", [KeepsTheRun(), keeps_in_a_mapping, keeps_in_settings], ids=["object", "mapping", "settings"]
)
def test_a_function_that_keeps_a_text_of_a_run_opens_nothing(secret, monkeypatch, how: Any, is_mapped: bool) -> None:
    monkeypatch.setitem(support.RUN, "conf", {"file": str(secret)})
    with a_dag():
        if is_mapped:
            made: Any = LaunchAppOperator.partial(task_id="t", app=how, **OPEN).expand(time_limit_s=[60])
        else:
            made = LaunchAppOperator(task_id="t", app=how, **OPEN)

    found = run_task(made, FakeExecutionApi(), map_index=0 if is_mapped else -1)

    assert REFUSED in str(found.error)


EVENT = {
    "asset": {"name": "a", "uri": "s3://a/b", "extra": {}},
    "timestamp": START,
    "source_aliases": [],
    **dict.fromkeys(("source_task_id", "source_dag_id", "source_run_id", "source_map_index")),
    **({"partition_key": None} if "partition_key" in UNSET else {}),
}


@pytest.mark.parametrize("how", ["note", "event", "pulled"])
def test_a_function_opens_nothing_of_a_run_in_its_context(secret, monkeypatch, how: str) -> None:
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = str(secret)
    monkeypatch.setitem(support.RUN, "consumed_asset_events", [{**EVENT, "extra": {"path": str(secret)}}])
    if how == "note":
        if "note" not in DagRun.model_fields:
            pytest.skip("a run of this Airflow has no note")
        monkeypatch.setitem(support.RUN, "note", str(secret))
    with a_dag():

        @task.launch(**OPEN)
        def train(dag_run: Any = None, ti: Any = None) -> AppDef:
            if how == "pulled":
                return made_of(ti.xcom_pull(task_ids="make", map_indexes=-1))
            return made_of(dag_run.note if how == "note" else dag_run.consumed_asset_events[0].extra["path"])

        made = train().operator  # type: ignore[attr-defined]

    assert REFUSED in str(run_task(made, api).error)


def first(overlays: list[str]) -> AppDef:
    return made_of(overlays[0])


def variadic(*overlays: str) -> AppDef:
    return made_of(overlays[0])


@pytest.mark.parametrize("component", ["variadic", None])
def test_a_sequence_of_an_xcom_names_no_file(secret, component: str | None) -> None:
    """Airflow gives a sequence of its own, not a list."""
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [str(secret)]
    with a_dag():

        @task
        def make() -> int:
            return 1

        @task.launch(**OPEN)
        def train(paths: Any) -> AppDef:
            return made_of(paths[0])

        given = make().map(lambda path: path)  # type: ignore[attr-defined]
        if component:
            args = {"overlays": given}
            made: Any = LaunchAppOperator(task_id="t", component=f"{__name__}:{component}", component_args=args, **OPEN)
        else:
            made = train(given).operator  # type: ignore[attr-defined]

    assert REFUSED in str(run_task(made, api).error)


@pytest.mark.parametrize("how", ["function", "nested", "args", "list", "app", "map", "element"])
def test_keyword_arguments_of_an_xcom_name_no_file(secret, how: str) -> None:
    api = FakeExecutionApi()
    path = str(secret)
    api.xcoms["make", "return_value"] = {
        "nested": [{"x": [path]}],
        "args": [{"component_args": {"overlays": [path]}}],
        "list": [{"component_args": [f"--overlays={path}"]}],
        "app": [{"app": app_dict(path)}],
        "map": [path],
        "element": {"x": path},
    }.get(how, [{"x": path}])
    with a_dag():

        @task
        def make() -> int:
            return 1

        @task.launch(**OPEN)
        def train(x: Any = None) -> AppDef:
            return made_of(x if isinstance(x, str) else x[0])

        given: Any = {"map": lambda: make().map(lambda each: {"x": each}), "element": lambda: [make()]}.get(how, make)()
        if how in {"args", "list", "app"}:
            component = {} if how == "app" else {"component": f"{__name__}:first"}
            made: Any = LaunchAppOperator.partial(task_id="t", **component, **OPEN).expand_kwargs(given)
        else:
            made = train.expand_kwargs(given).operator  # type: ignore[attr-defined]
    # Airflow compares identities.
    gc.disable()
    try:
        found = run_task(made, api, map_index=0)
    finally:
        gc.enable()

    assert REFUSED in str(found.error)
    assert not found.logged("hush-token")


@pytest.mark.engine("local")
@pytest.mark.parametrize("is_written", [True, False], ids=["of the DAG file", "of an XCom"])
def test_templates_in_keyword_arguments_are_rendered_if_the_dag_file_has_them(monkeypatch, is_written: bool) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_WORD", "value-of-a-variable")
    api = FakeExecutionApi()
    role = {"name": "m", "image": "", "entrypoint": "echo", "args": ["got", "{{ var.value.word }}"]}
    elements = [{"app": {"name": "a", "roles": [role]}}]
    api.xcoms["make", "return_value"] = elements
    with a_dag():

        @task
        def make() -> int:
            return 1

        made: Any = LaunchAppOperator.partial(task_id="t").expand_kwargs(elements if is_written else make())  # type: ignore[arg-type]
    found = run_task(made, api, map_index=0)

    assert found.logged("got value-of-a-variable") is is_written


@pytest.mark.engine("local")
def test_templates_in_keyword_arguments_of_a_function_on_an_engine_are_data(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_WORD", "value-of-a-variable")
    api = FakeExecutionApi()
    api.xcoms["make", "return_value"] = [{"word": "{{ var.value.word }}"}]
    with a_dag():

        @task
        def make() -> int:
            return 1

        @task.launch_python()
        def show(word: str) -> None:
            print("got", word)  # noqa: T201 - what the task shows

        made: Any = show.expand_kwargs(make()).operator  # type: ignore[arg-type, attr-defined]
    gc.disable()
    try:
        found = run_task(made, api, map_index=0)
    finally:
        gc.enable()

    assert found.logged("got {{ var.value.word }}"), found.error
    assert not found.logged("value-of-a-variable")


@pytest.mark.parametrize("given", ["/", "..", "../..", ".", "", "~"])
def test_a_mark_of_a_run_is_no_workspace(tmp_path, monkeypatch, given: str) -> None:
    """The code of many functions contains such texts."""
    monkeypatch.setitem(support.RUN, "conf", {"place": given})
    (tmp_path / "acme_mirrored.py").write_text(
        "from airflow_provider_launch.specs import AppDef, Role, Workspace\n\n"
        "MARKS = ['/', '..', '../..', '.', '~']\n\n\n"
        "def mirrored(workspace: str) -> AppDef:\n"
        "    return AppDef('app', [Role('main', '', entrypoint='ls', workspace=Workspace({workspace: ''}))])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with a_dag():
        made = LaunchAppOperator(
            task_id="t",
            component="acme_mirrored:mirrored",
            component_args={"workspace": "{{ dag_run.conf['place'] }}"},
        )
    found = run_task(made, FakeExecutionApi())
    sys.modules.pop("acme_mirrored", None)

    assert REFUSED in str(found.error)


ROLES = {
    "function": "def role():\n    return made(Workspace.from_str('.'))",
    "mapping": "def role():\n    return made(Workspace({'.': ''}))",
    "default": "def role(workspace='.'):\n    return made(Workspace.from_str(workspace))",
    "default by name": "def role(*, size=1, workspace='.'):\n    return made(Workspace.from_str(workspace))",
    "variable": "CODE = '.'\n\n\ndef role():\n    return made(Workspace.from_str(CODE))",
    "method": "class Own:\n    def role(self):\n        return made(Workspace.from_str('.'))\n\n\nrole = Own().role",
}


@pytest.mark.parametrize("kind", ["component", "function"])
@pytest.mark.parametrize("how", ROLES)
def test_a_helper_may_name_the_folder_of_the_dag_file_by_a_mark(tmp_path, monkeypatch, how: str, kind: str) -> None:
    start = "from airflow_provider_launch.specs import AppDef, Role, Workspace\n"
    (tmp_path / "acme_roles.py").write_text(
        f"{start}\n\ndef made(workspace):\n    return Role('m', 'i', entrypoint='x', workspace=workspace)\n\n\n"
        f"{ROLES[how]}\n"
    )
    (tmp_path / "acme_built.py").write_text(
        f"from acme_roles import role\n{start}\n\ndef build(rate: str) -> AppDef:\n    return AppDef('a', [role()])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    rate = "{{ ti.task_id }}"
    with a_dag() as dag:
        dag.fileloc = str(tmp_path / "dag.py")
        if kind == "component":
            made = LaunchAppOperator(task_id="t", component="acme_built:build", component_args={"rate": rate}, **OPEN)
        else:
            build = importlib.import_module("acme_built").build
            made = task.launch(task_id="t", **OPEN)(build)(rate).operator
    found = run_task(made, FakeExecutionApi())
    for module in ("acme_built", "acme_roles"):
        sys.modules.pop(module, None)

    assert found.error is not None
    assert REFUSED not in str(found.error)


def test_a_file_is_searched_for_marks_once(tmp_path, monkeypatch) -> None:
    """Not for each method of a class."""
    (tmp_path / "acme_methods.py").write_text(
        "workspace = None\n\n\nclass Own:\n"
        + "".join(f"    def method_{number}(self):\n        pass\n\n" for number in range(9))
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = importlib.import_module("acme_methods").Own
    sys.modules.pop("acme_methods")
    walked: list[Any] = []
    walk = ast.walk
    monkeypatch.setattr(ast, "walk", lambda tree: walked.append(tree) or walk(tree))
    Code([getattr(kind, f"method_{number}") for number in range(9)])

    assert len(walked) == 1


TABLE = "TABLE = {str(i): 'v%d' % i for i in range(12000)}\n"
LARGE = {
    "classes": "".join(f"class M{i}:\n    def of_{i}(self, a_{i}, b_{i}):\n        return M0\n" for i in range(900)),
    "base": f"class Base:\n    {TABLE}"
    + "".join(f"class M{i}(Base):\n    def get(self):\n        return M{i}, self.TABLE\n" for i in range(300)),
    "decorated": "import functools\n"
    + TABLE
    + "def keep(function, table=TABLE):\n    @functools.wraps(function)\n    def wrapper(*args):\n"
    + "        return table, function(*args)\n    return wrapper\nclass M0:\n"
    + "".join(f"    @keep\n    def m{i}(self):\n        return {i}\n" for i in range(300)),
    "settings": "class Place:\n    def __init__(self, root):\n        self.root = root\n"
    + TABLE
    + "".join(f"S{i} = Place(TABLE)\ndef h{i}():\n    return S{i}.root\n" for i in range(300))
    + "class M0:\n    def __init__(self):\n        return "
    + ", ".join(f"h{i}()" for i in range(300))
    + "\n",
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_large_module_is_read_in_little_time(tmp_path, monkeypatch, kind: str) -> None:
    """Each value and each class is read once, whatever names it."""
    (tmp_path / f"own_large_{kind}.py").write_text(LARGE[kind])
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(f"own_large_{kind}")
    function = module.M0 if kind != "classes" else module.M0.of_0
    began = time.process_time()
    code = Code([function])
    found = pieces_of([module.M0], [], code.is_of_author) if kind == "settings" else code.texts
    sys.modules.pop(module.__name__)

    assert time.process_time() - began < 1
    assert kind == "classes" or "v11999" in found


def test_the_paths_of_many_roles_are_searched_in_little_time() -> None:
    code = Code(texts={*(f"text number {i}" for i in range(20_000)), "/opt/conf/a.yaml"})
    began = time.process_time()

    assert all(code.names("/opt/conf/a.yaml") for _ in range(100))
    assert time.process_time() - began < 1


def test_an_object_with_the_address_of_another_one_is_read() -> None:
    """Python gives the address of an object that is gone to the next one."""
    seen: dict[int, Any] = {}
    texts = [texts_in([[str(i)]], lambda _: False, seen=seen) for i in range(100)]

    assert texts == [{str(i)} for i in range(100)]
