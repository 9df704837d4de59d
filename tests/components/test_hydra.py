"""Apps from Hydra configs."""

from __future__ import annotations

import sys

import pytest

from airflow_provider_launch.specs import AppDef, RetryPolicy, Role
from airflow_provider_launch.specs.builders import build_app
from airflow_provider_launch.specs.errors import InvalidAppError, MissingDependencyError
from airflow_provider_launch.specs.finder import get_component

CONFIG = """
n: 2
app:
  _target_: airflow_provider_launch.specs.AppDef
  name: from-config
  roles:
    - _target_: airflow_provider_launch.specs.Role
      name: r
      image: ""
      entrypoint: echo
      args: ["${torchx.app_id:}", "${launch.replica_id:}"]
      num_replicas: ${n}
      port_map: {a: 1}
"""


@pytest.fixture
def hydra(tmp_path):
    (tmp_path / "one.yaml").write_text(CONFIG)
    (tmp_path / "none.yaml").write_text("a: 1\n")
    joined = CONFIG.replace("name: from-config", "name: ${a}${b}")
    (tmp_path / "joined.yaml").write_text(f"a: x\nb: y\n{joined}")
    (tmp_path / "other.yaml").write_text("app: {_target_: builtins.dict}\n")
    fn = get_component("utils.hydra").fn
    return lambda *arguments: build_app(fn, ["-cd", str(tmp_path), *arguments])


def test_a_config_gives_an_app_and_overrides_change_it(hydra):
    role = Role("r", "", entrypoint="echo", args=["${app_id}", "${replica_id}"], num_replicas=3, port_map={"a": 1})

    app = hydra("-cn", "one", "n=3")

    assert app == AppDef("from-config", [role])
    assert type(app.roles[0].args) is list
    assert type(app.roles[0].retry_policy) is RetryPolicy
    assert hydra("--config_name", "one").roles[0].num_replicas == 2


@pytest.mark.parametrize(("name", "text"), [("none", "no key 'app'"), ("other", "must give an AppDef, not dict")])
def test_a_config_without_an_app_is_refused(hydra, name, text):
    with pytest.raises(InvalidAppError, match=text):
        hydra("-cn", name)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(InvalidAppError, match="is not a directory"):
        build_app(get_component("utils.hydra").fn, ["-cn", "x", "-cd", str(tmp_path / "no")])


def test_without_hydra_the_extra_is_named(hydra, monkeypatch):
    monkeypatch.setitem(sys.modules, "hydra", None)

    with pytest.raises(MissingDependencyError, match="the extra 'hydra' of airflow-provider-launch"):
        hydra("-cn", "one")


@pytest.mark.parametrize(
    "override",
    [
        "app.name={_target_: builtins.open, _args_: [FILE, w]}",
        "+app.metadata={a: [{b: {_target_: builtins.open, _args_: [FILE, w]}}]}",
        "+app.metadata._target_=builtins.open",
        "+group@app=../../outside",
        "+group@app='../../outside'",
        "+group@app=[a,../../outside]",
    ],
)
def test_an_override_names_neither_code_nor_another_file(hydra, tmp_path, override):
    """A run may choose the value of an override, and the worker would open and call everything in it."""
    file = tmp_path / "opened"
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "a.yaml").write_text("max_retries: 1\n")
    (tmp_path.parent / "outside.yaml").write_text(f"metadata: {{_target_: builtins.open, _args_: [{file}, w]}}\n")

    with pytest.raises(InvalidAppError, match=r"has _target_, which calls|outside of config_dir"):
        hydra("-cn", "one", override.replace("FILE", str(file)))
    assert not file.exists()


@pytest.mark.parametrize(
    "overrides",
    [
        ["app.name=${oc.env:WORKER_SECRET}"],
        ["app.name='\\${oc.env:WORKER_SECRET}'"],
        ["app.roles.0.args=['a ${oc.env:WORKER_SECRET}']"],
        ["app.name=$\\{oc.env:WORKER_SECRET\\}"],
        ["+app.metadata.x={a: [$\\{oc.env:WORKER_SECRET\\}]}"],
        [
            "+a='{_tar'",
            "+b='get_: builtins.open, _args_: [FILE, w]}'",
            "+c=$\\{a\\}$\\{b\\}",
            "app.name=$\\{oc.create:$\\{oc.decode:$\\{c\\}\\}\\}",
        ],
        ["+part=_tar", "app.name='${oc.create:${oc.decode:\"{${part}get_: builtins.open, _args_: [FILE, w]}\"}}'"],
        ["hydra.searchpath=[file://ELSEWHERE]", "+group=evil"],
        ["++hydra.searchpath=[file://ELSEWHERE]", "+group=evil"],
        ["hydra/launcher=../../elsewhere/group/evil"],
    ],
)
def test_an_override_is_data(hydra, tmp_path, monkeypatch, overrides):
    """Interpolations read variables of the worker and make configs of functions; a search path leads to other files."""
    file, elsewhere = tmp_path / "opened", tmp_path.parent / "elsewhere"
    (elsewhere / "group").mkdir(parents=True, exist_ok=True)
    (elsewhere / "group" / "evil.yaml").write_text(
        f"# @package _global_\napp: {{name: {{_target_: builtins.open, _args_: [{file}, w]}}}}\n"
    )
    monkeypatch.setenv("WORKER_SECRET", "hush")

    with pytest.raises(InvalidAppError, match=r"interpolation that is not a macro|changes Hydra itself"):
        hydra(
            "-cn", "one", *(each.replace("FILE", str(file)).replace("ELSEWHERE", str(elsewhere)) for each in overrides)
        )
    assert not file.exists()


