"""Components by name."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap

import pytest

import airflow_provider_launch.components
from airflow_provider_launch import plugins
from airflow_provider_launch.components import utils
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.builders import build_app
from airflow_provider_launch.specs.finder import (
    ComponentNotFoundException,
    ComponentValidationException,
    CustomComponentsFinder,
    ModuleComponentsFinder,
    get_builtin_source,
    get_component,
    get_components,
    module_relname,
)

BUILTIN = [
    "dist.ddp",
    "dist.spmd",
    "utils.binary",
    "utils.booth",
    "utils.copy",
    "utils.echo",
    "utils.hydra",
    "utils.python",
    "utils.sh",
    "utils.touch",
]
COMPONENT = """
from airflow_provider_launch.specs import AppDef, Role

def {name}(a: str = "x") -> AppDef:
    "One of theirs."
    return AppDef({name!r}, [Role("r", "", entrypoint="echo", args=[a])])
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """An installed package with components, which has entry points for them."""
    root = tmp_path / "site"
    package = root / "their_components"
    (package / "sub").mkdir(parents=True)
    (package / "namespace").mkdir()
    (package / "__init__.py").write_text(COMPONENT.format(name="top"))
    (package / "sub" / "__init__.py").write_text("")
    (package / "sub" / "deep.py").write_text(
        COMPONENT.format(name="fn") + "\ndef wrong(a): ...\n\ndef _private() -> AppDef: ...\n"
    )
    (package / "utils.py").write_text(COMPONENT.format(name="echo") + COMPONENT.format(name="other"))
    (package / "broken.py").write_text("import no_such_module_at_all\n")
    (package / "namespace" / "hidden.py").write_text(COMPONENT.format(name="fn"))
    info = root / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    lines = ["foo = their_components", "_bare = their_components", "one = their_components.sub.deep:fn"]
    lines.append("bad = no_such_module_at_all")
    (info / "entry_points.txt").write_text("\n".join(["[airflow_provider_launch.components]", *lines]))
    monkeypatch.syspath_prepend(root)
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "their_components"]:
        del sys.modules[name]


@pytest.fixture
def registered():
    yield
    plugins.registry.clear()


def test_builtin_components_are_found():
    assert sorted(get_components()) == BUILTIN
    found = get_component("utils.echo")
    assert (found.name, found.fn_name, found.fn) == ("utils.echo", "echo", utils.echo)
    assert found.description == "Write a message to stdout."
    assert found.validation_errors == []


@pytest.mark.usefixtures("theirs")
@pytest.mark.filterwarnings("default")
def test_entry_points_add_components_and_go_before_builtin_ones():
    found = get_components()

    assert set(BUILTIN) <= set(found)
    added = {"foo.top", "foo.sub.deep.fn", "foo.utils.echo", "foo.utils.other", "top", "sub.deep.fn", "utils.other"}
    assert set(found) - set(BUILTIN) == {*added, "one"}
    assert found["utils.echo"].fn().name == "echo"
    assert found["utils.echo"].fn.__module__ == "their_components.utils"
    assert get_component("utils.echo").fn.__module__ == "their_components.utils"
    assert get_component("utils.sh").fn is utils.sh
    assert get_component("foo.sub.deep.fn").fn_name == "fn"
    assert get_component("one").fn().name == "fn"


def test_an_entry_point_may_give_a_function_without_a_prefix(theirs):
    """As in TorchX: the name is that of the function."""
    entry_points = theirs.parent / "theirs-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text("[airflow_provider_launch.components]\n_two = their_components:top\n")

    assert get_component("top").fn().name == "top"
    assert "top" in get_components()


@pytest.mark.usefixtures("theirs")
def test_an_entry_point_that_cannot_be_imported_is_left_out_with_a_warning(caplog):
    """The components of the package are missing, and only the warning has the reason."""
    found = get_components()

    assert "one" in found
    reason = "ModuleNotFoundError: No module named 'no_such_module_at_all'"
    assert f"skipping the components of entry point bad: {reason}" in caplog.text


@pytest.mark.usefixtures("theirs")
def test_an_invalid_component_is_reported_with_reasons():
    with pytest.raises(ComponentValidationException, match=r"Missing type annotation for argument 'a'(.|\n)*return"):
        get_component("foo.sub.deep.wrong")
    with pytest.raises(ComponentNotFoundException, match=r"'foo\.namespace\.hidden\.fn'"):
        get_component("foo.namespace.hidden.fn")
    with pytest.raises(ComponentNotFoundException):
        get_component("foo.sub.deep._private")
    errors = {
        found.name: found.validation_errors for found in ModuleComponentsFinder("their_components.sub").find(None)
    }
    assert errors["deep.fn"] == []
    assert len(errors["deep.wrong"]) == 2


@pytest.mark.usefixtures("theirs")
def test_an_import_error_of_a_module_is_passed_on():
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        get_component("their_components.broken:fn")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        get_component("foo.broken.fn")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        get_component("bad.fn")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("import no_such_module_at_all", ModuleNotFoundError),
        ("raise ModuleNotFoundError('no_such_module_at_all')", ModuleNotFoundError),
        ("import json\njson.no_such_module_at_all", AttributeError),
    ],
    ids=["import", "raise", "attribute"],
)
def test_an_error_of_a_package_or_module_is_not_taken_for_a_missing_component(theirs, line, error):
    (theirs / "package").mkdir()
    (theirs / "package" / "__init__.py").write_text(line)
    (theirs / "package" / "mod.py").write_text(COMPONENT.format(name="fn"))

    for name in ("foo.package.mod.fn", "their_components.package:fn"):
        with pytest.raises(error, match="no_such_module_at_all"):
            get_component(name)


@pytest.mark.usefixtures("theirs")
def test_nothing_is_below_a_module_that_is_not_a_package():
    with pytest.raises(ComponentNotFoundException, match=r"'foo\.sub\.deep\.below\.fn' does not exist"):
        get_component("foo.sub.deep.below.fn")


@pytest.mark.usefixtures("registered")
def test_a_registered_function_goes_before_all():
    @plugins.register.component("utils.echo")
    def mine(a: str = "x") -> AppDef:
        return AppDef("mine", [Role("r", "", entrypoint="true", args=[a])])

    assert get_component("utils.echo").fn is mine
    assert get_components()["utils.echo"].fn_name == "mine"


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("name", ["their_components.sub.deep:fn", "their_components.sub.deep.fn"])
def test_a_module_can_be_named(name):
    assert build_app(get_component(name).fn, {"a": "y"}).roles[0].args == ["y"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("utils.ehco", "did you mean 'utils.echo'?"),
        ("zzz", "there are dist.ddp, dist.spmd, utils.binary"),
        ("no.such.module:fn", "component 'no.such.module:fn'"),
        ("json:no_such_function", "component 'json:no_such_function'"),
        ("no/such/file.py:fn", "'no/such/file.py' does not exist"),
        ("", "component '' does not exist"),
    ],
)
def test_the_error_for_an_unknown_name_proposes_one(name, text):
    with pytest.raises(ComponentNotFoundException) as caught:
        get_component(name)

    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["json:JSONDecoder", "json.JSONDecoder", "string:digits"])
def test_only_a_function_is_a_component(name):
    with pytest.raises(ComponentValidationException, match="not a function; write a function that returns an AppDef"):
        get_component(name)