@pytest.mark.parametrize("target", ["${cls}", "builtins.${part}", "${oc.env:NOT_SET,${cls}}"])
def test_an_override_does_not_choose_the_function_of_an_open_config(hydra, tmp_path, target):
    file = tmp_path / "opened"
    role = "_target_: airflow_provider_launch.specs.Role"
    text = CONFIG.replace(role, f"_target_: {target}").replace("name: r", "_args_: [x, w]")
    (tmp_path / "open.yaml").write_text(f"cls: {role.partition(' ')[2]}\npart: open\n{text}")
    (tmp_path / "through.yaml").write_text(
        f"cls: builtins.dict\npart: dict\nall: {{_target_: '{target}'}}\n"
        + CONFIG.replace("name: from-config", "metadata: ${all}\n  name: x")
    )
    override = "part=open" if "part" in target else "cls=builtins.open"

    with pytest.raises(InvalidAppError, match=r"an override chooses the function 'builtins\.open'"):
        hydra("-cn", "open", override, f"app.roles.0._args_=['{file}', w]")
    with pytest.raises(InvalidAppError, match=r"an override chooses the function 'builtins\.open'"):
        hydra("-cn", "through", override, f"+all._args_=['{file}', w]")
    assert hydra("-cn", "through", "n=3", "+all.x=value").metadata == {"x": "value"}
    assert not file.exists()


def test_an_interpolation_from_parts_stays_text(hydra, monkeypatch):
    """Hydra resolves a config more than once, so the value of one interpolation could become another."""
    monkeypatch.setenv("WORKER_SECRET", "hush")

    app = hydra("-cn", "joined", "a=$", "b='{oc.env:WORKER_SECRET}'")

    assert app.name == "${oc.env:WORKER_SECRET}"


def test_an_override_may_have_macros_and_variables_of_a_shell(hydra):
    app = hydra("-cn", "one", "app.roles.0.args=['${torchx.replica_id:} of $HOME $(id)']")

    assert app.roles[0].args == ["${replica_id} of $HOME $(id)"]


def test_an_override_that_cannot_be_parsed_is_named(hydra):
    with pytest.raises(InvalidAppError, match=r"the override 'app.name=\[' cannot be parsed"):
        hydra("-cn", "one", "app.name=[")


def test_an_override_that_is_nested_too_deep_is_refused(hydra):
    """The parser needs a minute for thousands of brackets."""
    app = hydra("-cn", "one", f"+app.metadata.x={'[' * 50}{']' * 50}")
    with pytest.raises(InvalidAppError, match="more than 50 levels deep"):
        hydra("-cn", "one", f"+app.metadata.x={'[{a: ' * 1500}{'}]' * 1500}")

    assert str(app.metadata["x"]).count("[") == 50


def test_a_config_outside_of_the_directory_is_refused(hydra, tmp_path):
    (tmp_path.parent / "outside.yaml").write_text(CONFIG)

    with pytest.raises(InvalidAppError, match="outside of config_dir"):
        hydra("-cn", "../outside")


@pytest.mark.parametrize("value", ["../../outside", "[a,../../outside]"])
def test_a_group_of_a_search_path_leads_to_no_other_file(hydra, tmp_path, value):
    """The author of the config may have groups in other directories."""
    (tmp_path / "more" / "group").mkdir(parents=True)
    (tmp_path / "more" / "group" / "a.yaml").write_text("# @package app\nname: from-group\n")
    (tmp_path / "outside.yaml").write_text("# @package app\nname: from-outside\n")
    (tmp_path / "searched.yaml").write_text(f"hydra: {{searchpath: ['file://{tmp_path}/more']}}\n{CONFIG}")

    assert hydra("-cn", "searched", "+group=a").name == "from-group"
    with pytest.raises(InvalidAppError, match="outside of config_dir"):
        hydra("-cn", "searched", f"+group={value}")


def test_overrides_choose_groups_and_relative_paths(hydra, tmp_path):
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "a.yaml").write_text("name: from-group\n")

    assert hydra("-cn", "one", "+group@app=a").name == "from-group"
    assert hydra("-cn", "one", "+app.metadata.data=../data").metadata == {"data": "../data"}