def test_a_file_without_the_function_has_no_such_component(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(COMPONENT.format(name="mine"))
    with pytest.raises(ComponentNotFoundException, match="has no function 'other'"):
        get_component(f"{path}:other")


def test_a_function_of_a_file_is_a_component(tmp_path, monkeypatch):
    """The file is a module: dataclasses and pickle work, and it can import files next to it."""
    (tmp_path / "sibling_component.py").write_text("NAME = 'from its folder'\n")
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
            from __future__ import annotations
            import dataclasses
            import sibling_component
            from airflow_provider_launch.specs import AppDef, Role

            @dataclasses.dataclass
            class Point:
                x: int

            def train(x: int = 1) -> AppDef:
                return AppDef(sibling_component.NAME, [Role("r", "", entrypoint="true")], {"point": Point(x)})

            def wrong(x) -> AppDef: ...

            later: AppDef
        """)
    )
    before = [*sys.path]
    app = build_app(get_component(f"{tmp_path}/mine.py:train").fn, {"x": 4})

    assert app.name == "from its folder"
    assert pickle.loads(pickle.dumps(app.metadata["point"])).x == 4
    assert sys.path == before
    monkeypatch.chdir(tmp_path)
    assert get_component("mine.py:train").name == "mine.py:train"
    assert CustomComponentsFinder("mine.py", "train").find(None)[0].fn_name == "train"
    with pytest.raises(ComponentValidationException, match="Missing type annotation"):
        get_component("mine.py:wrong")
    with pytest.raises(ComponentNotFoundException, match=r"file 'mine.py' has no function 'none'"):
        get_component("mine.py:none")


def test_a_file_with_a_syntax_error_is_not_run(tmp_path):
    (tmp_path / "bad.py").write_text("raise SystemExit\ndef fn(:\n")

    with pytest.raises(ComponentValidationException, match="invalid syntax"):
        get_component(f"{tmp_path}/bad.py:fn")


def test_a_file_is_run_again_when_it_has_changed(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(COMPONENT.format(name="fn"))
    first = get_component(f"{path}:fn").fn
    assert get_component(f"{path}:fn").fn is first

    path.write_text(COMPONENT.format(name="fn").replace('"x"', '"changed"'))

    assert get_component(f"{path}:fn").fn().roles[0].args == ["changed"]


@pytest.mark.parametrize("name", BUILTIN)
def test_the_source_of_a_builtin_is_a_file_of_its_own(name, tmp_path):
    path = tmp_path / "copied.py"
    path.write_text(get_builtin_source(name))
    fn = name.rpartition(".")[2]
    arguments = {"ddp": {"script": "a.py"}, "spmd": {"script": "a.py"}, "binary": {"entrypoint": "x"}}
    arguments |= {
        "touch": {"file": "x"},
        "copy": {"src": "a", "dst": "b"},
        "python": {"m": "a.b"},
        "booth": {"x1": 1.0, "x2": 3.0},
    }

    component = get_component(f"{path}:{fn}")

    if fn != "hydra":
        again = build_app(component.fn, arguments.get(fn, {}))
        assert again == build_app(get_component(name).fn, arguments.get(fn, {}))


def test_an_unknown_builtin_has_no_source():
    with pytest.raises(ComponentNotFoundException):
        get_builtin_source("utils.nothing")


def test_a_module_has_a_name_below_another():
    assert module_relname(utils, airflow_provider_launch.components) == "utils"
    assert module_relname(utils, utils) == ""
    with pytest.raises(ValueError, match="is not below"):
        module_relname(airflow_provider_launch.components, utils)


def test_a_builtin_is_found_without_a_search_of_all():
    """A DAG file that names one component does not pay for the others."""
    code = (
        "import sys; from airflow_provider_launch.specs.finder import get_component; get_component('utils.echo'); "
        "print([name for name in sys.modules if name.startswith('airflow_provider_launch.components.dist')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_file_that_fails_leaves_no_module_and_no_path(tmp_path):
    """The module of the last good version stays, because its functions may be in use."""
    path, before = tmp_path / "mine.py", [*sys.path]
    broken = "VERSION = 2\n1 / 0\n" + COMPONENT.format(name="fn")
    path.write_text(broken)
    modules = set(sys.modules)
    with pytest.raises(ZeroDivisionError):
        get_component(f"{path}:fn")
    assert {name for name in set(sys.modules) - modules if "component" in name} == set()
    assert sys.path == before

    path.write_text("VERSION = 1\n" + COMPONENT.format(name="fn"))
    name = get_component(f"{path}:fn").fn.__module__
    path.write_text(broken)
    with pytest.raises(ZeroDivisionError):
        get_component(f"{path}:fn")

    assert sys.modules[name].VERSION == 1
    assert sys.path == before
